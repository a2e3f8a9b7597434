"""The session file as a view of the log: rendered from the events, other tools' text kept (DESIGN, Views)."""

from __future__ import annotations

import os

from commands.git import line_path
from commands.sessions.lock_file import check_folders
from commands.sessions.session_file import (
    METADATA,
    ORDER,
    REVIEW_TARGET,
    Metadata,
    SessionFile,
    parse_metadata,
    parse_session,
)
from commands.sessions.tree import dirty_map
from ledger.canonical import load
from ledger.clock import format_us
from ledger.errors import Invalid, Refused
from projections.engine import fact_of
from projections.session import evolve, initial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.access import Ledger
    from ledger.event import Event
    from projections.fact import Fact
    from projections.session import Known, State

_OURS = (*ORDER, REVIEW_TARGET)


def session_path(root: str, uuid: str) -> str:
    """Where a session's file lies."""
    return os.path.join(root, ".review-loop", "sessions", f"{uuid}.md")


def read_view(root: str, uuid: str) -> bytes | None:
    """The file's bytes; None where there is none. A link in its place is refused."""
    check_folders(root)
    try:
        descriptor = os.open(session_path(root, uuid), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def write_view(ledger: Ledger, root: str, uuid: str) -> None:
    """Bring the file up to the log, other sections as they stand on disk. Nothing before the session is opened."""
    from ledger.files import write_whole

    rendered = render(ledger, stream_events(ledger, uuid), read_view(root, uuid))
    if rendered is not None and rendered != read_view(root, uuid):
        path = session_path(root, uuid)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, rendered, mode=0o644)


def stream_events(ledger: Ledger, uuid: str) -> list[Event]:
    """Every event of the session."""
    return ledger.store.reader().stream(f"session/{uuid}")


def foreign_change(ledger: Ledger, root: str, uuid: str) -> str | None:
    """The first of our sections whose text on disk is at no version what the log says; None when all are ours.

    A file that lags behind, or is missing, is none: the next write mends it.
    """
    on_disk = read_view(root, uuid)
    events = stream_events(ledger, uuid)
    if on_disk is None or not events:
        return None
    try:
        found = parse_session(on_disk.decode("utf-8"))
    except UnicodeDecodeError:
        return "the whole file (not UTF-8)"
    if any(event.type == "session.imported" and event.content == on_disk for event in events):
        return None  # not rewritten since it was imported
    different: str | None = None
    for upto in range(len(events), 0, -1):
        document = _document(ledger, events[:upto])
        if document is None:
            break
        different = next(
            (t for t in _OURS if document.body(t) is not None and document.body(t) != found.body(t)), None
        )
        if different is None:
            return None
    return different


def refuse_foreign_change(ledger: Ledger, root: str, uuid: str) -> None:
    """Raise Refused when somebody else changed one of our sections; it stays as it is (DESIGN, Views)."""
    changed = foreign_change(ledger, root, uuid)
    if changed:
        raise Refused(
            f"the session file's section {changed!r} is not what the log says; end the session's lock if you hold it, "
            f"then `gatebook doctor --adopt .review-loop/sessions/{uuid}.md` imports it"
        )


def render(ledger: Ledger, events: Sequence[Event], on_disk: bytes | None) -> bytes | None:
    """The file's bytes after these events; None while the session is not opened."""
    document = _document(ledger, events)
    if document is None:
        return None
    if on_disk is not None:
        try:
            shown = parse_session(on_disk.decode("utf-8"))
        except UnicodeDecodeError:
            return document.render().encode()
        bodies = {title: body for title in _OURS if (body := document.body(title)) is not None}
        document = shown.with_bodies(bodies)
    return document.render().encode()


def _document(ledger: Ledger, events: Sequence[Event]) -> SessionFile | None:
    base: SessionFile | None = None
    declared: Metadata | None = None
    history: list[str] = []
    timing: list[str] = []
    files: set[str] = set()
    state = initial(f"session/{events[0].stream.partition('/')[2]}")
    began: dict[str, int] = {}
    phase = None
    for event in events:
        fact = fact_of(event, ledger.store.artifact)
        state = evolve(state, fact)
        if fact.type in ("session.opened", "session.imported") and fact.content is None:
            return None  # redacted: what stands on disk stays as it is
        if fact.type == "session.opened":
            base = parse_session(str(content_of(fact)["file"]))
        elif fact.type == "session.imported":
            base = parse_session((fact.content or b"").decode("utf-8"))
            declared = parse_metadata(base.body(METADATA))
            history, timing, files = [], [], set()
        else:
            _tell(fact, state, history, files)
        phase = _phase(fact, phase)
        _time(fact, timing, began)
    if base is None:
        return None
    bodies: dict[str, str | None] = {METADATA: _metadata(ledger, state, declared).render()}
    if phase:
        bodies["Current Phase"] = phase
    for title, added in (("Review History", "\n\n".join(history)), ("Timing Log", "\n".join(timing))):
        if added:
            before = base.body(title) or ""
            joint = "\n" if title == "Timing Log" else "\n\n"
            bodies[title] = f"{before}{joint}{added}" if before else added
    if files:
        stated = [line for line in (base.body("Files Changed") or "").split("\n") if line.strip()]
        lines = [f"- `{line_path(path)}`" for path in sorted(files)]
        bodies["Files Changed"] = "\n".join([*stated, *(line for line in lines if line not in stated)])
    return base.with_bodies(bodies)


def content_of(fact: Fact) -> dict[str, object]:
    """The JSON content of an event of ours; `Refused` when it was redacted."""
    if fact.content is None:
        raise Refused(
            f"the content of event {fact.seq} ({fact.type}) is gone: this session cannot go on from the log"
        )
    return load(fact.content)


