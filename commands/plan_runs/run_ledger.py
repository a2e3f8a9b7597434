"""A run as the files and the log have it: which stream it is, whether plan and marker agree with the log.

Every command on a run begins here. What disagrees is refused, naming both sides; what merely lags behind
the log (a crash between an event and its file) is completed (DESIGN, Views).
"""

from __future__ import annotations

import os

from commands.plan_runs import markers, plans
from commands.plan_runs.run_folder import RunFolder, StalePlanError, local_day, parse_now, run_folder
from ledger.errors import Conflict, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from commands.context import Context
    from commands.plan_runs.routes import Resolver
    from ledger.access import Ledger
    from ledger.store import Reader, Recorded
    from projections.engine import Proposal, World
    from projections.plan_run import Approval, Claim, State


class HeldByAnotherError(Conflict):
    """A step of somebody who does not hold the run: recorded as `marker.refused` by the command."""


class Documents:
    """Plan and snapshot of a run, read once and valid together; `digest` is the plan's, `files` the bytes of both."""

    __slots__ = ("digest", "files", "plan", "snapshot")

    def __init__(
        self, plan: dict[str, Any], snapshot: list[dict[str, Any]], files: tuple[bytes, bytes]
    ) -> None:
        self.plan = plan
        self.snapshot = snapshot
        self.files = files
        self.digest = plans.plan_digest(plan)

    @property
    def raw(self) -> bytes:
        """The bytes of plan.json."""
        return self.files[0]

    def assignment(self, item: dict[str, Any]) -> dict[str, Any]:
        """The snapshot's item of a plan's item."""
        wanted = (str(item["course_id"]), str(item["assignment_id"]))
        return next(
            each for each in self.snapshot if (str(each["course_id"]), str(each["assignment_id"])) == wanted
        )


def read_documents(
    folder: RunFolder, *, now: int | None = None, current: bool = False, resolver: Resolver | None = None
) -> Documents:
    """The run's plan and snapshot; `StalePlanError` (exit 1, scan again) when they are not valid together.

    Both files are read each time; bytes that were found valid before, in this command, are not judged again.
    """
    files = plans.read_run_files(folder.path)
    known = folder.documents
    if known is not None and known.files == files and resolver is None:
        plans.validate_plan(known.plan, now=now, require_current=current)
        return known
    plan, snapshot = plans.parse_run_documents(folder.path, *files)
    plans.validate_plan_assignments(
        plan,
        snapshot,
        run_dir=folder.path,
        now=now,
        require_current=current,
        resolve=None if resolver is None else resolver.of,
    )
    folder.documents = Documents(plan, snapshot, files)
    return folder.documents


def require_unchanged(folder: RunFolder, documents: Documents) -> None:
    """Under the ledger's lock: raise `Conflict` when plan.json is another one than when `documents` was read."""
    digest = plans.plan_digest(plans.read_plan(folder.path))
    if digest != documents.digest:
        raise Conflict(
            f"{folder.path}/plan.json: was changed while this ran; look at it, then run this again"
        )


def require_today(folder: RunFolder, now: int, spelled: str | None) -> None:
    """Raise `StalePlanError` unless the run's folder is today's."""
    today = local_day(now, spelled=spelled)
    if folder.date != today:
        raise StalePlanError(f"{folder.path}: is the run of {folder.date}, today is {today}")


