"""`session start|run|end|deliver|status`: the commands around a session's lock (contract `review-sessions`)."""

from __future__ import annotations

from commands.context import Context, emit, say
from commands.flags import Args, Command, Flag
from ledger.errors import Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer
    from projections.session import State

OWNER = Flag("--owner", "TOKEN", "the owner token that `session start` printed", required=True)
_OPENING = (
    Flag("--session", "UUID", "resume this session"),
    Flag("--plan", "TEXT|PATH", "execute this plan: a readable file's text, else the text itself"),
    Flag("--title", "T", "one line, with --plan"),
    Flag("--description", "D", "what was done, or what to look at"),
    Flag("--review-only", None, "review the work tree as it is"),
    Flag("--stop-after", "POINT", "stop cleanly there: exec-round, before-polish, before-docs, before-security, before-delivery, delivery (default)"),
    Flag("--handsfree", None, "never ask; never accepts drift by itself"),
    Flag("--accept-external-state", None, "UNSAFE: answers the two drift questions with A (take what is there now as the baseline), nothing else"),
    Flag("--runtime", "NAME", "claude (default) or codex"),
    Flag("--recover-lock", None, "take over the lock of a dead owner"),
    Flag("--continue", None, "go on although delivery was blocked"),
    Flag("--sign", None, "sign the acceptance of drift, where the authority policy wants it"),
    Flag("--key", "FILE", "the key to sign with (default: ssh-agent's)"),
    Flag("--statement-out", "FILE", "where there is drift: write the bytes to sign on another machine, and stop"),
    Flag("--statement", "FILE", "the bytes that were signed there"),
    Flag("--signature", "FILE", "their signature"),
    Flag("--abort", None, "leave a blocked session as it is"),
)  # fmt: skip


def _start(args: Args, context: Context) -> int:
    from commands.sessions.opening import start
    from commands.sessions.signals import exit_on_signals

    with exit_on_signals():
        writer, token, request = start(context, args, attached=False)
    document = status_document(writer.state(), context)
    emit(
        {
            "session": writer.uuid,
            "owner": token,
            "fence": writer.fence,
            "stop_after": request.stop_after,
            **document,
        }
    )
    return 0


def _run(args: Args, context: Context) -> int:
    from commands.sessions.agent_calls import ROUND_TIMEOUT
    from commands.sessions.drive import Programs, drive
    from commands.sessions.gate_run import split_command
    from commands.sessions.opening import release_after, start
    from commands.sessions.program import allowed_seconds
    from commands.sessions.signals import exit_on_signals

    for flag, value in (("--executor", args.executor), ("--reviewer", args.reviewer), ("--gate", args.gate)):
        if value is not None:
            split_command(value, flag)
    timeout = allowed_seconds(args.timeout, ROUND_TIMEOUT, "program")
    programs = Programs(args.executor, args.reviewer, args.gate, timeout)
    with exit_on_signals():
        writer, _, _ = start(context, args, attached=True)
        try:
            outcome = drive(writer, programs)
            writer.unlock("delivery" if outcome == "delivered" else "stop-after")
        except BaseException as error:
            release_after(writer, error)
            raise
    if args.json:
        emit({"session": writer.uuid, "outcome": outcome, **status_document(writer.state(), context)})
    elif outcome != "delivered":
        say(f"stopped after {outcome}; go on with: gatebook session run --session {writer.uuid} …")
    return 0


def _end(args: Args, context: Context) -> int:
    from commands.sessions.opening import settle
    from commands.sessions.writer import attach

    writer = attach(context, args.owner)
    settle(writer)
    writer.unlock("ended")
    emit({"session": writer.uuid, **status_document(writer.state(), context)})
    return 0


