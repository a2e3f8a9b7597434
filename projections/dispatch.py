"""The dispatch aggregate, `dispatch/<request>`: one bounded request, its attempts, its proof and its end.

Contract page dispatch, A request and its result. A stream is a request (by what stays the same when approvals are
filled in), so a crashed run finds itself again; once concluded or blocked, the same request may be made anew.
Paths, tools and what needs approval stand here as marks: digests salted by the request's own.
"""

from __future__ import annotations

from msgspec import Struct, field

from projections.cooldowns import REASONS
from projections.dispatch_events import (
    BLOCKED,
    ENDINGS,
    EVENTS,
    HEALTHY,
    MARK,
    REQUEST,
    RUN,
    SANDBOXES,
    SKIPS,
    STATUSES,
    VIOLATIONS,
    Approved,
    Attempted,
    Blocked,
    Concluded,
    Needed,
    Recalled,
    Requested,
    Returned,
    Selected,
    Verified,
)
from projections.fact import Fact, Law, digest_text
from projections.times import parse_time

INDEPENDENT = "independent"
KIND = "dispatch"
FOLD = "dispatch/1"
__all__ = [
    "EVENTS",
    "FOLD",
    "KIND",
    "STATES",
    "VIEWS",
    "State",
    "admit",
    "approval_statement",
    "evolve",
    "initial",
    "rows",
    "show",
    "unselectable",
    "voided",
    "wider",
]


class Attempt(Struct):
    """One attempt; `status` empty while it has no end, `lost` when the request allowed to go on without one."""

    number: int
    seq: int
    candidate: str
    provider: str
    executor: str
    sandbox: str
    worker: str
    dispatcher: str
    paths: tuple[str, ...]
    tools: tuple[str, ...]
    approvals: tuple[int, ...]
    status: str = ""
    reason: str = ""
    returned_seq: int = 0
    returned_by: str = ""
    target: str = ""
    violation: str = ""
    good: bool = False


