"""One turn of Codex, from the prompt to a typed result (contract pages dispatch, codex-app-server)."""

from __future__ import annotations

import time

from commands.dispatch.codex_errors import availability_reason, quota_reset
from commands.dispatch.codex_wire import GRACE, RequestError, Server, WireError, initialize
from commands.dispatch.returned import AVAILABILITY, MISSING, SUCCEEDED, Returned, failed

_POLICIES: dict[str, dict[str, object]] = {
    "read-only": {"type": "readOnly", "networkAccess": False},
    "workspace-write": {
        "type": "workspaceWrite",
        "writableRoots": [],
        "networkAccess": False,
        "excludeTmpdirEnvVar": False,
        "excludeSlashTmp": False,
    },
}
SANDBOXES = tuple(_POLICIES)


class Turn:
    """What was asked: passed on exactly as given, each of it explicitly."""

    __slots__ = ("cwd", "effort", "model", "prompt", "sandbox")

    def __init__(self, *, cwd: str, sandbox: str, model: str, effort: str, prompt: str) -> None:
        self.cwd = cwd
        self.sandbox = sandbox
        self.model = model
        self.effort = effort
        self.prompt = prompt


class _Progress:
    """What the server said on the way to the end of the turn."""

    __slots__ = ("error", "final", "last", "limits", "refused", "status", "usage")

    def __init__(self) -> None:
        self.final: str | None = None  # as said, even when it is empty: then there is no report
        self.last = ""
        self.limits: object = None
        self.usage: object = None
        self.refused = False
        self.status: object = None
        self.error: object = None

    def keep_item(self, item: object) -> None:
        if (
            not isinstance(item, dict)
            or item.get("type") != "agentMessage"
            or not isinstance(item.get("text"), str)
        ):
            return
        self.last = item["text"]
        if item.get("phase") == "final_answer":
            self.final = item["text"]


def run_turn(turn: Turn, *, timeout: float, actor: str = "") -> Returned:
    """Ask Codex once (`actor`: see Server) and wait, at most `timeout` seconds; every outcome is a Returned, none an exception."""
    try:
        server = Server(timeout, actor)
    except (OSError, ValueError):
        return Returned(MISSING, why="codex cannot be started")
    try:
        return _converse(server, turn)
    except WireError as error:
        return failed(str(error), ending="timed_out" if error.late else "killed")
    finally:
        server.close()


def _converse(server: Server, turn: Turn) -> Returned:
    progress = _Progress()
    server.on_request = lambda message: _refuse(server, message, progress)
    try:
        initialize(server)
    except RequestError:
        return Returned(MISSING, why="codex refused to initialize")
    except WireError as error:
        return failed(str(error), ending="timed_out") if error.late else Returned(MISSING, why=str(error))
    try:
        thread = _start_thread(server, turn)
        number = _start_turn(server, turn, thread)
    except RequestError as error:
        return failed(f"codex refused {error}")
    try:
        _follow(server, thread, number, progress)
    except WireError as error:
        if not error.late:
            raise
        _interrupt(server, thread, number)
        return failed("codex did not end in time", ending="timed_out")
    return _judge(progress)


def _start_thread(server: Server, turn: Turn) -> str:
    # Ephemeral and read-only: what the turn may write is said on the turn alone, so nothing is trusted for later.
    asked: dict[str, object] = {
        "cwd": turn.cwd,
        "sandbox": "read-only",
        "approvalPolicy": "never",
        "ephemeral": True,
        "model": turn.model,
    }
    return _identity(server.request("thread/start", asked), "thread")


def _start_turn(server: Server, turn: Turn, thread: str) -> str:
    asked: dict[str, object] = {
        "threadId": thread,
        "input": [{"type": "text", "text": turn.prompt}],
        "cwd": turn.cwd,
        "model": turn.model,
        "effort": turn.effort,
        "approvalPolicy": "never",
        "sandboxPolicy": _POLICIES[turn.sandbox],
    }
    return _identity(server.request("turn/start", asked), "turn")


