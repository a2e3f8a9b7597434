"""`guard stop`: a Stop hook for coding agents; reads the hook's JSON, prints the hook's JSON, exits 0 always."""

from __future__ import annotations

import sys

from commands.context import Context, emit
from commands.flags import Args, Command, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

_SECONDS = 4.5
_STDIN_LIMIT = 1 << 20


class TooSlowError(Exception):
    """The guard's time is over."""


def _too_slow(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TooSlowError(f"no answer in {_SECONDS} s")


def stop(args: Args, context: Context) -> int:
    """`{"decision":"block","reason":…}` while this session's run is unfinished, else `{}`; any fault of ours: `{}`."""
    return _hook("stop", lambda: _answer(args, context))


def capture(_args: Args, context: Context) -> int:
    """Records that a hook event happened, as an open event; prints `{}` always."""
    return _hook("capture", lambda: _capture(context))


def _hook(name: str, answer: Callable[[], dict[str, Any]]) -> int:
    import signal

    signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    reply: dict[str, Any] = {}
    try:
        reply = answer()
    except Exception as error:  # noqa: BLE001 - a hook that fails must not keep an agent from stopping
        text = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"gatebook: guard {name}: {text}; the agent goes on\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    emit(reply)
    return 0


def _read_hook() -> tuple[dict[str, Any], str, bytes]:
    """(the hook's document, its session id, its bytes) from stdin."""
    from commands.plan_runs.documents import parse_document
    from ledger.errors import Invalid

    raw = sys.stdin.buffer.read(_STDIN_LIMIT + 1)
    hook = parse_document(raw, "stdin")
    if not isinstance(hook, dict):
        raise Invalid("stdin: is not the hook's JSON object")
    session = hook.get("session_id")
    if not isinstance(session, str) or not session:
        raise Invalid("stdin: has no session_id")
    return hook, session, raw


def _runs_of(hook: dict[str, Any]) -> str | None:
    """`runs/` of the folder that the hook says the agent works in, where there is one."""
    import os

    folder = hook.get("cwd")
    runs = os.path.join(folder if isinstance(folder, str) and os.path.isabs(folder) else os.getcwd(), "runs")
    return runs if os.path.isdir(runs) else None


def _capture(context: Context) -> dict[str, Any]:
    """Only names and a digest are kept: what a tool was given may hold anything."""
    from blake3 import blake3

    from ledger.canonical import encode
    from ledger.event import Draft

    hook, session, raw = _read_hook()
    data = {
        "event": str(hook.get("hook_event_name", ""))[:64],
        "tool": str(hook.get("tool_name", ""))[:128],
        "digest": blake3(raw).hexdigest(),
    }
    draft = Draft(
        f"x-agent/{session}",
        "x.agent.hook_called",
        encode(data, what="hook", floats=False),
        correlation=session,
    )
    context.ledger().append([draft], context.origin())
    return {}


def _answer(args: Args, context: Context) -> dict[str, Any]:
    hook, session, _ = _read_hook()
    # Once is enough: an agent that was blocked and stops again is let go, or it would never end.
    if hook.get("stop_hook_active"):
        return {}
    from commands.plan_runs.guarding import reason_to_go_on

    reason = reason_to_go_on(context, session, args.runs or _runs_of(hook))
    return {} if reason is None else {"decision": "block", "reason": reason}


COMMANDS = {
    "guard capture": Command(
        capture,
        "A hook for any event: records its name, the tool's name and a digest in x-agent/<session>; prints {} and exits 0 always.",
        example="""echo '{"session_id":"s1","hook_event_name":"PostToolUse","tool_name":"Bash"}' | gatebook guard capture""",
    ),
    "guard stop": Command(
        stop,
        "A Stop hook: reads the hook's JSON on stdin; while the session named there owns a run whose items have not all\n"
        "valid results, blocks stopping once, with the reason. Exits 0 always, in 5 seconds at most.",
        flags=(
            Flag(
                "--runs",
                "DIR",
                "also look at the markers of this runs folder (default: runs/ where the agent works)",
            ),
        ),
        example="""echo '{"session_id":"s1","stop_hook_active":false}' | gatebook guard stop""",
    ),
}
