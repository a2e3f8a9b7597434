"""`run claim`: one session takes a run, or comes back to it (contract: Marker)."""

from __future__ import annotations

from commands.plan_runs import markers
from commands.plan_runs.rooted import create_file, remove_file, write_file
from commands.plan_runs.run_ledger import (
    Documents,
    Run,
    Standing,
    completed,
    holds,
    new_nonce,
    read_documents,
    require_unchanged,
    standing,
)
from ledger.errors import Conflict, GatebookError, Refused
from projections.times import print_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from projections.engine import Proposal, World
    from projections.plan_run import State


class Claiming:
    """One call of `run claim`: decides under the ledger's lock, makes the file before the event, undoes it on failure."""

    __slots__ = ("documents", "made", "nonce", "outcome", "run")

    def __init__(self, run: Run, documents: Documents) -> None:
        self.run = run
        self.documents = documents
        self.outcome = ""
        self.nonce = ""
        self.made = False

    def decide(self, world: World) -> list[Proposal]:
        """`marker.claimed` or `marker.resumed`; `Conflict` for another owner, `Refused` for what must be looked at."""
        from projections.engine import Proposal

        require_unchanged(self.run.folder, self.documents)
        self._begin()
        stream = self.run.stream(world.reader)
        state: State = world.state(stream)
        found = standing(self.run, world, state)
        self._refuse_other(found)
        if found.kind in ("held", "missing"):
            assert found.claim is not None
            self._refuse_digest(found, state)
            self.outcome, self.nonce = "resumed", found.claim.nonce
            from projections.plan_run_events import Resumed

            return [
                Proposal(
                    stream,
                    "marker.resumed",
                    Resumed(self.run.session, found.claim.nonce),
                    causation=found.claim.seq,
                )
            ]
        adopted = found.kind == "foreign"
        self._refuse_digest(found, state)
        self._require_approval(world, state)
        created_at = print_time(self.run.now)
        if adopted:
            assert found.marker is not None
            created_at = str(found.marker.fields["created_at"])
        else:
            self._make_file(found, created_at)
        self.outcome = "resumed" if adopted else "created"
        from projections.plan_run_events import Claimed

        data = Claimed(self.run.session, self.documents.digest, created_at, self.nonce, adopted)
        return [
            Proposal(
                stream,
                "marker.claimed",
                data,
                content=self.run.folder.runs.encode("utf-8", "surrogateescape"),
                causation=None if state.approval is None else state.approval.seq,
            )
        ]

    def _begin(self) -> None:
        """Each attempt has a nonce of its own, and takes back the file of the attempt before.

        A fleet's ledger decides again after a lost race: the file would stand there as somebody's.
        """
        if self.made:
            self._remove_file()
        self.nonce = new_nonce(self.run.ledger.id)

    def _remove_file(self) -> None:
        marker = markers.read_marker(self.run.folder.path)
        if marker is not None and marker.claim_nonce == self.nonce:
            remove_file(self.run.folder.path, markers.MARKER)
        self.made = False

    def _refuse_other(self, found: Standing) -> None:
        marker, claim, path = found.marker, found.claim, self.run.folder.path
        if found.kind == "foreign" and marker is not None and marker.session_id != self.run.session:
            raise Conflict(f"{path}: {holds(marker)}; it was not touched")
        if found.kind in ("held", "missing") and claim is not None and claim.session_id != self.run.session:
            raise Conflict(
                f"{path}: session {claim.session_id} holds the run since {claim.created_at}; it was not touched"
            )
        if found.kind == "foreign" and claim is not None:
            raise Refused(
                f"{path}/{markers.MARKER}: is not the claim that the log holds; it is kept for inspection"
            )

    def _refuse_digest(self, found: Standing, state: State) -> None:
        digest = self.documents.digest
        held = found.claim.digest if found.claim is not None else None
        if found.kind == "foreign" and found.marker is not None:
            held = found.marker.plan_digest
        if held is not None and held != digest:
            raise Refused(
                f"{self.run.folder.path}: the marker holds the plan {held}, plan.json is {digest}; the marker is kept for inspection"
            )
        if state.proposed and state.current != digest:
            raise Refused(
                f"{self.run.folder.path}/plan.json: is {digest}, the log's plan is {state.current}; "
                "a changed plan needs `gatebook plan approve` again"
            )

    def _require_approval(self, world: World, state: State) -> None:
        undecided = [
            item["index"] for item in self.documents.plan["items"] if item.get("user_decision") is None
        ]
        if undecided:
            raise Refused(
                f"{self.run.folder.path}: item {undecided[0]} is undecided; run `gatebook plan approve` first"
            )
        approval = state.approval
        fresh = approval is not None and not approval.used and approval.seq >= world.void_before
        if not fresh or approval is None or approval.after != self.documents.digest:
            raise Refused(
                f"{self.run.folder.path}: this plan has no unused approval; run `gatebook plan approve` with the person's words"
            )
        if approval.session_id != self.run.session:
            raise Refused(
                f"{self.run.folder.path}: the plan was approved in session {approval.session_id}, this is {self.run.session}; approve it here"
            )

    def _make_file(self, found: Standing, created_at: str) -> None:
        # Crash here: a marker that carries our ledger's nonce and stands in no event is a claim that never was.
        raw = markers.new_marker(self.run.session, created_at, self.documents.digest, self.nonce)
        if found.kind in ("over", "void", "crashed"):
            remove_file(self.run.folder.path, markers.MARKER)
        if not create_file(self.run.folder.path, markers.MARKER, raw):
            other = markers.read_marker(self.run.folder.path)
            raise Conflict(
                f"{self.run.folder.path}: {holds(other) if other else 'another tool'} was first; it was not touched"
            )
        self.made = True

    def put_back(self) -> None:
        """After the event: a resumed claim whose file is gone gets it again; an adopted one gets our nonce."""
        marker = markers.read_marker(self.run.folder.path)
        state = self.run.state(self.run.look())
        claim = state.claim
        if claim is None:
            return
        if marker is None:
            raw = markers.new_marker(claim.session_id, claim.created_at, claim.digest, claim.nonce)
            create_file(self.run.folder.path, markers.MARKER, raw)
        elif marker.claim_nonce is None or (claim.adopted and marker.claim_nonce != claim.nonce):
            write_file(
                self.run.folder.path,
                markers.MARKER,
                markers.render_marker({**marker.fields, "claim_nonce": claim.nonce}),
            )

    def undo(self) -> None:
        """The file of a claim whose event was not recorded is gone again; a claim that was recorded is left."""
        if not self.made:
            return
        claim = self.run.state(self.run.look()).claim
        if claim is None or claim.nonce != self.nonce:
            self._remove_file()


