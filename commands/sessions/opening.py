"""`session start`: flags, lock, then opening or resuming under the lock (contract `review-sessions`, Start; seed, steps 0-2)."""

from __future__ import annotations

import os

from commands.sessions.drift import MISSING_BASELINE, Drift
from commands.sessions.lock_file import (
    make_lock,
    read_lock,
    remove_dead_lock,
    remove_lock,
)
from commands.sessions.markdown import ends_in_fence
from commands.sessions.owner import ALIVE, DEAD, ELSEWHERE, Owner, nearest_agent, owner_of
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
from commands.sessions.view import foreign_change, read_view, write_view
from commands.sessions.writer import (
    Writer,
    check_fence,
    check_uuid,
    digest,
    encode_json,
    entries_content,
    new_token,
    pinned,
    tree_struct,
)
from ledger.errors import Conflict, Invalid, Refused, Usage
from projections import session_events as e
from projections.engine import state_of
from projections.session_rules import STOP_POINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.flags import Args
    from commands.sessions.config import Config
    from commands.sessions.session_file import SessionFile
    from commands.sessions.tree import Tree
    from ledger.access import Ledger
    from projections.session import State

_CLAIM_WAIT_US = 10_000_000


class Request:
    """What `session start` or `session run` was asked for; everything checked that needs no lock."""

    def __init__(self, args: Args, root: str, config: Config, *, attached: bool) -> None:
        self.attached = attached
        self.runtime = args.runtime or "claude"
        self.mode = _one_mode(args)
        self.stop_after = _stop_after(args.stop_after, self.runtime)
        self.handsfree = bool(args.handsfree) or config.handsfree
        self.accept_external_state = bool(args.accept_external_state)
        self.recover_lock = bool(args.recover_lock)
        self.answer = _answer(args)
        self.sign, self.key = bool(args.sign), args.key
        self.title = (args.title or "").strip()
        self.description = (args.description or "").strip()
        if ends_in_fence(self.description) or any(
            line.startswith(("# ", "## ")) for line in self.description.split("\n")
        ):
            raise Usage("--description: leave out `#` and `##` headings and unclosed code fences")
        self.plan = ""
        if self.mode == "plan":
            if not self.title or "\n" in self.title:
                raise Usage("--plan needs --title T, one line")
            self.plan = _plan_text(args.plan)
        elif args.title:
            raise Usage("--title goes with --plan only")
        self.uuid = check_uuid(args.session) if self.mode == "session" else _new_uuid()
        self.resumes = self.mode == "session"
        self.owner = _owner(None if attached else args.owner_pid, attached=attached)
        self.root = root

    @property
    def entry_point(self) -> str:
        """The entry point as lock and metadata name it."""
        return {"session": "execute-from-session", "plan": "execute-from-plan", "review-only": "review-only"}[
            self.mode
        ]


def _one_mode(args: Args) -> str:
    given = [name for name, value in (("session", args.session), ("plan", args.plan)) if value is not None]
    if args.review_only:
        given.append("review-only")
    if len(given) != 1:
        raise Usage("give exactly one of --session UUID, --plan TEXT|PATH --title T, --review-only")
    return given[0]


def _stop_after(value: str | None, runtime: str) -> str:
    if runtime not in ("claude", "codex"):
        raise Usage(f"--runtime: {runtime!r} is neither claude nor codex")
    if value is not None and value not in STOP_POINTS:
        raise Usage(f"--stop-after: runtime {runtime} supports {', '.join(STOP_POINTS)}; not {value!r}")
    return value or "delivery"


def _answer(args: Args) -> str:
    if getattr(args, "continue") and args.abort:
        raise Usage("give --continue or --abort, not both")
    return "continue" if getattr(args, "continue") else "abort" if args.abort else ""


