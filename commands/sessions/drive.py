"""`session run`: the whole loop with any agent's command, one action after another from the log (contract, Rounds).

Every action is decided from the folded state alone, so a run that was killed goes on where its log ends.
"""

from __future__ import annotations

import os
import re
import sys

from commands.context import say
from commands.sessions.advance import advance
from commands.sessions.gate_run import split_command
from commands.sessions.program import NotFound, run_program
from commands.sessions.progress import next_action, stops_here
from commands.sessions.rounds import (
    Capped,
    executed,
    live_line,
    record_gate,
    reject_round,
    reviewed,
    round_prompts,
    start_round,
    stop_at_exec_cap,
    write_prompts,
)
from commands.sessions.view import content_of, session_path, stream_events
from commands.sessions.writer import digest
from ledger.errors import Invalid, MissingExecutor, Refused, Unavailable
from projections import session_events as e
from projections.engine import fact_of
from projections.session import SKIP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.steps import StepReport
    from commands.sessions.writer import Writer
    from projections.session import State

ROUND_TIMEOUT = 3600.0  # seconds for one executor, reviewer or step
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
            say(recorded_summary(writer))
            return "delivered"
        word, _, rest = action.partition(" ")
        if word in ("executor", "reviewer", "gate"):
            _report(f"running: {word}, round {state.round}")
        if word in ("round", "carry"):
            _begin_round(writer, state, word)
        elif word in ("executor", "reviewer"):
            _run_role(writer, state, word, programs)
        elif word == "gate":
            _run_gate(writer, programs)
        elif word in ("polish", "docs"):
            _run_step(writer, word, rest, programs)
        elif word == "security":
            _scan(writer)
        elif word == "delivery":
            from commands.sessions.delivery import deliver

            say(deliver(writer))
            return "delivered"
        else:
            raise Refused(_why_stuck(state, action))


def recorded_summary(writer: Writer) -> str:
    """The summary of a session that is delivered already."""
    done = [
        event for event in stream_events(writer.ledger, writer.uuid) if event.type == "delivery.completed"
    ]
    return (writer.ledger.store.artifact(done[-1]) or b"").decode("utf-8")


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


def _report(line: str) -> None:
    """A live report line, on stderr."""
    sys.stderr.write(f"gatebook: {line}\n")
    sys.stderr.flush()


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
    before = _session_files(writer)
    command = programs.executor if role == "executor" else programs.reviewer
    report = _call(writer, command, role, prompt, programs.timeout)
    touched = _touched(before, _session_files(writer))
    if touched:
        from commands.sessions.rounds import SESSION_FILES_CHANGED
        from commands.sessions.view import write_view

        write_view(writer.ledger, writer.root, writer.uuid)
        judgement = reject_round(writer, role, SESSION_FILES_CHANGED, f"the {role} changed {touched}", report)
    else:
        judgement = executed(writer, report) if role == "executor" else reviewed(writer, report)
    if not judgement.valid:
        _report(live_line(writer, f"{role}'s report is invalid: {judgement.reason} ({judgement.detail})"))
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
    _report(live_line(writer, f"{role}: {said}"))


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


def _call(writer: Writer, command: str, role: str, prompt: str, timeout: float) -> bytes:
    """Run an agent's command with the prompt on stdin; its stdout. `{model}` in it is the configured model."""
    argv = fill_model(split_command(command, f"--{role}"), _model(writer, role))
    try:
        outcome = run_program(argv, data=prompt.encode(), timeout=timeout, cwd=writer.root)
    except NotFound as error:
        raise MissingExecutor(f"the {role} cannot be started: {error}") from None
    if outcome.timed_out:
        raise Unavailable(
            f"the {role} did not end within {timeout:g} s and was stopped; the session can be resumed"
        )
    if outcome.code != 0:
        tail = outcome.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Unavailable(f"the {role} ended with exit code {outcome.code}: {' '.join(tail)[:200]}")
    if outcome.cut:
        raise Unavailable(
            f"the {role}'s output may be cut; a child of it still held its pipe, or it is over 8 MiB"
        )
    try:
        outcome.stdout.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"the {role}'s report is not UTF-8 at byte {error.start}") from None
    return outcome.stdout


def fill_model(argv: list[str], model: str) -> list[str]:
    """The command with `{model}` filled in; without a model its word goes, and the option that it belongs to."""
    filled: list[str] = []
    for word in argv:
        if "{model}" not in word:
            filled.append(word)
        elif model:
            filled.append(word.replace("{model}", model))
        elif word == "{model}" and filled and filled[-1].startswith("-"):
            filled.pop()
    return filled


_CHEAP = ("static-analysis", "simplify", "test-consolidation")


def _model(writer: Writer, role: str) -> str:
    config = writer.config
    if role == "executor":
        return config.model
    if role == "reviewer":
        return config.reviewer_model or config.judgment_model
    return (config.cheap_model if role in _CHEAP else "") or config.judgment_model


_OTHER_SESSION = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_LEDGER_FILES = ("ledger.", "views.", "artifacts", "tiles", "rubric.", "proofs")


