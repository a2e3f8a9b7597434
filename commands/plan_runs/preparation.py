"""`run prepare-results`: older results leave the approved slots before anything runs (contract: Marker)."""

from __future__ import annotations

import os

from commands.plan_runs import markers
from commands.plan_runs.results import RESULT
from commands.plan_runs.rooted import kind_of, make_folder, move_file, remove_file, same_file, write_file
from commands.plan_runs.run_ledger import Run, completed, read_documents, require_owner
from ledger.errors import Refused
from projections.times import print_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from projections.engine import Proposal, World
    from projections.plan_run import Claim, State

HISTORY = "result-history"


def archive_name(digest: str) -> str:
    """The archived result's name, from the plan's digest."""
    return f"pre-{digest[:20]}.json"


def file_digest(root: str, name: str) -> str:
    """BLAKE3 of a regular file of any size, read in pieces; `Refused` for a link or anything else."""
    from blake3 import blake3

    if kind_of(root, name) != "file":
        raise Refused(f"{root}/{name}: is no regular file; move it away and run this again")
    digest = blake3()
    handle = os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while piece := os.read(handle, 1 << 20):
            digest.update(piece)
    finally:
        os.close(handle)
    return digest.hexdigest()


class Slot:
    """One approved item's slot before the stamp: where its older result lies (`current`, `archived` or nowhere)."""

    __slots__ = ("archive", "current", "digest", "key", "where")

    def __init__(self, run_dir: str, key: str, digest: str) -> None:
        self.key = key
        self.current = f"{key}/{RESULT}"
        self.archive = f"{key}/{HISTORY}/{archive_name(digest)}"
        has_current, has_archive = kind_of(run_dir, self.current), kind_of(run_dir, self.archive)
        self.where = "current" if has_current else "archived" if has_archive else ""
        if has_current and has_archive:
            if not same_file(run_dir, self.current, self.archive):
                raise Refused(
                    f"{run_dir}/{self.current} and {run_dir}/{self.archive} both stand before the stamp; "
                    "neither was touched, move one away"
                )
            self.where = "linked"
        place = self.current if self.where == "current" else self.archive
        self.digest = file_digest(run_dir, place) if self.where else ""

    def clear(self, run_dir: str) -> None:
        """The older result lies in the archive afterwards, and only there; done again it changes nothing."""
        if self.where == "current":
            make_folder(run_dir, f"{self.key}/{HISTORY}")
            move_file(run_dir, self.current, self.archive)
        elif self.where == "linked":
            remove_file(run_dir, self.current)


class Preparing:
    """One call of the preparation gate."""

    __slots__ = ("archived", "idempotent", "keys", "run", "slots")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.slots: list[Slot] = []
        self.idempotent = False
        self.archived = 0
        self.keys: list[str] = []

    def decide(self, world: World) -> list[Proposal]:
        """The events of this preparation: what is archived, then `marker.prepared`; none when it stands already."""
        from projections.engine import Proposal
        from projections.plan_run_events import Archived, Prepared

        run_dir = self.run.folder.path
        documents = read_documents(self.run.folder)
        state, claim = require_owner(self.run, world, documents, prepared=False)
        marker = markers.read_marker(run_dir)
        assert marker is not None
        self.keys = markers.approved_keys(documents.plan)
        is_stamped = marker.prepared_keys is not None
        if is_stamped and claim.keys is None and not claim.adopted:
            raise Refused(
                f"{run_dir}/{markers.MARKER}: is stamped, the log knows no preparation of this claim; it is kept for inspection"
            )
        if is_stamped and marker.prepared_keys != self.keys:
            raise Refused(
                f"{run_dir}/{markers.MARKER}: prepared other keys than the plan approves; it is kept for inspection"
            )
        self.idempotent = is_stamped
        if not is_stamped:
            self.slots = [Slot(run_dir, key, claim.digest) for key in self.keys]
        if claim.keys is not None:
            self._check_same(state, claim)
        stream = self.run.stream(world.reader)
        if claim.is_ready:
            self.archived = claim.archived
            return []
        self.archived = self._archived(claim, marker)
        moves = [] if claim.keys is not None else [slot for slot in self.slots if slot.where]
        name = archive_name(claim.digest)
        prepared_at = (
            claim.prepared_at or marker.fields.get("results_prepared_at") or print_time(self.run.now)
        )
        return [
            *(
                Proposal(
                    stream,
                    "result.archived",
                    Archived(slot.key, name, slot.digest, claim.nonce),
                    causation=claim.seq,
                )
                for slot in moves
            ),
            Proposal(
                stream,
                "marker.prepared",
                Prepared(self.run.session, claim.nonce, prepared_at, self.archived, tuple(self.keys)),
                causation=claim.seq,
            ),
        ]

    def _archived(self, claim: Claim, marker: markers.Marker) -> int:
        if claim.keys is not None:
            return claim.archived
        if marker.prepared_keys is not None:
            # The marker of another tool, adopted: its own preparation is the one that counts.
            return int(marker.fields["results_archive_count"])
        return sum(1 for slot in self.slots if slot.where)

    def _check_same(self, state: State, claim: Claim) -> None:
        """A preparation that the log has and the stamp has not: what lies in the slots must be what was recorded."""
        for slot in self.slots:
            if slot.where and state.archived.get(slot.key) != slot.digest:
                raise Refused(
                    f"{self.run.folder.path}/{slot.current}: appeared after preparation {claim.prepared_at} and before its stamp; move it away"
                )

    def move_and_stamp(self) -> None:
        """After the events: the moves, then the stamp. Crash anywhere here: the next call does what is left."""
        run_dir = self.run.folder.path
        for slot in self.slots:
            slot.clear(run_dir)
        claim = self.run.state(self.run.look()).claim
        marker = markers.read_marker(run_dir)
        if claim is None or claim.keys is None or marker is None or marker.prepared_keys is not None:
            return
        fields = {**marker.fields, "claim_nonce": claim.nonce}
        write_file(
            run_dir,
            markers.MARKER,
            markers.stamped_marker(fields, claim.prepared_at, claim.archived, claim.keys),
        )


def prepare_results(
    run: Run | str, *, session: str | None = None, ledger: str | None = None
) -> dict[str, Any]:
    """Clears the approved slots and stamps the marker; idempotent. The document that `run prepare-results` prints.

    `run` may be the run directory's path; then `session` and `ledger` are as for `--session` and `--ledger`.
    """
    if not isinstance(run, Run):
        return _prepare_directory(run, session, ledger)
    completed(run, read_documents(run.folder))
    preparing = Preparing(run)
    run.submit(preparing.decide, then=preparing.move_and_stamp)
    from commands.plan_runs.recording import defer_unapproved

    defer_unapproved(run)
    return {
        "prepared": True,
        "idempotent": preparing.idempotent,
        "archived": preparing.archived,
        "prepared_approved_result_keys": preparing.keys,
    }


def _prepare_directory(run_dir: str, session: str | None, ledger: str | None) -> dict[str, Any]:
    from commands.context import Context
    from commands.plan_runs.owner import current_authorization_session

    context = Context("run prepare-results")
    context.ledger_given = ledger
    try:
        return prepare_results(Run(context, run_dir, session=current_authorization_session(session)))
    finally:
        context.close()
