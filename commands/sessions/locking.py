"""Taking a session's lock: the file first, then the event; a dead owner's lock is recovered only when told to.

Contract `review-sessions`, Start; DESIGN, Views.
"""

from __future__ import annotations

import os

from commands.sessions.lock_file import check_folders, make_lock, read_lock, remove_dead_lock, remove_lock
from commands.sessions.owner import ALIVE, DEAD, ELSEWHERE, Owner
from commands.sessions.request import Question, ask
from commands.sessions.writer import Writer, digest, new_token
from ledger.errors import Conflict, Invalid
from projections import session_events as e
from projections.engine import World, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.sessions.config import Config
    from commands.sessions.request import Request
    from ledger.access import Ledger
    from projections.session import State

_CLAIM_WAIT = 10_000_000  # us after which a claim without its event is no start under way


def lock(context: Context, ledger: Ledger, request: Request, config: Config) -> tuple[Writer, str]:
    """Take the session's lock; (writer under the new fence, owner token).

    Raises:
        Conflict: its owner lives, or another start was faster. Question: its owner is dead and nobody answered.
    """
    uuid, root = request.uuid, request.root
    check_folders(root)
    state: State = state_of(ledger, f"session/{uuid}")[0]
    if state.lock is not None and state.lock.seq < World(ledger.store.reader()).void_before:
        state.lock = None  # the ledger was restored since: nothing open survives that
    recovered = _clear_way(request, state)
    nonce = os.urandom(16).hex()
    token = new_token(uuid)
    started_at = _now()
    made = make_lock(
        root, uuid, request.owner, started_at=started_at, entry_point=request.entry_point,
        stop_after=request.stop_after, nonce=nonce,
    )  # fmt: skip
    if not made:
        raise _held(read_lock(root, uuid), uuid)
    writer = Writer(context, ledger, root, uuid, 0, config)
    try:
        # Crash here: a lock file whose nonce no event carries, of a dead process: the next start redoes it.
        fence = _record_lock(writer, request, state, recovered, nonce, token)
    except BaseException:
        remove_lock(root, uuid, nonce)
        raise
    writer.fence = fence
    return writer, token


def _record_lock(
    writer: Writer, request: Request, seen: State, recovered: str, nonce: str, token: str
) -> int:
    from projections.engine import Proposal, submit

    owner = request.owner
    fence = 0

    def decide(world: object) -> list[Proposal]:
        nonlocal fence
        state: State = world.state(writer.stream)  # type: ignore[attr-defined]
        if state.fence != seen.fence:
            raise Conflict(f"session {request.uuid}: another start was faster")
        fence = state.fence + 1
        proposals = []
        if state.lock is not None and state.lock.seq >= world.void_before:  # type: ignore[attr-defined]
            proposals.append(
                Proposal(writer.stream, "session.lock_recovered", e.LockRecovered(state.fence, recovered))
            )
        locked = e.Locked(
            fence, request.uuid, nonce, digest(token.encode()), request.attached, owner.pid, owner.started, owner.boot,
            owner.namespace, owner.host, request.entry_point, request.stop_after, request.runtime, request.handsfree,
        )  # fmt: skip
        return [*proposals, Proposal(writer.stream, "session.locked", locked)]

    submit(writer.ledger, writer.context.origin(), decide)
    return fence


def _clear_way(request: Request, state: State) -> str:
    """Judge the lock that stands, in the log and as a file; returns who answered a recovery ('' for none).

    Raises:
        Conflict: its owner lives (exit 5). Question: its owner is dead and nobody said --recover-lock (exit 4).
    """
    file = read_lock(request.root, request.uuid)
    answered = ""
    if state.lock is not None:
        owner = Owner(
            state.lock.owner_pid,
            state.lock.owner_started,
            state.lock.boot,
            state.lock.namespace,
            state.lock.host,
        )
        answered = _judge(owner.standing(), request, owner.pid, _time(state.lock.clock))
    if file is not None:
        ours = state.lock is not None and file.nonce == state.lock.nonce
        standing = file.standing()
        leftover = bool(file.nonce) and not ours and (standing == DEAD or _is_old(file.started_at))
        if not ours and not leftover:
            answered = _judge(standing, request, file.owner.pid, file.started_at) or answered
        # Dead: ours from before a crash, a claim without its event, or an older tool's that was recovered.
        remove_dead_lock(request.root, request.uuid, file)
    return answered or "crashed-claim"


def _is_old(started_at: str) -> bool:
    """Whether a claim is too old to be a start that is still under way: its event would be there by now."""
    from ledger.clock import now_us
    from projections.times import parse_time

    try:
        return now_us() - parse_time(started_at) > _CLAIM_WAIT
    except Invalid:
        return False


def _judge(standing: str, request: Request, pid: int, since: str) -> str:
    who = f"session {request.uuid} is locked by pid {pid} since {since}"
    if standing == ALIVE:
        raise Conflict(f"{who}, which is running; wait, or end it there")
    if request.recover_lock:
        return "flag"
    if standing == ELSEWHERE:
        raise Conflict(
            f"{who} on another host or in another pid namespace; if it is gone, add --recover-lock"
        )
    answer = None if request.handsfree else ask(f"{who}, which is gone. Recover and go on?", ("y", "n"))
    if answer == "y":
        return "person"
    raise Question(f"{who}, which is gone (a crash); add --recover-lock to take it over")


def _held(file: object, uuid: str) -> Conflict:
    pid = getattr(getattr(file, "owner", None), "pid", "?")
    since = getattr(file, "started_at", "now")
    return Conflict(f"session {uuid} is locked by pid {pid} since {since}; another start was faster")


def _now() -> str:
    from ledger.clock import format_us, now_us

    return format_us(now_us())


def _time(clock: int) -> str:
    from ledger.clock import format_us

    return format_us(clock)
