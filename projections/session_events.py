"""What a review session records: one struct an event type (contract `review-sessions`; vocabulary of contract `ledger`).

Trees, reports, prompts and plans are content; data has their digests and what the rules need. `fence` is the
number of the lock under which an event was written.
"""

from __future__ import annotations

from msgspec import Struct


class Tree(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A moment of index and work tree: HEAD (or `unborn`), the digest of the dirty entries, the fingerprint."""

    head: str
    dirty_digest: str
    fingerprint: str


class Pinned(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings that can lower a gate; a change of them in mid-session is drift."""

    skip_paths: list[str]
    skip_quality_polish: bool
    soft_limit_exec: int


class Opened(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new session. Content: JSON {file, title, entries}."""

    fence: int
    uuid: str
    entry_point: str
    plan_source: str
    tree: Tree
    pinned: Pinned


class Imported(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session file of another tool (or one it changed). Content: the file's bytes. `missing`: baseline fields it lacks."""

    fence: int
    uuid: str
    entry_point: str
    plan_source: str
    file_digest: str
    size: int
    base_head: str
    verified_head: str
    tree: Tree
    pinned: Pinned
    session_commits: list[str] = []
    stages: list[str] = []
    blocked_by: str = ""
    missing: list[str] = []
    rounds: int = 0


class Locked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One writer took the session. `token_digest`: BLAKE3 of the owner token; the owner is a process on one boot."""

    fence: int
    uuid: str
    nonce: str
    token_digest: str
    attached: bool
    owner_pid: int
    owner_started: str
    boot: str
    namespace: str
    host: str
    entry_point: str
    stop_after: str
    runtime: str
    handsfree: bool = False


class Unlocked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The writer let go."""

    fence: int
    reason: str


class LockRecovered(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The lock of a dead owner was taken away; `answered_by`: flag, person, or crashed-claim."""

    fence: int
    answered_by: str


class Stopped(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A clean stop at a `--stop-after` point."""

    fence: int
    point: str


class Verified(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tree is the baseline now (`last_verified_*`). Content: JSON {entries}."""

    fence: int
    tree: Tree


class DriftDetected(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tree, or a pinned setting, is not what was last known. Content: JSON {details}."""

    fence: int
    reason: str
    tree: Tree


class DriftAccepted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Answer A: the current state becomes the baseline, all stages are cleared. Content: JSON {entries}."""

    fence: int
    reason: str
    answered_by: str
    tree: Tree
    pinned: Pinned
    principal: str = ""
    nonce: str = ""
    expires_at: str = ""
    signature: str = ""


class DriftAborted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Answer B: nothing changed."""

    fence: int
    reason: str


class RoundStarted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A round begins. `kind`: exec, or carry for the reviewer-only fast replay. Content: JSON {executor, reviewer} prompts."""

    fence: int
    round: int
    kind: str
    executor: bool
    plan_source: str
    block: str
    prompt_digest: str
    tree: Tree
    model: str = ""


class RoundExecuted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A valid executor report over the round's own delta. Content: JSON {report, paths, entries}."""

    fence: int
    round: int
    attempt: int
    report_digest: str
    report_size: int
    delta_digest: str
    delta_count: int
    noop: bool
    tree: Tree


class RoundReviewed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A valid reviewer report. `criticals`: short digests of the CRITICAL findings. Content: the report."""

    fence: int
    round: int
    attempt: int
    report_digest: str
    report_size: int
    verdict: str
    fingerprint: str
    criticals: list[str] = []
    minors: int = 0


class RoundRejected(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A report that counts for nothing; `reason` is its kind. Content: the report."""

    fence: int
    round: int
    role: str
    attempt: int
    reason: str
    report_digest: str


class GateReturned(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The one adversarial pass of a convergence. `reason`: of a SKIP. Content: the gate's text."""

    fence: int
    convergence: int
    verdict: str
    fingerprint: str
    text_digest: str
    reason: str = ""


class StepRecorded(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of 3.5 or 3.6. `paths`: what it wrote; outcome `started` stands before its program runs. Content: JSON {report, entries}."""

    fence: int
    stage: str
    step: str
    agent: str
    tool_uses: int
    outcome: str
    tree: Tree
    paths: list[str] = []
    diff_digest: str = ""
    eligible: bool = False


class Minted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stage holds for the tree and index of `fingerprint`; `by` says what it rests on."""

    fence: int
    stage: str
    fingerprint: str
    by: str


class Carried(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The kept stages hold for a new tree, because a reviewer approved an eligible write. `review`: that event's seq."""

    fence: int
    old: str
    new: str
    diff_digest: str
    review: int


class Cleared(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """No stage holds any more; a new convergence begins."""

    fence: int
    reason: str


class Scanned(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The security preflight: clean, halted (tracked secrets), planned and written (.gitignore). Content: JSON {flagged, entries}.

    `planned`: what `.gitignore` will be, `MODE SHA`, recorded before it is written.
    """

    fence: int
    outcome: str
    tree: Tree
    flagged: int = 0
    kinds: list[str] = []
    gaps: list[str] = []
    added: list[str] = []
    planned: str = ""


class Blocked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Delivery is blocked by a stage or the user's abort; `reason` is a short fixed text."""

    fence: int
    by: str
    reason: str


class Unblocked(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The block was lifted; `answered_by`: flag, person, stop-after or delivery."""

    fence: int
    was: str
    answered_by: str


class Committed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The delivery's commit object, recorded before HEAD moves to it. Content: JSON {paths, entries}."""

    fence: int
    sha: str
    parent: str
    tree_id: str
    count: int
    tree: Tree


class Completed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Delivered. Content: the summary."""

    fence: int
    fingerprint: str
    summary_digest: str


def approval_statement(ledger_id: str, stream: str, accepted: DriftAccepted) -> bytes:
    """The bytes that a signature of `drift.accepted` covers: what was found, and the state that becomes the baseline."""
    import msgspec

    from projections.authority import statement

    held = msgspec.to_builtins(accepted)
    names = ("fence", "reason", "answered_by", "tree", "pinned", "nonce", "expires_at")
    return statement(ledger_id, "drift.accepted", stream, {name: held.get(name, "") for name in names})


EVENTS = {
    "session.opened": Opened,
    "session.imported": Imported,
    "session.locked": Locked,
    "session.unlocked": Unlocked,
    "session.lock_recovered": LockRecovered,
    "session.stopped": Stopped,
    "baseline.verified": Verified,
    "drift.detected": DriftDetected,
    "drift.accepted": DriftAccepted,
    "drift.aborted": DriftAborted,
    "round.started": RoundStarted,
    "round.executed": RoundExecuted,
    "round.reviewed": RoundReviewed,
    "round.rejected": RoundRejected,
    "gate.returned": GateReturned,
    "stage.step_recorded": StepRecorded,
    "stage.minted": Minted,
    "stages.carried": Carried,
    "stages.cleared": Cleared,
    "security.scanned": Scanned,
    "delivery.blocked": Blocked,
    "delivery.unblocked": Unblocked,
    "commit.recorded": Committed,
    "delivery.completed": Completed,
}
