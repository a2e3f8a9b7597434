"""The events of a dispatch: what each says, and the words it may say it in (contract page dispatch).

Paths, tools and what needs approval stand here as marks: digests salted by the request's own.
"""

from __future__ import annotations

from msgspec import Struct

SANDBOXES = ("read-only", "paths", "workspace-write")  # from the narrowest
STATUSES = ("accepted", "failed", "blocked", "abandoned")
BLOCKED = (
    "malformed", "secret", "blockers", "directory", "paths", "tools", "rubric", "route", "context_mode", "approval",
    "enforcement", "exhausted", "executor",
)  # fmt: skip
ENDINGS = (
    "succeeded",
    "availability_failure",
    "missing_executor",
    "failed",
    "refused",
    "not_started",
    "timed_out",
    "killed",
)
HEALTHY = ("succeeded", "failed")
VIOLATIONS = ("", "commit", "refs", "stash", "config", "push", "path")
SKIPS = ("outstanding_approval", "unenforced_paths")
RUN, REQUEST = "run", "request"
MARK = 32


class Needed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something the request says needs approval, as a mark; `approval_seq` 0 while it is outstanding."""

    what: str
    approval_seq: int = 0


class Requested(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request was opened; content: the request. `oracle`: the digest of the files that the seam itself is made of."""

    request: str
    digest: str
    size: int
    route: str
    context_mode: str
    sandbox: str
    folder: str
    oracle: str
    paths: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    approvals: tuple[Needed, ...] = ()
    artifacts: int = 0
    repeatable: bool = False
    authoring_providers: tuple[str, ...] = ()


class Blocked(Struct, frozen=True, forbid_unknown_fields=True):
    """Nobody may work on it; content: the complete result."""

    request: str
    reason: str


class Approved(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A person approved `what` (a mark; the words are content), for the next run or for every run of the request."""

    request: str
    what: str
    scope: str
    nonce: str
    expires_at: str = ""
    principal: str = ""
    signature: str = ""


class Passed(Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate passed over because it cannot keep to the request's authority: no attempt, no circuit."""

    candidate: str
    reason: str


class Selected(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The candidate for the next attempt. `state_*`: the ledger of the circuits it was judged by, as it stood then."""

    candidate: str
    provider: str
    executor: str
    resolution: str
    reason: str = ""
    skipped: tuple[str, ...] = ()
    passed: tuple[Passed, ...] = ()
    probe: bool = False
    state_ledger: str = ""
    state_seq: int = 0
    state_hash: str = ""


class Attempted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The selected candidate is set to work; content: packet and pins. `worker` is the actor it would write as."""

    attempt: int
    candidate: str
    provider: str
    executor: str
    sandbox: str
    worker: str
    packet: str
    pins: str
    paths: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    approvals: tuple[int, ...] = ()


class Returned(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The attempt ended; content: report and changed files. `target`: the digest of what must not change until verified."""

    attempt: int
    status: str
    target: str
    reason: str = ""
    retry_at: str = ""
    violation: str = ""
    changed: int = 0
    unchanged_artifacts: int = 0
    healthy: bool = False
    state_ledger: str = ""
    state_seq: int = 0
    state_hash: str = ""


class Verified(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The seam was run again by us; content: its output, bounded. `ended`: `exit`, or why there is no exit status.

    `withheld`: the output carries what looks like a credential, so it is no evidence.
    """

    attempt: int
    proven: bool
    ended: str
    target: str
    oracle: str
    exit: int = 0
    expected_exit: int = 0
    contains: bool = True
    withheld: bool = False
    output_size: int = 0


class Concluded(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of this run of the request; content: the complete result."""

    status: str
    attempts: int


class Recalled(Struct, frozen=True, forbid_unknown_fields=True):
    """What memory gave before the dispatch, bounded; content: the text."""

    size: int
    truncated: bool


class Captured(Struct, frozen=True, forbid_unknown_fields=True):
    """What memory was given after acceptance; content: the intents."""

    count: int


EVENTS = {
    "dispatch.requested": Requested,
    "dispatch.blocked": Blocked,
    "dispatch.approved": Approved,
    "route.selected": Selected,
    "dispatch.attempted": Attempted,
    "dispatch.returned": Returned,
    "dispatch.verified": Verified,
    "dispatch.concluded": Concluded,
    "memory.recalled": Recalled,
    "memory.captured": Captured,
}


def mark(request: str, text: str) -> str:
    """A path, tool or approval as it stands in events: a digest that only the request's own digest makes guessable."""
    from blake3 import blake3

    return blake3(f"{request}\0{text}".encode("utf-8", "surrogateescape")).hexdigest()[:MARK]
