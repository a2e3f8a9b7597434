"""The gate within a session: what it looks at, whether config exempts it, its one pass (contract `review-sessions`, Gate)."""

from __future__ import annotations

import sys

from commands.sessions.agent_calls import report
from commands.sessions.rounds import live_line, record_gate
from commands.sessions.view import session_path
from projections.session import SKIP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer


def pass_gate(writer: Writer, command: str | None) -> None:
    """Run the gate's one pass, skip it by config, or say that there is no command for it; record the verdict."""
    from commands.sessions.gate_run import GateResult, run_gate

    if skipped_by_config(writer):
        result = GateResult("SKIP", reason="skipped-by-config")
    elif command is None:
        result = GateResult("SKIP", reason="plugin-root-unresolved", detail="no --gate command was given")
    else:
        result = run_gate(focus_text(writer).encode(), command, root=writer.root)
    if result.banner:
        print(result.banner, file=sys.stderr)
    text = result.text or result.banner + "\n"
    record_gate(writer, result.verdict, text, result.reason if result.verdict == SKIP else "")
    report(live_line(writer, f"gate: {result.verdict}"))


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