def _plan_text(value: str) -> str:
    """A readable file's text, or the value itself."""
    if "\0" not in value and len(value) < 4096 and os.path.isfile(value):
        try:
            with open(value, encoding="utf-8") as file:
                value = file.read(512 * 1024 + 1)
        except PermissionError:
            pass  # not readable: then it is text
        except UnicodeDecodeError:
            raise Invalid(f"--plan {value}: the file is not UTF-8") from None
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid("--plan: the text is not UTF-8") from None
    if not value.strip():
        raise Usage("--plan is empty")
    if len(value) > 512 * 1024:
        raise Invalid("--plan: over 512 KiB")
    if ends_in_fence(value):
        raise Invalid(
            "--plan: a code fence is never closed; the session file's own sections would disappear in it"
        )
    return value.strip("\n")


def _new_uuid() -> str:
    import uuid

    return str(uuid.uuid4())


def _owner(pid_given: int | None, *, attached: bool) -> Owner:
    pid = os.getpid() if attached else nearest_agent() if pid_given is None else pid_given
    owner = owner_of(pid)
    if owner is None:
        raise Usage(f"--owner-pid {pid}: there is no such process")
    return owner


class Question(Refused):
    """A question that nobody is there to answer; the message says which flag does (exit 4)."""


def ask(text: str, choices: tuple[str, ...]) -> str | None:
    """The person's answer at a terminal, one of the choices; None without a terminal or at its end."""
    import sys

    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return None
    while True:
        sys.stderr.write(f"{text} [{'/'.join(choices)}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return None
        if line.strip().lower() in choices:
            return line.strip().lower()


def start(context: Context, args: Args, *, attached: bool) -> tuple[Writer, str, Request]:
    """Lock the session and open or resume it; (writer, owner token, request).

    Raises whatever stops it, after the lock was given back.
    """
    from commands.sessions.config import load_config

    _one_mode(args)
    _stop_after(args.stop_after, args.runtime or "claude")
    root = top_level(os.getcwd())
    config = load_config(root)
    request = Request(args, root, config, attached=attached)
    for warning in config.warnings:
        context.log().warning(warning)
    _need_reviewer(config)
    ledger = context.ledger()
    writer, token = _lock(context, ledger, request, config)
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


# --- the lock --------------------------------------------------------------------------------------------


def _lock(context: Context, ledger: Ledger, request: Request, config: Config) -> tuple[Writer, str]:
    uuid, root = request.uuid, request.root
    state: State = state_of(ledger, f"session/{uuid}")[0]
    recovered = _clear_way(ledger, request, state)
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


def _clear_way(ledger: Ledger, request: Request, state: State) -> str:
    """Judge the lock that stands, in the log and as a file; returns who answered a recovery ('' for none).

    Raises:
        Conflict: its owner lives (exit 5). Question: its owner is dead and nobody said --recover-lock (exit 4).
    """
    del ledger
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
        return now_us() - parse_time(started_at) > _CLAIM_WAIT_US
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


# --- opening and resuming, under the lock ------------------------------------------------------------------


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
        changed = foreign_change(writer.ledger, writer.root, writer.uuid)
        if changed:
            raise Refused(
                f"the session file's section {changed!r} is not what the log says; "
                f"`gatebook doctor --adopt .review-loop/sessions/{writer.uuid}.md` imports it"
            )
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
        [] if metadata.missing else kept, metadata.delivery_blocked_by or "", metadata.missing,
    )  # fmt: skip
    writer.record(lambda _state: [("session.imported", imported, raw)], view=False)


