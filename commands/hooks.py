"""`hooks install|uninstall codex|claude`: the Stop guard and event capture in an agent's own hook file.

The only command that writes under `.claude/`; a person runs it, never an agent session. Both agents read the same
shape: `hooks` -> event -> list of groups -> `hooks` -> list of handlers with `type`, `command`, `timeout`.
"""

from __future__ import annotations

import os
import sys

from commands.context import Context, say
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Invalid, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILES = {"codex": os.path.join(".codex", "hooks.json"), "claude": os.path.join(".claude", "settings.json")}
_HANDLERS = (
    ("SessionStart", "gatebook guard capture", 10),
    ("PostToolUse", "gatebook guard capture", 10),
    ("Stop", "gatebook guard stop", 10),
)
_OURS = frozenset(command for _, command, _ in _HANDLERS)
_LIMIT = 4 << 20


def installed() -> dict[str, str]:
    """Per agent the hook file of this folder that holds the Stop guard, or ``."""
    found = {}
    for agent, name in FILES.items():
        try:
            document = _read(name)[1]
        except (Invalid, Refused):
            document = {}
        found[agent] = os.path.abspath(name) if _has_guard(document) else ""
    return found


def _has_guard(document: dict[str, Any]) -> bool:
    groups = [group for group in document.get("hooks", {}).get("Stop", ()) if isinstance(group, dict)]
    handlers = [one for group in groups for one in group.get("hooks") or () if isinstance(one, dict)]
    return any(one.get("command") == "gatebook guard stop" for one in handlers)


