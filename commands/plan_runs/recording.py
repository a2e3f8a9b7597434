"""Results enter the log and `_processed.json`: those of hand-offs, and the ones written for items that do not run.

A result's file stands before its event (a crash between the two is found by the next step as a result that
waits to be recorded); the shared file is written after it, and brought up to the log by the next step.
"""

from __future__ import annotations

import os

from commands.plan_runs.documents import parse_document, render_document
from commands.plan_runs.preparation import HISTORY
from commands.plan_runs.processed import PROCESSED, ledger_entry, read_processed
from commands.plan_runs.results import (
    RESULT,
    Consumption,
    Evidence,
    ResultRuleError,
    read_result,
    validate_result,
)
from commands.plan_runs.rooted import MissingFileError, kind_of, make_folder, read_file, write_file
from commands.plan_runs.run_ledger import Documents, Run, read_documents, require_owner
from ledger.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from projections.engine import Proposal, World
    from projections.plan_run import Claim, State
    from projections.plan_run_events import Item

NOT_APPROVED_NOTES = "not approved this run"


def consumptions_of(world: World) -> Callable[[str], list[Consumption]]:
    """The use by which a receipt handed in, as the log has it, for results that claim one."""

    def of(receipt_id: str) -> list[Consumption]:
        from ledger.event import check_text
        from projections.receipt import State as Receipt

        try:
            check_text(receipt_id, "receipt id", 64)
        except Invalid:
            return []
        state: Receipt = world.state(f"receipt/{receipt_id}")
        issued = state.issued
        if issued is None or not state.handed_in:
            return []
        return [
            Consumption(
                receipt_id,
                issued.course_id,
                issued.target_id,
                state.handed_in,
                state.handed_in_at,
                hands_in=True,
            )
        ]

    return of


class Found:
    """A result that was read and is canonical: its value, bytes, BLAKE3 and, for a draft, its evidence."""

    __slots__ = ("digest", "evidence", "raw", "value")

    def __init__(self, value: dict[str, Any], raw: bytes, evidence: Evidence | None) -> None:
        from blake3 import blake3

        self.value = value
        self.raw = raw
        self.digest = blake3(raw).hexdigest()
        self.evidence = evidence


def look_at(run: Run, world: World, documents: Documents, item: Item) -> Found | None:
    """The item's result as it lies there: None without a file; `ResultRuleError` naming the rule it breaks."""
    from ledger.credentials import find_credential

    try:
        read = read_result(run.folder.path, item.key)
    except (Invalid, Refused) as error:
        if isinstance(error, ResultRuleError):
            raise
        raise ResultRuleError("result_file", str(error)) from None
    if read is None:
        return None
    value, raw = read
    kind = find_credential(raw)
    if kind is not None:
        # Not left to the append: its refusal would hold the whole run up, and could not name the file.
        raise ResultRuleError(
            "credential",
            f"{RESULT} holds what looks like a credential ({kind}); take it out, a log keeps what it is given",
        )
    planned = documents.plan["items"][item.index - 1]
    named = {**planned, **documents.assignment(planned)}
    evidence = validate_result(
        value, f"{run.folder.path}/{item.key}", item=named, consumptions=consumptions_of(world)
    )
    return Found(value, raw, evidence)


def set_aside(run_dir: str, key: str) -> None:
    """Whatever stands in the result's place is kept as evidence in `result-history/`; nothing there: nothing happens."""
    kind = kind_of(run_dir, f"{key}/{RESULT}")
    if kind == "":
        return
    make_folder(run_dir, f"{key}/{HISTORY}")
    folder = f"{run_dir}/{key}"
    place = 1
    while os.path.lexists(f"{folder}/{HISTORY}/rejected-{place}.json"):
        place += 1
    # A rename works for a folder, a link or a FIFO as well, and follows none.
    os.rename(f"{folder}/{RESULT}", f"{folder}/{HISTORY}/rejected-{place}.json")


def write_canonical(run_dir: str, key: str, result: dict[str, Any]) -> Found:
    """Writes a result of our own into the item's place (what stood there is set aside)."""
    raw = render_document(result)
    make_folder(run_dir, key)
    if not _stands(run_dir, key, raw):
        set_aside(run_dir, key)
        write_file(run_dir, f"{key}/{RESULT}", raw)
    return Found(result, raw, None)


def _stands(run_dir: str, key: str, raw: bytes) -> bool:
    """Whether exactly these bytes are the result already: a crash came between them and their event."""
    try:
        return read_file(run_dir, f"{key}/{RESULT}") == raw
    except (Invalid, Refused):
        return False


class Shared:
    """`_processed.json` while results are recorded at one moment (us): our entries are put in, then written at once."""

    __slots__ = ("clock", "entries", "run")

    def __init__(self, run: Run, clock: int) -> None:
        self.run = run
        self.clock = clock
        self.entries = read_processed(run.folder.runs)

    def put(self, key: str, result: dict[str, Any]) -> tuple[str, str]:
        """Puts the entry of one result in; the digests of the key's text after and before (`` where it had none)."""
        before = self.entries.digest(key)
        return self.entries.put(key, entry_of(self.run, result, self.clock)), before

    def write(self) -> None:
        """The file holds what was put afterwards."""
        self.entries.write()


