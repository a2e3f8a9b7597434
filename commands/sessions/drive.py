"""`session run`: the whole loop with any agent's command, one action after another from the log (contract, Rounds).

Every action is decided from the folded state alone, so a run that was killed goes on where its log ends.
"""

from __future__ import annotations

from commands.context import say
from commands.sessions.advance import advance
from commands.sessions.agent_calls import call_agent, report, session_files, touched
from commands.sessions.gate_pass import pass_gate
from commands.sessions.progress import next_action, stops_here
from commands.sessions.rounds import (
    Capped,
    executed,
    live_line,
    reject_round,
    reviewed,
    round_prompts,
    start_round,
    stop_at_exec_cap,
    write_prompts,
)
from commands.sessions.step_programs import run_step
from commands.sessions.view import content_of, stream_events
from ledger.errors import Refused
from projections import session_events as e
from projections.engine import fact_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer
    from projections.session import State


class Programs:
    """The commands that a run was given."""

    __slots__ = ("executor", "gate", "reviewer", "timeout")

    def __init__(self, executor: str, reviewer: str, gate: str | None, timeout: float) -> None:
        self.executor = executor
        self.reviewer = reviewer
        self.gate = gate
        self.timeout = timeout


def drive(writer: Writer, programs: Programs) -> str:
    """Go on until the session is delivered or a stop point is reached; returns `delivered` or the stop point.

    Raises what stops it otherwise: Capped, Refused after a second invalid report, Unavailable for a program that failed.
    """
    state = writer.state()
    assert state.lock is not None
    stop_after = state.lock.stop_after
    while True:
        state = advance(writer)
        if stops_here(state, stop_after):
            return _stopped(writer, stop_after)
        action = next_action(state)
        if action == "done":
            from commands.sessions.delivery import recorded_summary

            say(recorded_summary(writer))
            return "delivered"
        word, _, rest = action.partition(" ")
        if word in ("executor", "reviewer", "gate"):
            report(f"running: {word}, round {state.round}")
        if word in ("round", "carry"):
            _begin_round(writer, state, word)
        elif word in ("executor", "reviewer"):
            _run_role(writer, state, word, programs)
        elif word == "gate":
            pass_gate(writer, programs.gate)
        elif word in ("polish", "docs"):
            run_step(writer, word, rest, programs.timeout)
        elif word == "security":
            _scan(writer)
        elif word == "delivery":
            from commands.sessions.delivery import deliver

            say(deliver(writer))
            return "delivered"
        else:
            raise Refused(_why_stuck(state, action))


def _why_stuck(state: State, action: str) -> str:
    if action == "failed":
        return f"round {state.round}: two reports in a row were invalid; look at the session file, then start again"
    return f"delivery is blocked by {state.blocked_by} ({state.blocked_reason}); resume with --continue"


def _stopped(writer: Writer, point: str) -> str:
    tree = writer.tree()

    def decide(state: State) -> list[tuple[str, object, bytes | None]]:
        batch: list[tuple[str, object, bytes | None]] = [
            ("session.stopped", e.Stopped(writer.fence, point), None),
            writer.verified(tree),
        ]
        if state.blocked_by:
            batch.append(
                ("delivery.unblocked", e.Unblocked(writer.fence, state.blocked_by, "stop-after"), None)
            )
        return batch

    writer.require_known_tree(writer.state())
    writer.record(decide)  # type: ignore[arg-type]
    return point


def _begin_round(writer: Writer, state: State, word: str) -> None:
    if word == "carry":
        start_round(writer, kind="carry", scope=last_diff(writer))
        return
    stop_at_exec_cap(writer)
    del state
    start_round(writer)


def last_diff(writer: Writer) -> str:
    """The diff that the last eligible write left."""
    steps = [
        event for event in stream_events(writer.ledger, writer.uuid) if event.type == "stage.step_recorded"
    ]
    return str(content_of(fact_of(steps[-1], writer.ledger.store.artifact)).get("diff", ""))


def _run_role(writer: Writer, state: State, role: str, programs: Programs) -> None:
    """Run executor or reviewer with its prompt and record its report; an invalid one is asked for once more."""
    prompts = round_prompts(writer, state)
    write_prompts(writer, state.round, prompts)
    prompt = prompts[role]
    if state.rejections.get(role):
        prompt += f"\n## Your last report was not valid\nRule broken: {_last_fault(writer, state, role)}\nAnswer again whole.\n"
    before = session_files(writer)
    command = programs.executor if role == "executor" else programs.reviewer
    answer = call_agent(writer, command, role, prompt, programs.timeout)
    changed = touched(before, session_files(writer))
    if changed:
        from commands.sessions.rounds import SESSION_FILES_CHANGED
        from commands.sessions.view import write_view

        write_view(writer.ledger, writer.root, writer.uuid)
        judgement = reject_round(writer, role, SESSION_FILES_CHANGED, f"the {role} changed {changed}", answer)
    else:
        judgement = executed(writer, answer) if role == "executor" else reviewed(writer, answer)
    if not judgement.valid:
        report(live_line(writer, f"{role}'s report is invalid: {judgement.reason} ({judgement.detail})"))
        if writer.state().phase == "failed":
            raise Refused(
                f"round {state.round}: the {role}'s second report is invalid, too: {judgement.reason} ({judgement.detail})"
            )
        return
    said = (
        str(judgement.verdict)
        if role == "reviewer"
        else "no-op"
        if judgement.noop
        else f"{len(judgement.paths)} files"
    )
    report(live_line(writer, f"{role}: {said}"))


def _last_fault(writer: Writer, state: State, role: str) -> str:
    """The rule that the last rejected report broke, and where."""
    from commands.sessions.reports import check_executor, check_reviewer

    rejected = [
        event for event in stream_events(writer.ledger, writer.uuid) if event.type == "round.rejected"
    ]
    reason = str(fact_of(rejected[-1]).data.reason)
    text = (writer.ledger.store.artifact(rejected[-1]) or b"").decode("utf-8")
    again = (
        check_reviewer(text)
        if role == "reviewer"
        else check_executor(text, writer.delta(state, writer.tree()))
    )
    return f"{reason}: {again.detail}" if again.reason == reason else reason


def _scan(writer: Writer) -> None:
    from commands.sessions.preflight import halt_text, scan

    result = scan(writer)
    if result.outcome == "halted":
        raise Capped("security", halt_text(result.flagged))
    added = f"; .gitignore: added {', '.join(result.added)}" if result.added else ""
    left = f"; not covered by .gitignore: {', '.join(result.open)}" if result.open else ""
    report(live_line(writer, f"security: {result.outcome}{added}{left}"))
