"""`session start`: lock, then opening or resuming under the lock (contract `review-sessions`, Start; seed, steps 0-2)."""

from __future__ import annotations

import os

from commands.sessions.drift import MISSING_BASELINE, Drift
from commands.sessions.drift_answer import answer_drift
from commands.sessions.locking import lock
from commands.sessions.request import Question, Request, ask, check_calls
from commands.sessions.session_file import (
    REVIEW_ONLY,
    USER_SUPPLIED,
    Metadata,
    approved_plan,
    new_session,
    parse_metadata,
    parse_session,
)
from commands.sessions.tree import commits_between, dirty_map, top_level
from commands.sessions.view import read_view, refuse_foreign_change, write_view
from commands.sessions.writer import Writer, check_uuid, digest, entries_content, pinned, tree_struct
from ledger.errors import Conflict, Invalid, Refused
from projections import session_events as e

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.flags import Args
    from commands.sessions.config import Config
    from commands.sessions.session_file import SessionFile
    from commands.sessions.tree import Tree
    from ledger.access import Ledger
    from projections.session import State


def start(context: Context, args: Args, *, attached: bool) -> tuple[Writer, str, Request]:
    """Lock the session and open or resume it; (writer, owner token, request).

    Raises whatever stops it, after the lock was given back.
    """
    from commands.sessions.config import load_config

    check_calls(args)
    root = top_level(os.getcwd())
    config = load_config(root)
    request = Request(args, root, config, attached=attached)
    for warning in config.warnings:
        context.log().warning(warning)
    _need_reviewer(config)
    if config.docs_file:
        from commands.sessions.delivery import docs_path

        docs_path(root, config.docs_file)
    ledger = context.ledger()
    writer, token = lock(context, ledger, request, config)
    try:
        _open_or_resume(writer, request)
    except BaseException as error:
        release_after(writer, error)
        raise
    return writer, token, request


def _need_reviewer(config: Config) -> None:
    if config.reviewer == "codex":
        import shutil

        from ledger.errors import MissingExecutor

        if shutil.which("codex") is None:
            raise MissingExecutor(
                "reviewer: codex, but there is no `codex` in PATH; install it or set another reviewer"
            )


def settle(writer: Writer) -> None:
    """Before a lock is given back cleanly: a known tree between rounds becomes the baseline."""
    state = writer.state()
    if not state.opened or state.phase or state.delivered or state.drift or not state.known.seq:
        return
    tree = writer.tree()
    if writer.drift(state, tree) is None:
        from commands.sessions.progress import stops_here

        batch: list[tuple[str, object, bytes | None]] = [writer.verified(tree)]
        if state.lock is not None and stops_here(state, state.lock.stop_after):
            batch.append(("session.stopped", e.Stopped(writer.fence, state.lock.stop_after), None))
        writer.record(lambda _state: batch)  # type: ignore[arg-type, return-value]


def release_after(writer: Writer, error: BaseException) -> None:
    """Give the lock back after an error; a signal blocks delivery by user-abort, anything else changes no more."""
    if isinstance(error, Conflict):
        return  # the lock is another's by now
    reason = (
        "user-abort"
        if isinstance(error, KeyboardInterrupt)
        else "refused"
        if isinstance(error, Refused)
        else "error"
    )
    state = writer.state()
    if state.lock is None or state.fence != writer.fence:
        return
    if isinstance(error, KeyboardInterrupt) and state.opened and not state.delivered:
        writer.tell("delivery.blocked", e.Blocked(writer.fence, "user-abort", "interrupted by a signal"))
    writer.unlock(reason)


def _open_or_resume(writer: Writer, request: Request) -> None:
    state = writer.state()
    if not request.resumes:
        _open_new(writer, request)
        return
    on_disk = read_view(writer.root, writer.uuid)
    if not state.opened:
        if on_disk is None:
            raise Invalid(
                f"there is no session {writer.uuid}: no file .review-loop/sessions/{writer.uuid}.md, no events"
            )
        _import(writer, request, on_disk)
    else:
        refuse_foreign_change(writer.ledger, writer.root, writer.uuid)
    _resume(writer, request)


def _open_new(writer: Writer, request: Request) -> None:
    tree = writer.tree()
    source = REVIEW_ONLY if request.mode == "review-only" else USER_SUPPLIED
    metadata = Metadata()
    metadata.entry_point, metadata.plan_source = request.entry_point, source
    metadata.heads = dict.fromkeys(metadata.heads, tree.head)
    from commands.git import line_path

    file = new_session(
        source=source,
        title=request.title,
        description=request.description,
        plan=request.plan,
        files_changed="\n".join(f"- `{line_path(path)}`" for path in tree.dirty),
        metadata=metadata,
    )
    title = request.title or (request.description.split("\n")[0] or "review-only pass")
    opened = e.Opened(
        writer.fence, writer.uuid, request.entry_point, source, tree_struct(tree), pinned(writer.config)
    )
    content = entries_content(tree, file=file.render(), title=title)
    writer.record(lambda _state: [("session.opened", opened, content)])
    _say_distrusted(writer, tree)


def _say_distrusted(writer: Writer, tree: Tree) -> None:
    if tree.distrusted:
        writer.context.log().warning(
            "filters of these paths were not run (trusted_filters in your own configuration names those that may): "
            + ", ".join(tree.distrusted[:10])
        )


