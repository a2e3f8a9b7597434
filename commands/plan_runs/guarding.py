"""The Stop guard: a session that owns an unfinished run is asked once not to stop (contract: `guard stop`).

An agent's every stop passes here, so what only an owner needs is imported only when an owner is found.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.plan_runs.markers import Marker
    from commands.plan_runs.run_ledger import Documents, Run
    from ledger.access import Ledger
    from ledger.event import Event
    from projections.engine import World

_CLAIMS_LOOKED_AT = 200


def owned_runs(ledger: Ledger, session: str) -> list[str]:
    """The run directories that this session holds by the log, newest claim first."""
    from ledger.canonical import load

    reader = ledger.store.reader()
    newest: dict[str, Event] = {}
    for event in reader.of_type("marker.claimed", _CLAIMS_LOOKED_AT):
        newest.setdefault(event.stream, event)
    mine = [event for event in newest.values() if load(event.data)["session_id"] == session]
    if not mine:
        return []
    from projections.engine import World

    world = World(reader)
    found: list[str] = []
    for event in mine:
        claim = world.state(event.stream).claim
        if claim is not None and claim.seq == event.seq >= world.void_before and event.content is not None:
            runs = event.content.decode("utf-8", "surrogateescape")
            found.append(f"{runs}/{event.stream.partition('-')[2]}")
    return found


def marked_runs(runs: str, session: str) -> list[str]:
    """The run directories below `runs` whose marker names this session, whoever made it."""
    from commands.plan_runs import markers
    from commands.plan_runs.run_folder import is_day
    from ledger.errors import GatebookError

    found = []
    for name in sorted(os.listdir(runs)):
        if not is_day(name) or not os.path.lexists(f"{runs}/{name}/{markers.MARKER}"):
            continue
        try:
            marker = markers.read_marker(f"{runs}/{name}")
        except GatebookError:
            continue
        if marker is not None and marker.session_id == session:
            found.append(f"{os.path.realpath(runs)}/{name}")
    return found


def reason_to_go_on(context: Context, session: str, runs: str | None) -> str | None:
    """Why this session must not stop yet, in one sentence; None when it may."""
    directories = owned_runs(context.ledger(), session)
    if runs is not None:
        directories += [path for path in marked_runs(runs, session) if path not in directories]
    for path in directories:
        fault = _unfinished(context, path, session)
        if fault is not None:
            return fault
    return None


def _unfinished(context: Context, path: str, session: str) -> str | None:
    from commands.plan_runs.closing import valid_results
    from commands.plan_runs.handing_off import valid_open_result
    from commands.plan_runs.run_ledger import Run, read_documents, require_owner, standing
    from ledger.errors import Conflict, GatebookError

    owned = False
    try:
        run = Run(context, path, session=session)
        documents = read_documents(run.folder)
        world = run.look()
        found = standing(run, world, run.state(world))
        owned = found.claim is not None and found.claim.session_id == session
        if found.kind == "foreign" and found.claim is None and found.marker is not None:
            _check_foreign(run, world, documents, found.marker)
            return None
        if found.claim is None:
            return None  # the file of a claim that is over, void or never was recorded: nobody holds the run
        state, _ = require_owner(run, world, documents)
        waiting = valid_open_result(run, world, documents, state)
        valid_results(run, world, documents, state, waiting)
    except GatebookError as error:
        if isinstance(error, Conflict) and not owned:
            return None
        return f"The run {path} is yours and not finished: {error}"
    return None


def _check_foreign(run: Run, world: World, documents: Documents, marker: Marker) -> None:
    """A run that another tool claimed for this session is judged by its files alone; `Refused` for what is missing."""
    from commands.plan_runs.markers import validate_execute_marker
    from commands.plan_runs.recording import look_at
    from commands.plan_runs.run_ledger import proposed
    from ledger.errors import Refused

    validate_execute_marker(marker, documents.plan, session_id=run.session, require_prepared=True)
    for item in proposed(documents, run.folder).items:
        if look_at(run, world, documents, item) is None:
            raise Refused(f"item {item.index} ({item.key}) has no result.json")