class State(Struct):
    """Where the request stands: `phase` new, open, blocked or concluded. `approvals`: mark -> (seq, scope)."""

    phase: str = "new"
    request: Requested | None = None
    requested_seq: int = 0
    selection: Selected | None = None
    resolution: str = ""
    fallback_reason: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    verified_seq: int = 0
    proven: bool = False
    failures: int = 0
    status: str = ""
    ended_seq: int = 0
    recalled: bool = False
    captured: bool = False
    approvals: dict[str, tuple[int, str]] = field(default_factory=dict)
    nonces: list[str] = field(default_factory=list)

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that has no end yet."""
        return self.attempts[-1] if self.attempts and not self.attempts[-1].status else None

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def unavailable(self) -> list[str]:
        """The candidates dispatched and recorded as unavailable, in order: what a selection calls attempted."""
        return [attempt.candidate for attempt in self.attempts if attempt.status == "availability_failure"]

    @property
    def left(self) -> list[str]:
        """The executors that turned out to be missing."""
        return [attempt.executor for attempt in self.attempts if attempt.status == "missing_executor"]

    def outstanding(self, void_before: int = 0) -> list[Needed]:
        """What still needs an approval: neither named by the request with its true seq, nor recorded since."""
        if self.request is None:
            return []
        return [
            needed
            for needed in self.request.approvals
            if (found := self.approvals.get(needed.what)) is None
            or found[0] < void_before
            or needed.approval_seq not in (0, found[0])
        ]

    def granted(self) -> tuple[int, ...]:
        """The approvals that the request rests on, by seq."""
        if self.request is None:
            return ()
        return tuple(
            sorted(self.approvals[n.what][0] for n in self.request.approvals if n.what in self.approvals)
        )


def initial(_stream: str) -> State:
    """A request nobody has made yet."""
    return State()


def evolve(state: State, fact: Fact) -> State:
    """The request after one event."""
    data = fact.data
    if isinstance(data, Requested):
        kept = {
            what: entry
            for what, entry in state.approvals.items()
            if entry[0] > state.ended_seq or entry[1] == REQUEST
        }
        return State("open", data, fact.seq, approvals=kept, nonces=state.nonces)
    if isinstance(data, Approved):
        state.approvals[data.what] = (fact.seq, data.scope)
        state.nonces.append(data.nonce)
    elif isinstance(data, Selected):
        if state.open_attempt is not None:
            state.open_attempt.status = "lost"
        state.selection, state.resolution, state.fallback_reason = data, data.resolution, data.reason
    elif isinstance(data, Attempted):
        state.selection = None
        state.attempts.append(
            Attempt(
                data.attempt, fact.seq, data.candidate, data.provider, data.executor, data.sandbox, data.worker,
                fact.actor, data.paths, data.tools, data.approvals,
            )
        )  # fmt: skip
    elif isinstance(data, Returned):
        attempt = state.attempts[-1]
        attempt.status, attempt.reason, attempt.returned_seq = data.status, data.reason, fact.seq
        attempt.returned_by, attempt.target, attempt.violation = fact.actor, data.target, data.violation
        attempt.good = data.status == "succeeded" and not data.violation and not data.unchanged_artifacts
        state.verified_seq, state.proven = 0, False
    elif isinstance(data, Verified):
        state.verified_seq, state.proven = fact.seq, data.proven
        state.failures += not data.proven
    elif isinstance(data, Blocked):
        state.phase, state.status, state.ended_seq = "blocked", "blocked", fact.seq
    elif isinstance(data, Concluded):
        state.phase, state.status, state.ended_seq = "concluded", data.status, fact.seq
    elif isinstance(data, Recalled):
        state.recalled = True
    else:
        state.captured = True
    return state


def admit(state: State, fact: Fact, law: Law) -> None:
    """The lawful order: request, (select, attempt, return)*, verify, conclude; never wider, never repeated in silence."""
    _JUDGES[fact.type](state, fact, law)


def _requested(state: State, fact: Fact, law: Law) -> None:
    data = fact.data
    if state.phase == "open":
        law.refuse(fact, "the request is open already")
    if fact.stream != f"dispatch/{data.request[:MARK]}":
        law.refuse(fact, "the stream is not the request's")
    for digest in (data.request, data.digest, data.oracle, data.folder):
        digest_text(digest, fact)
    if data.sandbox not in SANDBOXES or (data.sandbox == "read-only") != (not data.paths):
        law.refuse(fact, "the sandbox does not fit the allowed paths")
    if data.context_mode not in ("fresh", "fork", "hybrid"):
        law.refuse(fact, "unknown context mode")
    if data.route == INDEPENDENT and not data.authoring_providers:
        law.refuse(fact, "an independent route needs the authoring providers")


def _blocked(state: State, fact: Fact, law: Law) -> None:
    data = fact.data
    digest_text(data.request, fact)
    if fact.stream != f"dispatch/{data.request[:MARK]}":
        law.refuse(fact, "the stream is not the request's")
    if data.reason not in BLOCKED:
        law.refuse(fact, "unknown reason")
    _same_request(state, fact, law)
    if state.phase == "open" and state.open_attempt is not None:
        law.refuse(fact, "an attempt has no end yet")
    if (
        state.phase == "open"
        and state.last is not None
        and state.last.status not in ("availability_failure", "missing_executor", "lost")
    ):
        law.refuse(fact, "an attempt has returned; it is concluded, not blocked")


def _same_request(state: State, fact: Fact, law: Law) -> None:
    """The stream's name has a part of the digest only."""
    if state.request is not None and state.request.request != fact.data.request:
        law.refuse(fact, "the request is not the stream's")


def _approved(state: State, fact: Fact, law: Law) -> None:
    from projections.authority import admit_signature

    data = fact.data
    digest_text(data.request, fact)
    digest_text(data.what, fact, MARK)
    if fact.stream != f"dispatch/{data.request[:MARK]}":
        law.refuse(fact, "the stream is not the request's")
    _same_request(state, fact, law)
    if data.scope not in (RUN, REQUEST):
        law.refuse(fact, "the scope must be run or request")
    if not data.nonce or data.nonce in state.nonces:
        law.refuse(fact, "the nonce was used before")
    admit_signature(fact, law, data.nonce, data.expires_at, data.principal, data.signature)


def _must_be_open(state: State, fact: Fact, law: Law) -> Requested:
    if state.phase != "open" or state.request is None:
        law.refuse(fact, "the request is not open", f"{fact.stream} is {state.phase}; open it first")
    if law.is_void(state.requested_seq):
        law.refuse(
            fact,
            "the request was voided by a restore",
            "the ledger was restored since; conclude it as abandoned",
        )
    return state.request


def unselectable(state: State, request: Requested) -> str:
    """Why no candidate at all may be selected for the open `request` now, empty when one may."""
    last = state.last
    if last is None:
        return ""
    if not last.status and not request.repeatable:
        return "an attempt has no end and the request may not be repeated"
    if last.status not in ("", "lost", "availability_failure", "missing_executor"):
        return "only an outage or a missing executor changes the candidate"
    return "an attempt broke its authority; no other candidate follows it" if last.violation else ""