def _deliver(args: Args, context: Context) -> int:
    from commands.sessions.delivery import deliver
    from commands.sessions.progress import stops_here
    from commands.sessions.rounds import Capped
    from commands.sessions.view import refuse_foreign_change
    from commands.sessions.writer import attach

    writer = attach(context, args.owner)
    refuse_foreign_change(writer.ledger, writer.root, writer.uuid)
    state = writer.state()
    if state.lock is not None and stops_here(state, state.lock.stop_after):
        raise Refused(
            f"--stop-after {state.lock.stop_after} is reached: end the session's lock, then start again to go on"
        )
    try:
        summary = deliver(writer)
    except Capped:
        writer.unlock("blocked")
        raise
    writer.unlock("delivery")
    emit({"session": writer.uuid, "summary": summary, **status_document(writer.state(), context)})
    return 0


def _status(args: Args, context: Context) -> int:
    from commands.sessions.writer import check_uuid
    from projections.engine import state_of

    ledger = context.ledger()
    if args.session is not None:
        streams = [f"session/{check_uuid(args.session)}"]
    else:
        streams = ledger.store.reader().streams("session")
    documents = []
    for stream in streams:
        state: State = state_of(ledger, stream)[0]
        if not state.opened and state.lock is None:
            continue  # a start that found no such session left only its lock, given back
        documents.append({"session": state.uuid, **status_document(state, context)})
    if args.session is None:
        emit({"sessions": documents})
    elif not documents:
        raise Usage(f"there is no session {state.uuid} in this ledger")
    else:
        emit(documents[0])
    return 0


def status_document(state: State, context: Context) -> dict[str, object]:
    """A session as `session status` prints it, with the head it was folded from."""
    from commands.sessions.progress import next_action
    from projections.session import FOLD

    head = context.ledger().store.head()
    lock = state.lock
    return {
        "entry_point": state.entry_point or None,
        "plan_source": state.plan_source or None,
        "round": state.round,
        "completed_stages": list(state.stages),
        "delivery_blocked_by": state.blocked_by or None,
        "delivered": state.delivered,
        "commit": state.commit or None,
        "session_commits": list(state.session_commits),
        "locked_by": None if lock is None else lock.owner_pid,
        "next": next_action(state) if state.opened else None,
        "head": {"seq": head.seq, "hash": head.hash.hex(), "fold": FOLD},
    }


def held(writer: Writer, context: Context) -> dict[str, object]:
    """What a single-step command prints beside its own result."""
    document = status_document(writer.state(), context)
    return {
        "session": writer.uuid,
        **{k: document[k] for k in ("round", "completed_stages", "delivery_blocked_by", "next")},
    }


COMMANDS = {
    "session start": Command(
        _start,
        "Lock a session for an agent that calls one command per step; prints the owner token.",
        flags=(*_OPENING, Flag("--owner-pid", "PID", "the process whose life the lock follows (default: the calling agent)", number=True)),
        example="gatebook session start --plan plan.md --title 'Add retries'",
    ),
    "session run": Command(
        _run,
        "Drive a whole session with any agent's command line: rounds, gate, polish, docs, security, delivery.",
        flags=(
            Flag("--executor", "CMD", "gets the prompt on stdin, works in this tree, prints its report; {model} is filled in", required=True),
            Flag("--reviewer", "CMD", "gets the prompt on stdin, prints its report", required=True),
            Flag("--gate", "CMD", "the adversarial reviewer (without it the gate is skipped, and says so)"),
            *_OPENING,
            Flag("--timeout", "S", "seconds for one program (default: 3600)", number=True),
            Flag("--json", None, "print the session's end as one JSON document"),
        ),
        example="gatebook session run --plan plan.md --title 'Add retries' --executor 'codex exec -' --reviewer 'claude -p'",
    ),
    "session end": Command(
        _end, "Give the lock back; a tree that is as the session knows it becomes the baseline.", flags=(OWNER,),
        example="gatebook session end --owner TOKEN",
    ),
    "session deliver": Command(
        _deliver, "Deliver: every stage must stand for the tree as it is now.", flags=(OWNER,),
        example="gatebook session deliver --owner TOKEN",
    ),
    "session status": Command(
        _status, "One session, or all of them, as folded from the log.", flags=(Flag("--session", "UUID", "only this one"),),
        example="gatebook session status --session 0f8a…",
    ),
}  # fmt: skip
