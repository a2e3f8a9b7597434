"""What `doctor` asks about the files that runs share with other tools: do they say what the log says?

`check_files` only looks; `adopt` takes over a changed entry of ours as an event (DESIGN, Views).
"""

from __future__ import annotations

import os

from ledger.errors import GatebookError, Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.engine import World

    Check = tuple[str, str, str, str]

_CLAIMS_LOOKED_AT = 50


def check_files(ledger: Ledger) -> list[Check]:
    """(name, ok|note|problem, found, mend) for the markers, plans and shared results of runs, and of review sessions."""
    from projections.engine import World

    world = World(ledger.store.reader())
    found: list[Check] = []
    looked_at: set[str] = set()
    for folder, stream in _runs(world):
        found += _check_run(world, folder, stream)
        runs = os.path.dirname(folder)
        if runs not in looked_at:
            # A later day may have written the same keys: only the newest run's entries are still its own.
            looked_at.add(runs)
            found += _check_entries(folder, world.state(stream))
    try:
        from commands.sessions.files_check import check_files as check_sessions  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return found
    return [*found, *check_sessions(ledger)]


def _runs(world: World) -> list[tuple[str, str]]:
    """(run directory, stream) of the runs that were claimed last, whose path is known and still there."""
    seen: dict[str, str] = {}
    for event in world.reader.of_type("marker.claimed", _CLAIMS_LOOKED_AT):
        if event.stream not in seen and event.content is not None:
            runs = event.content.decode("utf-8", "surrogateescape")
            seen[event.stream] = f"{runs}/{event.stream.partition('-')[2]}"
    return [(folder, stream) for stream, folder in seen.items() if os.path.isdir(folder)]


def _check_run(world: World, folder: str, stream: str) -> list[Check]:
    from commands.plan_runs import markers, plans

    state = world.state(stream)
    found: list[Check] = []
    try:
        digest = plans.plan_digest(plans.read_plan(folder))
        if digest == state.current:
            found.append((f"{folder}/plan.json", "ok", "as the log says", ""))
        elif state.approval is not None and digest == state.approval.before:
            found.append(
                (
                    f"{folder}/plan.json",
                    "note",
                    "lags behind its approval",
                    "the next command on this run writes it",
                )
            )
        else:
            found.append(
                (
                    f"{folder}/plan.json",
                    "problem",
                    f"is {digest}, the log says {state.current}",
                    "put it back, or approve the new plan",
                )
            )
    except GatebookError as error:
        found.append((f"{folder}/plan.json", "problem", str(error), "put it back, or run canvas-scan again"))
    try:
        found.append(_check_marker(folder, markers.read_marker(folder), state, world.void_before))
    except GatebookError as error:
        found.append((f"{folder}/{markers.MARKER}", "problem", str(error), "look at who wrote it"))
    return found


def _check_marker(folder: str, marker: Any, state: Any, void_before: int) -> Check:
    name = f"{folder}/.scan_in_progress"
    claim = state.claim if state.claim is not None and state.claim.seq >= void_before else None
    if marker is None and claim is None:
        return (name, "ok", "nobody holds the run", "")
    if marker is None:
        assert claim is not None
        return (
            name,
            "problem",
            f"is gone, session {claim.session_id} holds the run",
            "its session runs `gatebook run claim` again",
        )
    if claim is not None and marker.claim_nonce == claim.nonce:
        return (name, "ok", f"session {claim.session_id} holds the run", "")
    if marker.claim_nonce in state.past:
        return (name, "note", "is of a claim that is over", "the next claim or `run finalize` removes it")
    return (
        name,
        "problem",
        f"session {marker.session_id} holds it, not by this ledger",
        "wait for it, or look at who wrote it",
    )


def _check_entries(folder: str, state: Any) -> list[Check]:
    from commands.plan_runs.processed import PROCESSED, read_processed

    runs = os.path.dirname(folder)
    name = f"{runs}/{PROCESSED}"
    try:
        entries = read_processed(runs)
    except GatebookError as error:
        return [(name, "problem", str(error), "mend it by hand")]
    changed = [
        key
        for key, held in state.results.items()
        if held.entry and entries.digest(key) not in (held.entry, held.entry_before)
    ]
    if changed:
        return [
            (
                name,
                "problem",
                f"the entry {changed[0]} is not the recorded one",
                f"put it back, or `gatebook doctor --adopt {name}`",
            )
        ]
    return [(name, "ok", "our entries are as recorded", "")]


def adopt(ledger: Ledger, path: str, origin: Origin) -> dict[str, object]:
    """Takes over the changed entries of ours in a `_processed.json` as events; `Refused` for any other file."""
    from commands.plan_runs.processed import PROCESSED

    if os.path.basename(path) != PROCESSED:
        try:
            from commands.sessions.files_check import adopt as adopt_session  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise Refused(f"{path}: is not a file that can be adopted ({PROCESSED} can)") from None
        found: dict[str, object] = adopt_session(ledger, path, origin)
        return found
    return _adopt_processed(ledger, path, origin)


def _adopt_processed(ledger: Ledger, path: str, origin: Origin) -> dict[str, object]:
    from commands.plan_runs.processed import read_processed
    from projections.engine import Proposal, World, submit
    from projections.plan_run_events import ADOPTED, Recorded

    if not os.path.lexists(path):
        raise Invalid(f"{path}: there is no such file")
    runs = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    if all(os.path.dirname(folder) != runs for folder, _ in _runs(World(ledger.store.reader()))):
        raise Refused(f"{path}: no run of this ledger lies beside it")
    entries = read_processed(runs)
    adopted: list[str] = []

    def decide(world: World) -> list[Proposal]:
        proposals: list[Proposal] = []
        adopted.clear()
        for folder, stream in _runs(world):
            if os.path.dirname(folder) != runs:
                continue
            state = world.state(stream)
            for item in state.items:
                held = state.results.get(item.key)
                stands = entries.digest(item.key)
                if held is None or not held.entry or stands in (held.entry, held.entry_before):
                    continue
                if not stands:
                    raise Refused(
                        f"{path}: the entry {item.key} is gone; put one back, its own or another, then adopt it"
                    )
                nonce = state.claim.nonce if state.claim is not None else ""
                data = Recorded(
                    item.index,
                    item.key,
                    nonce,
                    held.status,
                    held.digest,
                    stands,
                    stands,
                    held.reason_code,
                    ADOPTED,
                )
                proposals.append(
                    Proposal(stream, "result.recorded", data, correlation=stream, causation=held.seq)
                )
                adopted.append(item.key)
            break
        return proposals

    done = submit(ledger, origin, decide)
    return {"adopted": list(adopted), "file": path, "events": [event.seq for event in done.events]}
