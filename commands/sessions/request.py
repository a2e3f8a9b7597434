"""What `session start` and `session run` were asked for, checked before a lock, file or event exists; and questions."""

from __future__ import annotations

import os

from commands.sessions.markdown import ends_in_fence
from commands.sessions.owner import Owner, nearest_agent, owner_of
from commands.sessions.writer import check_uuid
from ledger.errors import Invalid, Refused, Usage
from projections.session_rules import STOP_POINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.flags import Args
    from commands.sessions.config import Config


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
        self.signing = args
        self.signs = bool(args.sign) or args.statement is not None
        if args.statement_out is not None:
            _need_place_outside(root, args.statement_out)
        self.title = (args.title or "").strip()
        self.description = (args.description or "").strip()
        for flag, value in (("--title", self.title), ("--description", self.description)):
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise Usage(f"{flag}: the text is not UTF-8")
        if ends_in_fence(self.description) or any(
            line.startswith(("# ", "## ")) for line in self.description.split("\n")
        ):
            raise Usage("--description: leave out `##` headings and unclosed code fences")
        self.plan = ""
        if self.mode == "plan":
            if not self.title or "\n" in self.title or self.title.startswith(("#", "```", "~~~")):
                raise Usage("--plan needs --title T: one line of plain text")
            self.plan = _plan_text(args.plan)
        elif args.title:
            raise Usage("--title goes with --plan only")
        if self.mode == "session" and args.description:
            raise Usage(
                "--description goes with --plan or --review-only: a session that is resumed has its own"
            )
        if self.answer == "abort" and self.mode != "session":
            raise Usage("--abort goes with --session: a new session is not blocked")
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


def check_calls(args: Args) -> None:
    """Raise Usage for a wrong mode, runtime, stop point or way to sign: checked before anything is read."""
    from commands.authority.signing import one_way

    _one_mode(args)
    one_way(args, sign=args.sign, out=args.statement_out)
    _stop_after(args.stop_after, args.runtime or "claude")


def _need_place_outside(root: str, path: str) -> None:
    """Usage for a statement's place in the tree that it is about: the file, and its signature, would be changes there."""
    from commands.git import PLAIN_PATHSPECS, run_git
    from commands.sessions.tree import EXCLUDED

    place = os.fsencode(os.path.relpath(os.path.realpath(path), os.path.realpath(root)))
    if place.split(b"/")[0] in (b"..", b".git") or place.startswith(EXCLUDED):
        return
    both = [place, place + b".sig"]
    ignored = run_git(
        ["check-ignore", "-z", "--stdin"],
        root,
        input=b"".join(name + b"\0" for name in both),
        accept=(0, 1),
        env=PLAIN_PATHSPECS,
    )
    if ignored.split(b"\0")[:-1] != both:
        raise Usage(
            f"--statement-out {path}: lies in the work tree, where it would be a change itself; name a place outside"
        )


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