def _identity(result: dict[str, object], what: str) -> str:
    found = result.get(what)
    identity = found.get("id") if isinstance(found, dict) else None
    if not isinstance(identity, str) or not identity:
        raise WireError(f"the server gave the {what} no id")
    return identity


def _follow(server: Server, thread: str, number: str, progress: _Progress) -> None:
    """Listen until this turn is complete."""
    for message in server.messages():
        params = message.get("params")
        if "method" not in message or not isinstance(params, dict):
            if "method" in message and "id" in message:
                _refuse(server, message, progress)
            continue
        if "id" in message:
            _refuse(server, message, progress)
        elif message["method"] == "account/rateLimits/updated":
            progress.limits = params.get("rateLimits") or progress.limits  # null takes nothing back
        elif _is(params.get("threadId"), thread) and _note(message["method"], params, number, progress):
            return


def _is(named: object, ours: str) -> bool:
    """Whether what a notification names is ours; where it names none, or null, there is no other it could mean."""
    return named is None or named == ours


def _note(method: object, params: dict[str, object], number: str, progress: _Progress) -> bool:
    """Take in one notification of our thread; True when it ends the turn."""
    turn = params.get("turn")
    if method == "item/completed" and _is(params.get("turnId"), number):
        progress.keep_item(params.get("item"))
    elif method == "thread/tokenUsage/updated":
        progress.usage = params.get("tokenUsage")
    elif method == "turn/completed" and isinstance(turn, dict) and _is(turn.get("id"), number):
        items = turn.get("items")
        for item in items if isinstance(items, list) else []:
            progress.keep_item(item)
        progress.status, progress.error = turn.get("status"), turn.get("error")
        return True
    return False


def _refuse(server: Server, message: dict[str, object], progress: _Progress) -> None:
    """Answer a request of the server's with a refusal: nobody is there to approve, so the turn has failed."""
    progress.refused = True
    server.deadline = min(server.deadline, time.monotonic() + GRACE)
    method = str(message.get("method"))
    if method.endswith("/requestApproval") and "permissions" not in method:
        server.send({"id": message["id"], "result": {"decision": "cancel"}})
    elif method in ("execCommandApproval", "applyPatchApproval"):  # the same in the older protocol
        server.send({"id": message["id"], "result": {"decision": "abort"}})
    else:
        server.send(
            {"id": message["id"], "error": {"code": -32601, "message": "refused: nobody is here to answer"}}
        )


def _interrupt(server: Server, thread: str, number: str) -> None:
    """Ask the turn to end before the server is killed, so that it stops its own commands first."""
    server.deadline = time.monotonic() + GRACE
    try:
        server.tell("turn/interrupt", {"threadId": thread, "turnId": number})
        _follow(server, thread, number, _Progress())
    except WireError:
        pass


def _judge(progress: _Progress) -> Returned:
    if progress.refused:
        return failed("codex asked for an approval that nobody can give", healthy=True)
    if progress.status == "failed":
        return _judge_failure(progress)
    if progress.status != "completed" or progress.error is not None:
        return failed("the turn did not complete", healthy=progress.status == "interrupted")
    text = progress.last if progress.final is None else progress.final
    if not text.strip():
        return failed("codex completed without a final message", healthy=True)
    return Returned(SUCCEEDED, healthy=True, report=text, usage=_usage(progress))


def _judge_failure(progress: _Progress) -> Returned:
    reason = availability_reason(progress.error)
    if reason is None:
        return failed("the turn failed", healthy=True)
    retry_at = quota_reset(progress.limits) if reason == "quota" else None
    return Returned(
        AVAILABILITY, reason=reason, retry_at=retry_at, why=f"codex: {reason}", usage=_usage(progress)
    )


def _usage(progress: _Progress) -> str:
    """`total 1234 input 1000 output 234`, from the numbers alone; empty when the server gave none."""
    total = progress.usage.get("total") if isinstance(progress.usage, dict) else None
    if not isinstance(total, dict):
        return ""
    names = (("total", "totalTokens"), ("input", "inputTokens"), ("output", "outputTokens"))
    return " ".join(f"{name} {total[key]}" for name, key in names if type(total.get(key)) is int)