def entry_of(run: Run, result: dict[str, Any], clock: int) -> dict[str, Any]:
    """The entry of a result that was recorded at `clock` (us); always the same for the same two."""
    from ledger.clock import format_us

    return ledger_entry(result, run.folder.date, format_us(clock))


def settle_processed(run: Run, state: State) -> None:
    """`_processed.json` has every entry of this run as the log says, written again where it lags.

    `Refused` when one of ours was changed by somebody else.
    """
    if not state.results:
        return
    entries = read_processed(run.folder.runs)
    for key, result in state.results.items():
        stands = entries.digest(key)
        if not result.entry or stands == result.entry:
            continue
        if stands != result.entry_before:
            raise Refused(
                f"{run.folder.runs}/{PROCESSED}: the entry {key} is not the one recorded by event {result.seq}; "
                "put it back, or `gatebook doctor --adopt` takes it over"
            )
        entries.put(key, entry_of(run, recorded_result(run, key, result.digest), result.clock))
    entries.write()


def recorded_result(run: Run, key: str, digest: str) -> dict[str, Any]:
    """The item's result as recorded; `Refused` when its file is another one by now."""
    found: dict[str, Any] = parse_document(_recorded_bytes(run, key, digest), f"{key}/{RESULT}")
    return found


def _recorded_bytes(run: Run, key: str, digest: str) -> bytes:
    """The bytes that were recorded: judged by their digest alone, for what they say was judged then, and every step asks for all."""
    from blake3 import blake3

    try:
        raw = read_file(run.folder.path, f"{key}/{RESULT}")
    except MissingFileError:
        raise Refused(
            f"{run.folder.path}/{key}/{RESULT}: is gone, it was recorded as {digest}; put it back"
        ) from None
    except Invalid as error:
        raise Refused(f"{error}; it is not the result that was recorded") from None
    if blake3(raw).hexdigest() != digest:
        raise Refused(
            f"{run.folder.path}/{key}/{RESULT}: was changed after it was recorded; put back what is {digest}"
        )
    return raw


def settled(run: Run, world: World, documents: Documents) -> tuple[State, Claim]:
    """Owner, preparation, results and the shared file are as the log says; what every later step starts from."""
    state, claim = require_owner(run, world, documents)
    for key, result in state.results.items():
        _recorded_bytes(run, key, result.digest)
    settle_processed(run, state)
    return state, claim


def recorded(
    stream: str, claim: Claim, item: Item, found: Found, shared: Shared, *, cause: int, rule: str
) -> Proposal:
    """`result.recorded` for a canonical result, its entry put into the shared text."""
    from projections.engine import Proposal
    from projections.plan_run_events import Recorded

    value = found.value
    after, before = shared.put(item.key, value)
    claims_receipt = value["status"] == "submitted" and value.get("reason_code") != "already_submitted"
    data = Recorded(
        item.index,
        item.key,
        claim.nonce,
        value["status"],
        found.digest,
        after,
        before,
        _code(value.get("reason_code")),
        rule,
        found.evidence.draft_digest if found.evidence else "",
        found.evidence.log_digest if found.evidence else "",
        value["authorization_receipt_id"] if claims_receipt else "",
    )
    return Proposal(stream, "result.recorded", data, content=found.raw, causation=cause)


def _code(value: object) -> str:
    """A reason code as data: a short plain word, or `` for anything else."""
    if isinstance(value, str) and len(value) <= 64 and value.replace("_", "").isalnum() and value.isascii():
        return value
    return ""


def deferred(
    claim: Claim, stream: str, item: Item, found: Found, shared: Shared, reason: str, *, kept: bool = False
) -> Proposal:
    """`item.deferred` with the result that stands for the item."""
    from projections.engine import Proposal
    from projections.plan_run_events import Deferred

    after, before = ("", "") if kept else shared.put(item.key, found.value)
    status = found.value["status"] if kept else ""
    data = Deferred(item.index, item.key, claim.nonce, reason, found.digest, after, before, kept, status)
    return Proposal(stream, "item.deferred", data, content=found.raw, causation=claim.seq)


def deferral(notes: str) -> dict[str, Any]:
    """The canonical result of an item that waits for the next run."""
    return {"status": "skipped", "notes": notes, "deferred_to_next_run": True}


def defer_unapproved(run: Run) -> None:
    """Each item that was not approved has a valid result afterwards: its own, kept, or the deferral (contract: Hand-off)."""
    from projections.plan_run_events import NOT_APPROVED

    shared: Shared | None = None

    def decide(world: World) -> list[Proposal]:
        nonlocal shared
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        stream = run.stream(world.reader)
        waiting = [
            item for item in state.items if not state.is_approved(item) and item.key not in state.results
        ]
        if not waiting:
            return []
        shared = Shared(run, world.clock)
        proposals = []
        for item in waiting:
            ours = deferral(NOT_APPROVED_NOTES)
            found = _valid(run, world, documents, item)
            kept = found is not None and found.value != ours
            if found is None:
                found = write_canonical(run.folder.path, item.key, ours)
            proposals.append(deferred(claim, stream, item, found, shared, NOT_APPROVED, kept=kept))
        return proposals

    def write() -> None:
        if shared is not None:
            shared.write()

    run.submit(decide, then=write)


def _valid(run: Run, world: World, documents: Documents, item: Item) -> Found | None:
    try:
        return look_at(run, world, documents, item)
    except ResultRuleError:
        return None