def _import(writer: Writer, request: Request, raw: bytes) -> None:
    """Record a file that another tool wrote; its text stays, missing fields take the contract's defaults."""
    del request
    try:
        file = parse_session(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Invalid(f"the session file is not UTF-8 at byte {error.start}") from None
    metadata, source = imported_metadata(file)
    tree = writer.tree()
    stages = [stage for stage in metadata.completed_stages if stage]
    from projections.session_rules import STAGES

    kept = [stage for stage in STAGES if stage in stages]
    if kept != list(STAGES[: len(kept)]):
        kept = []  # a set with holes holds for nothing that we could prove
    imported = e.Imported(
        writer.fence, writer.uuid, metadata.entry_point, source, digest(raw), len(raw), metadata.heads["base_head"],
        metadata.heads["last_verified_head"], tree_struct(tree), pinned(writer.config), metadata.session_commits,
        [] if metadata.missing else kept, metadata.delivery_blocked_by or "", metadata.missing, _rounds_told(file),
    )  # fmt: skip
    writer.record(lambda _state: [("session.imported", imported, raw)], view=False)


def _rounds_told(file: SessionFile) -> int:
    """The highest round number that the imported history tells of."""
    import re

    return max(
        (
            int(n)
            for n in re.findall(
                r"^#+ .*?\bround (\d{1,6})\b", file.body("Review History") or "", re.MULTILINE | re.IGNORECASE
            )
        ),
        default=0,
    )


def adopt(context: Context, ledger: Ledger, path: str) -> str:
    """Import a session file that another tool wrote or changed (`doctor --adopt FILE`); returns the session's uuid.

    The next `session start --session` compares the tree with what the file states. Raises what `session start` does.
    """
    from commands.flags import parse
    from commands.sessions.config import load_config
    from commands.sessions.session import COMMANDS

    uuid = check_uuid(os.path.basename(path).removesuffix(".md"), "the file's name")
    args = parse(COMMANDS["session start"], ["--session", uuid])
    root = top_level(os.path.dirname(os.path.abspath(path)))
    config = load_config(root)
    request = Request(args, root, config, attached=True)
    writer, _ = lock(context, ledger, request, config)
    try:
        raw = read_view(root, uuid)
        if raw is None:
            raise Invalid(f"there is no session file of {uuid} in {root}")
        _import(writer, request, raw)
    except BaseException as error:
        release_after(writer, error)
        raise
    writer.unlock("adopted")
    return uuid


def imported_metadata(file: SessionFile) -> tuple[Metadata, str]:
    """A foreign file's metadata and the plan's source (that of the plan itself, when it states one).

    Raises:
        Invalid: no plan is approved yet, or a body without a Source.
    """
    metadata = parse_metadata(file.body("Session Metadata"))
    source, _ = approved_plan(file)
    if source is None:
        raise Invalid("`## Approved Plan` is empty: the session is still being planned")
    return metadata, source


def _resume(writer: Writer, request: Request) -> None:
    state = writer.state()
    if state.delivered:
        from commands.sessions.delivery import after_delivery

        after_delivery(writer)  # a crash right after the delivery may have left some of it
        return
    if state.blocked_by:
        _answer_block(writer, request, state)
        state = writer.state()
    elif request.answer == "abort":
        raise Refused(f"session {writer.uuid} is not blocked: there is nothing to abort; left as it is")
    if state.commit and not state.delivered:
        from commands.sessions.delivery import finish_commit

        finish_commit(writer, state)
        state = writer.state()
    tree = writer.tree()
    _say_distrusted(writer, tree)
    if state.planned:
        from commands.sessions.preflight import finish_planned

        if finish_planned(writer, state, tree):
            return
    drift = _drift_at_resume(writer, state, tree)
    same = (state.known.fingerprint, state.known.head) == (tree.fingerprint, tree.head)
    if drift is not None:
        answer_drift(writer, request, drift, tree)
    elif same or state.phase == "started" or state.running:
        write_view(writer.ledger, writer.root, writer.uuid)
    else:
        writer.record(lambda _state: [writer.verified(tree)])


def _answer_block(writer: Writer, request: Request, state: State) -> None:
    said = f"delivery was blocked by {state.blocked_by} ({state.blocked_reason})"
    answer, by = request.answer, "flag"
    if not answer:
        asked = None if request.handsfree else ask(f"{said}. Continue or abort?", ("continue", "abort"))
        if asked is None:
            raise Question(f"{said}; add --continue to go on or --abort to leave it")
        answer, by = asked, "person"
    if answer == "abort":
        raise Refused(f"{said}; left as it is")
    writer.tell("delivery.unblocked", e.Unblocked(writer.fence, state.blocked_by, by))


def _drift_at_resume(writer: Writer, state: State, tree: Tree) -> Drift | None:
    interrupted = state.running or (state.phase == "started" and state.executor)
    if interrupted and tree.head == state.known.head:
        return None  # an executor's or step's own changes: it is run again over the same starting point
    if state.known.seq:
        try:
            writer.known_entries(state)
        except Refused as error:
            return Drift(MISSING_BASELINE, [str(error)])
        return writer.drift(state, tree)
    declared = _declared(writer)
    if declared.missing:
        return Drift(MISSING_BASELINE, [f"the session file has no {name}" for name in declared.missing])
    from commands.git import Git
    from commands.sessions.drift import check_drift

    verified = declared.heads["last_verified_head"]
    return check_drift(
        verified_head=verified,
        verified_dirty=declared.dirty["last_verified_dirty"],
        head=tree.head,
        dirty=dirty_map(tree.entries),
        commits=commits_between(Git(writer.root), verified, tree.head),
        session_commits=state.session_commits,
    )


def _declared(writer: Writer) -> Metadata:
    """The metadata that the last imported file states."""
    events = writer.ledger.store.reader().stream(writer.stream)
    last = [event for event in events if event.type == "session.imported"][-1]
    raw = writer.ledger.store.artifact(last)
    if raw is None:
        raise Refused(f"the imported file (event {last.seq}) is redacted: start a new session")
    return parse_metadata(parse_session(raw.decode("utf-8")).body("Session Metadata"))