def _read(name: str) -> tuple[bytes | None, dict[str, Any]]:
    """(bytes, document) of a hook file; (None, {}) where there is none. `Invalid` unless it is one JSON object."""
    from commands.plan_runs.documents import parse_document
    from commands.plan_runs.rooted import MissingFileError, read_file

    try:
        raw = read_file(os.getcwd(), name, limit=_LIMIT)
    except MissingFileError:
        return None, {}
    document = parse_document(raw, name) if raw.strip() else {}
    hooks = document.get("hooks", {}) if isinstance(document, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise Invalid(f"{name}: is not a hook file (an object with `hooks`, lists by event); mend it first")
    return raw, document


def with_handlers(document: dict[str, Any]) -> dict[str, Any]:
    """The document with each of our handlers exactly once, after what stands there."""
    clean = without_handlers(document)
    hooks = {event: list(groups) for event, groups in clean.get("hooks", {}).items()}
    for event, command, seconds in _HANDLERS:
        hooks.setdefault(event, []).append(
            {"hooks": [{"type": "command", "command": command, "timeout": seconds}]}
        )
    return {**clean, "hooks": hooks}


def without_handlers(document: dict[str, Any]) -> dict[str, Any]:
    """The document without our handlers, and without the groups and events that were only ours."""
    hooks: dict[str, Any] = {}
    for event, groups in document.get("hooks", {}).items():
        kept = [group for group in (_without_ours(group) for group in groups) if group is not None]
        if kept or not groups:
            hooks[event] = kept
    rest = {name: value for name, value in document.items() if name != "hooks"}
    return {**rest, "hooks": hooks} if hooks or ("hooks" in document and not document["hooks"]) else rest


def _without_ours(group: Any) -> Any:
    if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
        return group
    kept = [
        one for one in group["hooks"] if not (isinstance(one, dict) and str(one.get("command", "")) in _OURS)
    ]
    if len(kept) == len(group["hooks"]):
        return group
    return {**group, "hooks": kept} if kept else None


def _render(document: dict[str, Any]) -> bytes:
    from commands.plan_runs.documents import render_document

    return render_document(document)


def _original(path: str) -> str:
    """Where the file's bytes before our installation are kept, so that undoing restores them exactly."""
    from blake3 import blake3

    from ledger.home import state_dir

    return os.path.join(state_dir(), "hooks", blake3(os.fsencode(path)).hexdigest())


def _require_person(context: Context, *, yes: bool) -> None:
    from commands.plan_runs.owner import agent_session

    agent = agent_session(context.actor())
    if agent is not None:
        raise Refused(
            f"an agent session ({agent}) does not change its own hooks; a person does, in a terminal"
        )
    if not yes and not sys.stdin.isatty():
        raise Refused("no terminal here to ask at; give --yes, outside an agent session")


def _diff(name: str, before: bytes, after: bytes) -> str:
    import difflib

    lines = difflib.unified_diff(
        before.decode().splitlines(), after.decode().splitlines(), f"a/{name}", f"b/{name}", lineterm=""
    )
    return "\n".join(lines)


def _change(args: Args, name: str, before: bytes | None, after: bytes | None) -> bool:
    """Shows the difference, asks where nobody said --yes, writes; whether the file was changed."""
    from commands.plan_runs.rooted import make_folder, remove_file, write_file

    if (before or b"") == (after or b""):
        say(f"{name}: nothing to change")
        return False
    say(_diff(name, before or b"", after or b""))
    if not args.yes:
        sys.stderr.write(f"Write {name}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say(f"{name}: left as it is")
            return False
    if after is None:
        remove_file(os.getcwd(), name)
    else:
        make_folder(os.getcwd(), os.path.dirname(name))
        write_file(os.getcwd(), name, after)
    return True


def _name(args: Args) -> str:
    if args.agent not in FILES:
        raise Usage(f"{args.agent!r} is not one of {', '.join(FILES)}")
    return FILES[args.agent]


ON_PATH = "install it where the agent finds it (`pip install .`)"


def callable_by_name() -> bool:
    """Whether a hook's `gatebook` is found, as far as this process' PATH tells."""
    import shutil

    return shutil.which("gatebook") is not None


def install(args: Args, context: Context) -> int:
    """`hooks install`: our handlers stand in the agent's hook file of this folder."""
    from ledger.files import write_whole
    from ledger.notice import tell

    name = _name(args)
    _require_person(context, yes=args.yes)
    before, document = _read(name)
    wanted = with_handlers(document)
    after = before if before is not None and wanted == document else _render(wanted)
    if _change(args, name, before, after):
        kept = _original(os.path.abspath(name))
        os.makedirs(os.path.dirname(kept), 0o700, exist_ok=True)
        write_whole(kept, after + b"\0" + (b"" if before is None else b"+" + before))
        if args.agent == "codex":
            tell("Codex asks once whether it may trust new hooks; review them there with /hooks")
        if not callable_by_name():
            tell(f"the hooks call `gatebook`, which is not on PATH here: {ON_PATH}")
    return 0


def uninstall(args: Args, context: Context) -> int:
    """`hooks uninstall`: the file is as it was; where it was edited since, only our handlers are taken out."""
    name = _name(args)
    _require_person(context, yes=args.yes)
    before, document = _read(name)
    if before is None:
        say(f"{name}: nothing to change")
        return 0
    clean = without_handlers(document)
    after: bytes | None = before if clean == document else (_render(clean) if clean else None)
    kept = _original(os.path.abspath(name))
    try:
        with open(kept, "rb") as file:
            ours, _, original = file.read().partition(b"\0")
    except OSError:
        ours, original = b"", b""
    if ours == before:
        after = original[1:] if original else None
    if _change(args, name, before, after) and os.path.exists(kept):
        os.unlink(kept)
    return 0


_AGENT = Word("AGENT", "codex or claude", offers=lambda: FILES)
_YES = Flag("--yes", None, "do not ask (outside an agent session)")

COMMANDS = {
    "hooks install": Command(
        install,
        "Adds the Stop guard and event capture to the agent's hook file in this folder (.codex/hooks.json or\n"
        ".claude/settings.json), after showing the difference. A person runs it, in a terminal or with --yes.",
        words=(_AGENT,),
        flags=(_YES,),
        example="gatebook hooks install codex",
    ),
    "hooks uninstall": Command(
        uninstall,
        "Takes the handlers out again; an unedited file becomes what it was, byte for byte.",
        words=(_AGENT,),
        flags=(_YES,),
        example="gatebook hooks uninstall codex",
    ),
}