class Run:
    """One run directory with its ledger, as a command holds it."""

    __slots__ = ("context", "folder", "ledger", "now", "session", "spelled")

    def __init__(self, context: Context, run_dir: str, *, now: str | None = None, session: str = "") -> None:
        self.context = context
        self.folder = run_folder(run_dir)
        self.spelled = now
        self.now = parse_now(now)
        self.ledger: Ledger = context.ledger()
        self.session = session

    def require_today(self) -> None:
        """Raise `StalePlanError` unless this run is today's."""
        require_today(self.folder, self.now, self.spelled)

    def require_current(self) -> None:
        """Raise `StalePlanError` unless this run is today's and its plan has not expired by now."""
        now = parse_now(self.spelled)
        require_today(self.folder, now, self.spelled)
        read_documents(self.folder, now=now, current=True)

    def stream(self, reader: Reader) -> str:
        """The run's stream; a runs folder that the ledger does not know yet gets the next number."""
        return find_stream(reader, self.folder)

    def state(self, world: World) -> State:
        """The run, folded, as `world` has it."""
        found: State = world.state(self.stream(world.reader))
        return found

    def look(self) -> World:
        """A world outside any transaction."""
        from projections.engine import World

        return World(self.ledger.store.reader())

    def submit(self, decide: Any, then: Any = None) -> Recorded:
        """`engine.submit`, all events correlated by their stream; a content that carries a credential is refused first."""
        from projections.engine import submit

        def checked(world: World) -> Sequence[Proposal]:
            proposals: Sequence[Proposal] = decide(world)
            for proposal in proposals:
                proposal.correlation = proposal.stream
                if proposal.content is not None:
                    refuse_credentials(proposal.content, f"{proposal.type}: content")
            return proposals

        return submit(self.ledger, self.context.origin(), checked, then=then)


def refuse_credentials(raw: bytes, where: str) -> None:
    """Raise `Refused` when `raw` carries what is surely a credential; names the kind, not the value."""
    from ledger.credentials import find_credential

    kind = find_credential(raw)
    if kind is not None:
        raise Refused(
            f"{where}: holds what looks like a credential ({kind}); take it out, a log keeps what it is given"
        )


def runs_digest(folder: RunFolder) -> str:
    """What stands for the runs folder in events: BLAKE3 of its real path."""
    from blake3 import blake3

    return blake3(os.fsencode(folder.runs)).hexdigest()


def find_stream(reader: Reader, folder: RunFolder) -> str:
    """`run/<root>-<date>`: root is the number under which the ledger knows the runs folder, else the next free one."""
    from projections.engine import fact_of

    wanted = runs_digest(folder)
    seen: set[int] = set()
    for name in reader.streams("run"):
        root = int(name[4:].partition("-")[0])
        if root in seen:
            continue
        seen.add(root)
        first = reader.stream(name, upto=1)
        if first and fact_of(first[0]).data.runs == wanted:
            return f"run/{root}-{folder.date}"
    return f"run/{max(seen, default=0) + 1}-{folder.date}"


def proposed(documents: Documents, folder: RunFolder) -> Any:
    """The data of `plan.proposed` for a run's documents."""
    from blake3 import blake3

    from ledger.canonical import encode
    from projections.plan_run_events import Item, Proposed

    identities: list[object] = [
        [str(each["course_id"]), str(each["assignment_id"]), each["skill"]] for each in documents.snapshot
    ]
    items = tuple(
        Item(
            item["index"],
            _bucket(item.get("bucket")),
            str(item["course_id"]),
            str(item["assignment_id"]),
            item["proposed_skill"],
        )
        for item in documents.plan["items"]
    )
    snapshot = blake3(encode(identities, what="snapshot", floats=False)).hexdigest()
    return Proposed(runs_digest(folder), documents.digest, snapshot, items)


def _bucket(value: object) -> str:
    """A bucket as data: a plain word, or `` for anything else (no rule reads another one than `urgent`)."""
    if isinstance(value, str) and len(value) <= 40 and value.isprintable():
        return value
    return ""


def agreement(state: State, digest: str) -> str:
    """How plan.json stands to the log: `current`, `lagging` (the decisions were not written yet) or `other`."""
    if state.proposed and digest == state.current:
        return "current"
    approval = state.approval
    if approval is not None and digest == approval.before:
        return "lagging"
    return "other"


def decided_plan(plan: dict[str, Any], approval: Approval) -> dict[str, Any]:
    """The plan with the recorded decisions; `Refused` unless it comes out as the log says."""
    items = [{**item, "user_decision": approval.decisions[str(item["index"])]} for item in plan["items"]]
    done = {**plan, "items": items}
    digest = plans.plan_digest(done)
    if digest != approval.after:
        raise Refused(
            f"plan.json with the approved decisions is {digest}, the log says {approval.after}; run canvas-scan again"
        )
    return done