def claim(run: Run) -> dict[str, Any]:
    """Takes the run for `run.session`, past days recovered first; the document that `run claim` prints.

    Raises `Conflict` (another owner, nothing touched), `Refused` (no approval, malformed or mismatched marker);
    both are recorded as `marker.refused`.
    """
    try:
        return _claim(run)
    except GatebookError as error:
        refuse_marker(run, error)
        raise


def _claim(run: Run) -> dict[str, Any]:
    from commands.plan_runs.recovery import recover_past

    run.require_today()
    markers.read_marker(run.folder.path)
    recovered = recover_past(run, before=run.folder.date)
    documents = completed(run, read_documents(run.folder, now=run.now, current=True))
    claiming = Claiming(run, documents)
    try:
        done = run.submit(claiming.decide, then=claiming.put_back)
    except BaseException:
        claiming.undo()
        raise
    return {
        "outcome": claiming.outcome,
        "session_id": run.session,
        "plan_digest": documents.digest,
        "claim_nonce": claiming.nonce,
        "recovered": recovered,
        "seq": done.events[0].seq,
    }


def refuse_marker(run: Run, error: GatebookError) -> None:
    """Records `marker.refused` for a refusal of authority that no admission has recorded."""
    from projections.fact import Unlawful

    if isinstance(error, Unlawful) or not isinstance(error, (Refused, Conflict)):
        return
    from projections.refusals import record_refusal

    reason = "another owner holds the run" if isinstance(error, Conflict) else "the claim was refused"
    try:
        stream = run.stream(run.look().reader)
        refused = run.session.encode()
        record_refusal(
            run.ledger,
            run.context.origin(),
            type="marker.claimed",
            stream=stream,
            reason=reason,
            refused=refused,
            as_type="marker.refused",
            correlation=stream,
        )
    except GatebookError:
        return