def _selected(state: State, fact: Fact, law: Law) -> None:
    request, data = _must_be_open(state, fact, law), fact.data
    why = unselectable(state, request)
    if why:
        law.refuse(fact, why)
    if data.candidate in state.unavailable:
        law.refuse(fact, "the candidate was attempted and is unavailable")
    if data.executor in state.left:
        law.refuse(fact, "the executor is missing")
    if data.resolution not in ("primary", "fallback"):
        law.refuse(fact, "the resolution is primary or fallback")
    if (data.resolution == "primary") != (not data.skipped) or bool(data.skipped) != bool(data.reason):
        law.refuse(fact, "a fallback says what was skipped and why, a primary skips nothing")
    if request.route == INDEPENDENT and data.provider in request.authoring_providers:
        law.refuse(fact, "the candidate is of an authoring provider")
    if any(passed.reason not in SKIPS for passed in data.passed):
        law.refuse(fact, "unknown reason to pass a candidate over")


def _attempted(state: State, fact: Fact, law: Law) -> None:
    request, data = _must_be_open(state, fact, law), fact.data
    chosen = state.selection
    if chosen is None:
        law.refuse(fact, "no candidate is selected for it")
    if (data.candidate, data.provider, data.executor) != (chosen.candidate, chosen.provider, chosen.executor):
        law.refuse(fact, "the candidate is not the selected one")
    if data.attempt != len(state.attempts) + 1:
        law.refuse(fact, "attempts are counted 1, 2, 3")
    if state.outstanding(law.void_before):
        law.refuse(fact, "an approval is outstanding")
    if data.approvals != state.granted():
        law.refuse(fact, "the approvals are not those recorded")
    if not data.worker or data.worker == fact.actor:
        law.refuse(fact, "the worker must be another actor than the one who dispatches it")
    for digest in (data.packet, data.pins):
        digest_text(digest, fact)
    if wider(data, request) or any(wider(data, earlier) for earlier in state.attempts):
        law.refuse(fact, "the attempt is wider than the request or an earlier attempt")


def wider(attempt: Attempted, ceiling: Requested | Attempt) -> bool:
    """Whether `attempt` may do anything that `ceiling` does not allow."""
    if attempt.sandbox not in SANDBOXES or SANDBOXES.index(attempt.sandbox) > SANDBOXES.index(
        ceiling.sandbox
    ):
        return True
    return not (set(attempt.paths) <= set(ceiling.paths) and set(attempt.tools) <= set(ceiling.tools))


def _returned(state: State, fact: Fact, law: Law) -> None:
    _must_be_open(state, fact, law)
    data, attempt = fact.data, state.open_attempt
    if attempt is None or data.attempt != attempt.number:
        law.refuse(fact, "no such attempt is open")
    if (
        data.status not in ENDINGS
        or data.violation not in VIOLATIONS
        or data.changed < 0
        or data.unchanged_artifacts < 0
    ):
        law.refuse(fact, "unknown ending")
    if (data.status == "availability_failure") != (data.reason in REASONS) or (
        data.reason and data.reason not in REASONS
    ):
        law.refuse(fact, "an outage has one of four reasons, nothing else has")
    if data.retry_at:
        parse_time(data.retry_at)
        if data.reason != "quota":
            law.refuse(fact, "only quota has a retry time")
    if data.healthy and data.status not in HEALTHY:
        law.refuse(fact, "such an ending proves no health")
    digest_text(data.target, fact)


def _did_it(attempt: Attempt, actor: str) -> bool:
    """Whether `actor` is the executor: the worker named, or who came back with the work instead of its dispatcher."""
    return actor == attempt.worker or actor == attempt.returned_by != attempt.dispatcher


def _verified(state: State, fact: Fact, law: Law) -> None:
    request, data, attempt = _must_be_open(state, fact, law), fact.data, state.last
    if attempt is None or not attempt.status or data.attempt != attempt.number:
        law.refuse(fact, "only a returned attempt is verified")
    if not attempt.good:
        law.refuse(fact, "the attempt did not succeed inside its authority")
    if _did_it(attempt, fact.actor):
        law.refuse(fact, "the executor does not verify its own work")
    kept = data.target == attempt.target and data.oracle == request.oracle
    held = data.ended == "exit" and data.exit == data.expected_exit and data.contains and not data.withheld
    if data.proven != (kept and held):
        law.refuse(fact, "proven is what the evidence says")