def _session_files(writer: Writer) -> dict[str, str]:
    """Digest of each file that a round's program must leave alone; other sessions' own files are theirs."""
    found: dict[str, str] = {}
    for folder in (".review-loop/sessions", ".review-loop/tmp", ".gatebook"):
        top = os.path.join(writer.root, folder)
        for base, folders, names in os.walk(top):
            if folder == ".gatebook":
                folders[:] = [name for name in folders if not name.startswith(_LEDGER_FILES)]
                names = [name for name in names if not name.startswith(_LEDGER_FILES)]  # noqa: PLW2901
            for name in names:
                other = _OTHER_SESSION.search(name)
                if (other and other.group() != writer.uuid) or (
                    name.startswith(".") and name.endswith(".tmp")
                ):
                    continue
                path = os.path.join(base, name)
                found[os.path.relpath(path, writer.root)] = _file_digest(path)
    return found


def _file_digest(path: str) -> str:
    try:
        if os.path.islink(path):
            return "-> " + os.readlink(path)
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return "unreadable"


def _touched(before: dict[str, str], after: dict[str, str]) -> str:
    return ", ".join(sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))[:3])


# --- gate, steps, security ---------------------------------------------------------------------------------


def _run_gate(writer: Writer, programs: Programs) -> None:
    from commands.sessions.gate_run import GateResult, run_gate

    if skipped_by_config(writer):
        result = GateResult("SKIP", reason="skipped-by-config")
    elif programs.gate is None:
        result = GateResult("SKIP", reason="plugin-root-unresolved", detail="no --gate command was given")
    else:
        result = run_gate(focus_text(writer).encode(), programs.gate, root=writer.root)
    if result.banner:
        print(result.banner, file=sys.stderr)
    text = result.text or result.banner + "\n"
    record_gate(writer, result.verdict, text, result.reason if result.verdict == SKIP else "")
    _report(live_line(writer, f"gate: {result.verdict}"))


def changed_paths(writer: Writer) -> tuple[str, ...]:
    """The paths that step 3 is about: what executors listed, for a review-only session the dirty paths too."""
    from commands.sessions.delivery import listed_paths

    state = writer.state()
    paths = set(listed_paths(writer))
    if state.plan_source == "review-only":
        paths.update(writer.known_entries(state))
    return tuple(sorted(paths))


def skipped_by_config(writer: Writer) -> bool:
    """Whether every changed path is exempt by the pinned `adversarial_gate_skip_paths`."""
    from commands.sessions.globs import all_match

    state = writer.state()
    patterns = state.pinned.skip_paths if state.pinned is not None else []
    return all_match(changed_paths(writer), patterns)


def focus_text(writer: Writer) -> str:
    """Title, problem, files, the last review's first line of strengths: what the adversarial reviewer looks at."""
    from commands.sessions.delivery import session_title

    lines = [
        session_title(writer),
        f"Session {writer.uuid}; see {session_path(writer.root, writer.uuid)}",
        "",
        *changed_paths(writer),
    ]
    return "\n".join(lines) + "\n"


def _run_step(writer: Writer, stage: str, step: str, programs: Programs) -> None:
    from commands.sessions.steps import StepReport, keep_contents, record_step, skip_step

    state = writer.state()
    if step == "summary":
        record_step(writer, stage, step, StepReport(_summary_report(writer)))
        return
    command = getattr(writer.config, _STEP_COMMANDS[step])
    if not command or (step == "static-analysis" and not languages(changed_paths(writer))):
        skip_step(writer, stage, step)
        return
    writer.require_known_tree(state)
    _report(f"running: {stage} {step}")
    entries = writer.known_entries(state)
    keep_contents(writer, entries)
    lint_before = _lint(writer)
    before = _session_files(writer)
    report = StepReport(_call(writer, command, step, _step_prompt(writer, stage, step), programs.timeout))
    if _touched(before, _session_files(writer)):
        raise Refused(f"{step} changed the session's own files; it counts for nothing")
    if step == "simplify" and _broke_build(writer, state, report):
        return
    lint_same = None if lint_before is None else lint_before == _lint(writer)
    result = record_step(writer, stage, step, report, lint_same=lint_same)
    _report(live_line(writer, f"{stage} {step}: {result.outcome}"))


def _broke_build(writer: Writer, state: State, report: StepReport) -> bool:
    """Whether simplify's writes broke the build; then they are taken back and recorded as reverted."""
    command = writer.config.build_check_command
    paths = writer.delta(state, writer.tree())
    if not command or not paths or _exit_code(writer, command) == 0:
        return False
    from commands.sessions.steps import reverted_step
    from commands.sessions.undo import take_back

    take_back(writer, state, paths)
    reverted_step(writer, "polish", "simplify", report)
    _report("simplify broke the build check; its changes were taken back")
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
    for event in stream_events(writer.ledger, writer.uuid):
        if event.type == "stage.step_recorded":
            data = fact_of(event).data
            lines.append(f"- {data.step}: {data.outcome}, {len(data.paths)} files")
    return ("\n".join(lines) + "\n").encode()


def _scan(writer: Writer) -> None:
    from commands.sessions.preflight import scan

    result = scan(writer)
    if result.outcome == "halted":
        raise Capped("security", halt_text(result.flagged))
    added = f"; .gitignore: added {', '.join(result.added)}" if result.added else ""
    left = f"; not covered by .gitignore: {', '.join(result.open)}" if result.open else ""
    _report(live_line(writer, f"security: {result.outcome}{added}{left}"))


def halt_text(flagged: dict[str, str]) -> str:
    """What a halted scan says: each path, and how to untrack it."""
    shown = ", ".join(f"[CRITICAL] {path} ({kind})" for path, kind in list(flagged.items())[:20])
    return f"tracked files look like secrets: {shown}; run `git rm --cached PATH` for each and add it to .gitignore"
