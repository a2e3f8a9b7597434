"""The Stop guard: a session that owns an unfinished run is asked once not to stop (contract: `guard stop`)."""

from __future__ import annotations

from commands.plan_runs import markers
from commands.plan_runs.closing import valid_results
from commands.plan_runs.run_folder import is_day, run_folder
from commands.plan_runs.run_ledger import Run, read_documents, require_owner
from ledger.errors import Conflict, GatebookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from ledger.access import Ledger

_CLAIMS_LOOKED_AT = 200


def owned_runs(ledger: Ledger, session: str) -> list[str]:
    """The run directories that this session holds by the log, newest claim first."""
    from projections.engine import World

    world = World(ledger.store.reader())
    found: list[str] = []
    seen: set[str] = set()
    for event in world.reader.of_type("marker.claimed", _CLAIMS_LOOKED_AT):
        if event.stream in seen:
            continue
        seen.add(event.stream)
        claim = world.state(event.stream).claim
        if (
            claim is None
            or claim.session_id != session
            or claim.seq < world.void_before
            or event.content is None
        ):
            continue
        runs = event.content.decode("utf-8", "surrogateescape")
        found.append(f"{runs}/{event.stream.partition('-')[2]}")
    return found


def marked_runs(runs: str, session: str) -> list[str]:
    """The run directories below `runs` whose marker names this session, whoever made it."""
    import os

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
    try:
        run_folder(path)
        run = Run(context, path, session=session)
        documents = read_documents(run.folder)
        world = run.look()
        state, _ = require_owner(run, world, documents)
        valid_results(run, world, documents, state)
    except Conflict:
        return None
    except GatebookError as error:
        return f"The run {path} is yours and not finished: {error}"
    return None