def _concluded(state: State, fact: Fact, law: Law) -> None:
    data = fact.data
    if state.phase != "open":
        law.refuse(fact, "the request is not open", f"{fact.stream} is {state.phase}")
    if data.status not in STATUSES or data.attempts != len(state.attempts):
        law.refuse(fact, "unknown status, or not the number of attempts")
    last = state.last
    if data.status == "accepted":
        if last is None or not (state.proven and state.verified_seq > last.returned_seq > 0):
            law.refuse(fact, "accepted needs a proof since the last return")
        _must_be_open(state, fact, law)
        if _did_it(last, fact.actor):
            law.refuse(fact, "the executor does not accept its own work")
    elif data.status == "failed" and (last is None or not last.status):
        law.refuse(fact, "nothing has returned that could have failed")
    elif data.status == "blocked":
        law.refuse(fact, "a block is recorded as dispatch.blocked")


def _recalled(state: State, fact: Fact, law: Law) -> None:
    _must_be_open(state, fact, law)
    if state.attempts:
        law.refuse(fact, "recall comes before the first attempt")


def _captured(state: State, fact: Fact, law: Law) -> None:
    if state.phase != "concluded" or state.status != "accepted" or not state.proven:
        law.refuse(fact, "memory is captured only after a proven and accepted result")
    if state.captured:
        law.refuse(fact, "memory was captured already")


_JUDGES = {
    "dispatch.requested": _requested,
    "dispatch.blocked": _blocked,
    "dispatch.approved": _approved,
    "route.selected": _selected,
    "dispatch.attempted": _attempted,
    "dispatch.returned": _returned,
    "dispatch.verified": _verified,
    "dispatch.concluded": _concluded,
    "memory.recalled": _recalled,
    "memory.captured": _captured,
}


VIEWS = {
    "dispatches": {
        "id": str,
        "phase": str,
        "status": str,
        "route": str,
        "sandbox": str,
        "attempts": int,
        "unended_attempt": int,
        "proven": int,
        "verification_failures": int,
        "resolution": str,
        "fallback_reason": str,
        "outstanding_approvals": int,
        "request": str,
    },
    "attempts": {
        "id": str,
        "attempt": int,
        "candidate": str,
        "provider": str,
        "executor": str,
        "sandbox": str,
        "worker": str,
        "status": str,
        "reason": str,
        "violation": str,
        "seq": int,
        "returned_seq": int,
    },
}


def _row(stream: str, state: State) -> dict[str, object]:
    request, unended = state.request, state.open_attempt
    return {
        "id": stream.partition("/")[2],
        "phase": state.phase,
        "status": state.status if state.phase != "open" else "",
        "route": request.route if request else "",
        "sandbox": request.sandbox if request else "",
        "attempts": len(state.attempts),
        "unended_attempt": unended.number if unended else None,
        "proven": state.proven,
        "verification_failures": state.failures,
        "resolution": state.resolution,
        "fallback_reason": state.fallback_reason,
        "outstanding_approvals": len(state.outstanding()),
        "request": request.request if request else "",
    }


def _attempt_rows(stream: str, state: State) -> list[dict[str, object]]:
    return [
        {
            "id": stream.partition("/")[2],
            "attempt": attempt.number,
            "candidate": attempt.candidate,
            "provider": attempt.provider,
            "executor": attempt.executor,
            "sandbox": attempt.sandbox,
            "worker": attempt.worker,
            "status": attempt.status or "no end",
            "reason": attempt.reason,
            "violation": attempt.violation,
            "seq": attempt.seq,
            "returned_seq": attempt.returned_seq or None,
        }
        for attempt in state.attempts
    ]


def show(stream: str, state: State) -> dict[str, object]:
    """One dispatch as `state dispatches` prints it; an attempt without an end says so."""
    attempts = [
        {name: value for name, value in row.items() if name != "id"} for row in _attempt_rows(stream, state)
    ]
    return {**_row(stream, state), "attempts": attempts}


def voided(state: State, before: int) -> State:
    """The dispatch after a restore at event `before`: an approval from before it is outstanding again."""
    from msgspec.structs import replace

    kept = {what: found for what, found in state.approvals.items() if found[0] >= before}
    return replace(state, approvals=kept)


STATES = {"dispatches": show}


def rows(stream: str, state: State) -> dict[str, list[dict[str, object]]]:
    """The rows of `dispatches` and `attempts`."""
    return {"dispatches": [_row(stream, state)], "attempts": _attempt_rows(stream, state)}


def approval_statement(ledger_id: str, stream: str, data: Approved) -> bytes:
    """The exact bytes that an approval's signature covers."""
    from projections.authority import statement

    fields = ("request", "what", "scope", "nonce", "expires_at")
    return statement(ledger_id, "dispatch.approved", stream, {name: getattr(data, name) for name in fields})