def adopt(context: Context, ledger: Ledger, path: str) -> str:
    """Import a session file that another tool wrote or changed (`doctor --adopt FILE`); returns the session's uuid.

    The next `session start --session` compares the tree with what the file states. Raises what `session start` does.
    """
    from commands.flags import Args
    from commands.sessions.config import load_config

    uuid = check_uuid(os.path.basename(path).removesuffix(".md"), "the file's name")
    args = Args()
    for name in ("key", "plan", "title", "description", "stop_after", "runtime", "owner_pid"):
        setattr(args, name, None)
    for name in (
        "review_only",
        "handsfree",
        "accept_external_state",
        "recover_lock",
        "sign",
        "continue",
        "abort",
    ):
        setattr(args, name, False)
    vars(args)["session"] = uuid
    root = top_level(os.path.dirname(os.path.abspath(path)))
    config = load_config(root)
    request = Request(args, root, config, attached=True)
    writer, _ = _lock(context, ledger, request, config)
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
        from commands.sessions.delivery import remove_round_files

        remove_round_files(writer)  # a crash right after the delivery may have left them
        return
    if state.blocked_by:
        _answer_block(writer, request, state)
        state = writer.state()
    if state.commit and not state.delivered:
        from commands.sessions.delivery import finish_commit

        finish_commit(writer, state)
        state = writer.state()
    tree = writer.tree()
    _say_distrusted(writer, tree)
    drift = _drift_at_resume(writer, state, tree)
    if drift is None:
        if (
            not state.known.seq
            or state.known.fingerprint != tree.fingerprint
            or state.known.head != tree.head
        ):
            if state.phase != "started":
                writer.record(lambda _state: [writer.verified(tree)])
        else:
            write_view(writer.ledger, writer.root, writer.uuid)
        return
    answer_drift(writer, request, drift, tree)


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
    if state.phase == "started" and state.executor and tree.head == state.known.head:
        return (
            None  # an interrupted executor's own changes: its round is run again over the same starting point
        )
    if state.known.seq:
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


def _signed(writer: Writer, request: Request, accepted: e.DriftAccepted) -> e.DriftAccepted:
    """The acceptance with a signature over exactly this state, made and checked before anything is recorded."""
    import msgspec

    from commands.authority.signing import check, expiry, required_policy, sign

    ledger, origin = writer.ledger, writer.context.origin()
    policy = required_policy(ledger)
    data = msgspec.structs.replace(
        accepted, answered_by="signature", nonce=os.urandom(16).hex(), expires_at=expiry()
    )
    statement = e.approval_statement(ledger.id, writer.stream, data)
    principal, signature = sign(statement, policy, request.key)
    check(
        ledger, origin, policy, principal, statement, signature, type="drift.accepted", stream=writer.stream
    )
    signed: e.DriftAccepted = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


def answer_drift(writer: Writer, request: Request, drift: Drift, tree: Tree) -> None:
    """Record the drift and its answer: A makes the current state the baseline, B stops (exit 4)."""
    from commands.authority.signing import policy_of
    from projections.authority import required

    details = encode_json({"details": list(drift.details[:1000])})
    found = e.DriftDetected(writer.fence, drift.reason, tree_struct(tree))
    writer.record(lambda _state: [("drift.detected", found, details)], view=False)
    signed = required(policy_of(writer.ledger), "drift.accepted")
    by = "flag" if request.accept_external_state else ""
    if not by and not request.handsfree:
        answer = ask(
            f"{drift.text()}\n(A) accept the current state, all stages are cleared  (B) abort", ("a", "b")
        )
        by = "person" if answer == "a" else ""
    if not by or (signed and not request.sign):
        aborted = e.DriftAborted(writer.fence, drift.reason)
        writer.record(lambda _state: [("drift.aborted", aborted, None)], view=False)
        wanted = " and --sign (the authority policy wants a signature)" if signed else ""
        raise Question(
            f"{drift.text(5)}; add --accept-external-state (unsafe){wanted} to take the current state as baseline"
        )
    accepted = e.DriftAccepted(writer.fence, drift.reason, by, tree_struct(tree), pinned(writer.config))
    if request.sign:
        accepted = _signed(writer, request, accepted)
    content = entries_content(tree)
    writer.record(lambda _state: [("drift.accepted", accepted, content)])


__all__ = ["Question", "Request", "ask", "check_fence", "start"]