def entries_of(ledger: Ledger, known: Known) -> dict[str, str]:
    """The entries of a tree that an event's content lists."""
    event = ledger.store.reader().event(known.seq)
    if event is None:
        raise Invalid("the session knows no tree yet")
    entries = content_of(fact_of(event, ledger.store.artifact))["entries"]
    assert isinstance(entries, dict)
    return entries


def _entries_if_kept(ledger: Ledger, known: Known) -> dict[str, str] | None:
    try:
        return entries_of(ledger, known)
    except Refused:
        return None  # redacted


def _metadata(ledger: Ledger, state: State, declared: Metadata | None) -> Metadata:
    metadata = Metadata()
    metadata.entry_point, metadata.plan_source = state.entry_point, state.plan_source
    for name, known in (("base", state.base), ("last_verified", state.verified)):
        metadata.heads[f"{name}_head"] = known.head
        if known.seq and (entries := _entries_if_kept(ledger, known)) is not None:
            metadata.dirty[f"{name}_dirty"] = dirty_map(entries)
        elif declared is not None:
            metadata.dirty[f"{name}_dirty"] = declared.dirty[f"{name}_dirty"]
    metadata.session_commits = list(state.session_commits)
    metadata.completed_stages = list(state.stages)
    metadata.delivery_blocked_by = state.blocked_by or None
    if declared is not None:
        metadata.others = declared.others
    return metadata


_PHASES = {
    "round.started": "execution",
    "stage.step_recorded": "",
    "security.scanned": "security preflight",
    "delivery.completed": "delivered",
    "session.opened": "execution",
    "stages.cleared": "execution",
    "drift.accepted": "execution",
}


def _phase(fact: Fact, phase: str | None) -> str | None:
    if fact.type == "stage.step_recorded":
        return "quality polish" if fact.data.stage == "polish" else "documentation"
    if fact.type == "session.imported":
        return None
    return _PHASES.get(fact.type, phase)


def _tell(fact: Fact, state: State, history: list[str], files: set[str]) -> None:
    """Add what this event means to the history and the list of files."""
    data = fact.data
    if fact.type == "round.started":
        backend = "external program" if data.executor else "skipped (review-only first round)"
        if data.kind == "carry":
            backend = "skipped (reviewer-only fast replay)"
        history.append(
            f"### Round {data.round}\n- Plan source: {data.plan_source}\n- Executor backend: {backend}"
        )
    elif fact.type == "round.executed":
        if fact.content is not None:
            paths = content_of(fact)["paths"]
            assert isinstance(paths, list)
            files.update(paths)
        _line(
            history,
            "- Executor: no-op round" if data.noop else f"- Executor: {data.delta_count} files changed",
        )
    elif fact.type == "round.rejected":
        _line(history, f"- {data.role.capitalize()} report invalid (attempt {data.attempt}): {data.reason}")
    elif fact.type == "round.reviewed":
        _line(history, f"- VERDICT: {data.verdict}")
        for issue in _issue_lines(fact):
            _line(history, issue)
    elif fact.type == "gate.returned":
        reason = f" ({data.reason})" if data.reason else ""
        _line(history, f"- Adversarial gate: {data.verdict}{reason}")
        for line in (fact.content or b"").decode("utf-8").split("\n"):
            if line.startswith(("- [", "  Recommendation:")):
                _line(history, line)
    elif fact.type == "stage.step_recorded" and data.outcome != "started":
        files.update(data.paths)
        _line(
            history,
            f"- {data.stage} / {data.step}: {data.outcome}"
            + (f" ({len(data.paths)} files)" if data.paths else ""),
        )
    elif fact.type == "stage.minted":
        _line(history, f"- Stage minted: {data.stage}")
    elif fact.type == "stages.cleared":
        _line(history, f"- Stages cleared: {data.reason}")
    elif fact.type == "stages.carried":
        _line(history, f"- Stages carried over: {', '.join(state.stages)}")
    elif fact.type == "security.scanned" and data.outcome != "planned":
        _line(history, f"- Security preflight: {data.outcome}")
    elif fact.type == "delivery.blocked":
        _line(history, f"- Delivery blocked by {data.by}: {data.reason}")
    elif fact.type == "commit.recorded":
        _line(history, f"- Commit: {data.sha}")


def _issue_lines(fact: Fact) -> list[str]:
    from commands.sessions.reports import reviewer_issues

    issues = reviewer_issues((fact.content or b"").decode("utf-8"))
    return [
        line for issue in issues for line in issue.lines if not line.lstrip().startswith(("```", "~~~", "#"))
    ]  # a fence or heading in a finding must not swallow the sections after it


def _line(history: list[str], line: str) -> None:
    if not history:
        history.append("### Before the first round")
    history[-1] += f"\n{line}"


_CLOSES = {
    "round.executed": "round.started",
    "round.reviewed": "round.started",
    "gate.returned": "round.reviewed",
}


def _time(fact: Fact, timing: list[str], began: dict[str, int]) -> None:
    start = began.get(_CLOSES.get(fact.type, ""))
    if start is not None:
        name = {"round.executed": "executor", "round.reviewed": "review", "gate.returned": "gate"}[fact.type]
        if fact.type == "round.reviewed" and "round.executed" in began:
            start = max(start, began["round.executed"])
        label = f"{name}, round {fact.data.round}" if hasattr(fact.data, "round") else name
        timing.append(f"| {label} | {format_us(start)[:19]}Z | {max(0, fact.clock - start) // 1_000_000} |")
    began[fact.type] = fact.clock
