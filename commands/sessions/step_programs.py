"""The steps of 3.5 and 3.6 in `session run`: a command for each, from the user's own configuration."""

from __future__ import annotations

import os

from commands.sessions.agent_calls import ROUND_TIMEOUT, call_agent, report, session_files, touched
from commands.sessions.gate_pass import changed_paths
from commands.sessions.gate_run import split_command
from commands.sessions.program import NotFound, run_program
from commands.sessions.rounds import live_line
from commands.sessions.view import session_path, stream_events, write_view
from commands.sessions.writer import digest, entries_content, tree_struct
from ledger.errors import MissingExecutor, Refused
from projections import session_events as e
from projections.engine import fact_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.steps import StepReport
    from commands.sessions.writer import Writer
    from projections.session import State

_STEP_COMMANDS = {
    "static-analysis": "static_analysis_command",
    "code-review": "code_review_command",
    "simplify": "simplify_command",
    "test-consolidation": "test_consolidation_command",
    "project-docs": "project_docs_command",
    "comments": "comments_command",
}
_LANGUAGES = {
    ".go": "go", ".rs": "rust", ".py": "python", ".ts": "web", ".tsx": "web", ".js": "web", ".jsx": "web",
    ".html": "web", ".vue": "web", ".svelte": "web",
}  # fmt: skip


def run_step(writer: Writer, stage: str, step: str, timeout: float) -> None:
    """Run the configured command of one step and record it; without a command the step is recorded as skipped."""
    from commands.sessions.steps import StepReport, keep_contents, record_step, skip_step

    state = writer.state()
    if step == "summary":
        record_step(writer, stage, step, StepReport(_summary_report(writer)))
        return
    command = getattr(writer.config, _STEP_COMMANDS[step])
    if not command or (step == "static-analysis" and not languages(changed_paths(writer))):
        skip_step(writer, stage, step)
        return
    report(f"running: {stage} {step}")
    if state.running != step:
        tree = writer.require_known_tree(state)
        keep_contents(writer, writer.known_entries(state))
        started = e.StepRecorded(writer.fence, stage, step, "program", 0, "started", tree_struct(tree))
        # Crash after this: what the program wrote is known to be this step's, which is run again.
        writer.tell("stage.step_recorded", started, entries_content(tree))
    lint_before = _lint(writer)
    before = session_files(writer)
    found = StepReport(call_agent(writer, command, step, _step_prompt(writer, stage, step), timeout))
    if touched(before, session_files(writer)):
        write_view(writer.ledger, writer.root, writer.uuid)
        raise Refused(f"{step} changed the session's own files; it counts for nothing")
    if step == "simplify" and _broke_build(writer, state, found):
        return
    lint_same = None if lint_before is None else lint_before == _lint(writer)
    result = record_step(writer, stage, step, found, lint_same=lint_same)
    report(live_line(writer, f"{stage} {step}: {result.outcome}"))


def _broke_build(writer: Writer, state: State, found: StepReport) -> bool:
    """Whether simplify's writes broke the build; then they are taken back and recorded as reverted."""
    command = writer.config.build_check_command
    paths = writer.delta(state, writer.tree())
    if not command or not paths or _exit_code(writer, command) == 0:
        return False
    from commands.sessions.steps import reverted_step
    from commands.sessions.undo import take_back

    take_back(writer, state, paths)
    reverted_step(writer, "polish", "simplify", found)
    report("simplify broke the build check; its changes were taken back")
    return True


def _exit_code(writer: Writer, command: str) -> int | None:
    try:
        return run_program(
            split_command(command, "build_check_command"), data=b"", timeout=ROUND_TIMEOUT, cwd=writer.root
        ).code
    except NotFound as error:
        raise MissingExecutor(f"build_check_command cannot be started: {error}") from None


def _lint(writer: Writer) -> str | None:
    """Digest of what `lint_command` prints and returns; None when none is set."""
    command = writer.config.lint_command
    if not command:
        return None
    try:
        outcome = run_program(
            split_command(command, "lint_command"), data=b"", timeout=ROUND_TIMEOUT, cwd=writer.root
        )
    except NotFound as error:
        raise MissingExecutor(f"lint_command cannot be started: {error}") from None
    return digest(b"%d\0" % (outcome.code or 0) + outcome.stdout + b"\0" + outcome.stderr)


def languages(paths: tuple[str, ...]) -> list[str]:
    """The languages of the changed files that have a static analysis agent."""
    return sorted(
        {_LANGUAGES[ext] for path in paths if (ext := os.path.splitext(path)[1].lower()) in _LANGUAGES}
    )


def _step_prompt(writer: Writer, stage: str, step: str) -> str:
    paths = changed_paths(writer)
    parts = [
        f"Step {step} of {stage} in review session {writer.uuid}.",
        f"Read the session file first: {session_path(writer.root, writer.uuid)}\nDo not change it. Do not commit.",
        "## Changed files\n" + "\n".join(paths),
    ]
    if step == "static-analysis":
        parts.append("## Languages\n" + "\n".join(languages(paths)))
    if stage == "polish" and writer.config.quality_focus:
        parts.append(f"## Quality focus\n{writer.config.quality_focus}")
    if writer.config.review_style:
        parts.append(f"## Review style\n{writer.config.review_style}")
    parts.append(
        "Fix what you find. Begin your report with the lines `agent: NAME` and `tool_uses: N`; list what is left as"
        " `- [CRITICAL] ...` or `- [MINOR] ...`."
    )
    return "\n\n".join(parts) + "\n"


def _summary_report(writer: Writer) -> bytes:
    """The closing table of 3.5, from the log."""
    lines = ["agent: gatebook", "tool_uses: 1", ""]
    facts = [
        fact_of(event)
        for event in stream_events(writer.ledger, writer.uuid)
        if event.type == "stage.step_recorded"
    ]
    lines += [
        f"- {f.data.step}: {f.data.outcome}, {len(f.data.paths)} files"
        for f in facts
        if f.data.outcome != "started"
    ]
    return ("\n".join(lines) + "\n").encode()