def completed(run: Run, documents: Documents) -> Documents:
    """The documents after completing an approval whose decisions a crash kept from plan.json; else as they are."""
    world = run.look()
    state = run.state(world)
    if agreement(state, documents.digest) != "lagging":
        return documents

    def write() -> None:
        again = run.state(run.look())
        raw = plans.read_plan(run.folder.path)
        if again.approval is not None and plans.plan_digest(raw) == again.approval.before:
            plans.write_plan(run.folder.path, decided_plan(raw, again.approval))

    run.submit(lambda _world: [], then=write)
    return read_documents(run.folder)


class Standing:
    """How the marker file stands to the log.

    `free` nothing there · `held` file and log agree · `missing` the log has a claim, the file is gone ·
    `over` the file of a claim that is over · `void` one that a restore of the ledger voided · `crashed` a claim of this ledger that never was recorded ·
    `foreign` another tool's or ledger's.
    """

    __slots__ = ("claim", "kind", "marker")

    def __init__(self, kind: str, marker: markers.Marker | None, claim: Claim | None) -> None:
        self.kind = kind
        self.marker = marker
        self.claim = claim


def standing(run: Run, world: World, state: State) -> Standing:
    """How the run's marker stands; `Refused` for a malformed file, which is kept."""
    from blake3 import blake3

    marker = markers.read_marker(run.folder.path)
    claim = state.claim
    if claim is not None and claim.seq < world.void_before:
        if marker is not None and marker.claim_nonce == claim.nonce:
            return Standing("void", marker, None)
        claim = None
    if marker is None:
        return Standing("free" if claim is None else "missing", None, claim)
    nonce = marker.claim_nonce
    if claim is not None:
        # A file that was adopted may carry another tool's or ledger's nonce until ours is written over it.
        ours = nonce == claim.nonce or nonce is None or claim.adopted
        if ours and (marker.session_id, marker.plan_digest) == (claim.session_id, claim.digest):
            return Standing("held", marker, claim)
    if (nonce or blake3(marker.raw).hexdigest()) in state.past:
        return Standing("over", marker, claim)
    if claim is None and nonce is not None and nonce.startswith(run.ledger.id[:8]):
        return Standing("crashed", marker, None)
    return Standing("foreign", marker, claim)


def new_nonce(ledger_id: str) -> str:
    """32 hex digits: eight of the ledger's id, so that its own unrecorded claim can be told, then random ones."""
    return ledger_id[:8] + os.urandom(12).hex()


def holds(marker: markers.Marker) -> str:
    """Who a marker says holds the run, for a message."""
    return f"session {marker.session_id} holds the run since {marker.fields['created_at']}"


def require_owner(
    run: Run, world: World, documents: Documents, *, prepared: bool = True
) -> tuple[State, Claim]:
    """The state and claim under which this session may go on; else `Conflict` (another owner) or `Refused`.

    The plan on disk, the marker file and the log must say the same. `prepared` wants the preparation too.
    """
    state = run.state(world)
    found = standing(run, world, state)
    marker, claim = found.marker, found.claim
    if found.kind in ("free", "over", "void", "crashed"):
        raise Refused(f"{run.folder.path}: nobody holds this run; run `gatebook run claim`")
    if found.kind == "foreign" or claim is None:
        assert marker is not None or claim is None
        if marker is not None and marker.session_id != run.session:
            raise HeldByAnotherError(
                f"{run.folder.path}: {holds(marker)}; wait for it or let it be recovered"
            )
        raise Refused(
            f"{run.folder.path}/{markers.MARKER}: is not the claim in the log; it is kept, run `gatebook run claim`"
        )
    if claim.session_id != run.session:
        raise HeldByAnotherError(
            f"{run.folder.path}: session {claim.session_id} holds the run since {claim.created_at}; wait for it or let it be recovered"
        )
    if marker is None:
        raise Refused(
            f"{run.folder.path}/{markers.MARKER}: is gone, the log says you hold the run; run `gatebook run claim` to put it back"
        )
    if documents.digest != claim.digest or state.current != claim.digest:
        raise Refused(
            f"{run.folder.path}/plan.json: is {documents.digest}, the claim holds {claim.digest}; the marker is kept for inspection"
        )
    if prepared:
        if not claim.is_ready:
            raise Refused(
                "results are not prepared since this claim or its last resumption; run `gatebook run prepare-results`"
            )
        markers.validate_execute_marker(marker, documents.plan, session_id=run.session, require_prepared=True)
    return state, claim
