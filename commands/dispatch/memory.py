"""Optional memory: an MCP server of the user's configuration, asked before the work and told after acceptance.

Contract page dispatch: recall is bounded, capture comes only after a proven and accepted result, and no failure here
ever changes a result. The worker and the request never name its tools.
"""

from __future__ import annotations

import os

from commands.dispatch.codex_wire import RequestError, Server, WireError
from commands.dispatch.request import listed
from ledger.errors import GatebookError
from projections.dispatch_events import Captured, Recalled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.dispatch.config import MemoryConfig
    from commands.dispatch.work import Work

TIMEOUT = 20.0  # seconds for all intents of one direction
MAX_RECALL = 8192  # bytes that reach the packet
_PROTOCOL = "2025-06-18"


def memory_of(work: Work, context: Context) -> Memory:
    """The memory that a request may use: none unless it says so and the user's configuration names one."""
    from commands.dispatch.config import load_config

    config = None
    if work.request.context.memory.enabled:
        try:
            config = load_config(work.ceiling.folder).memory
        except GatebookError as error:
            context.log().warning(f"memory is not used: {error}")
    return Memory(work, config, context)


class Memory:
    """The memory of one call; without configuration or permission it does nothing."""

    def __init__(self, work: Work, config: MemoryConfig | None, context: Context) -> None:
        asked = work.request.context.memory
        self._work = work
        self._config = config
        self._context = context
        self.recalls, self.captures = listed(asked.recall), listed(asked.capture)

    def project(self) -> str:
        """The project id of this memory, empty when none is named."""
        if self._config is None:
            return ""
        return self._work.request.context.project or self._config.project_id

    def scope(self) -> str:
        """One project id, else the repository's root, else a temporary scope."""
        from commands.git import run_git

        if self.project():
            return self.project()
        try:
            top = run_git(["rev-parse", "--show-toplevel"], self._work.ceiling.folder)
        except GatebookError:
            return f"temporary:{self._work.stream.partition('/')[2]}"
        return os.fsdecode(top.removesuffix(b"\n"))

    def recalled(self) -> str:
        """What memory says to the request's intents: asked once a run, then read from the record."""
        state = self._work.state
        if state.recalled:
            event = self._work.newest("memory.recalled", state.requested_seq)
            return str(self._work.content(event)["text"]) if event is not None else ""
        if self._config is None or not self.recalls or state.attempts:
            return ""
        try:
            text = self._clean(self._call(self._config, self._config.recall_tool, "query", self.recalls))
            raw = text.encode("utf-8", "replace")
            kept = raw[:MAX_RECALL].decode("utf-8", "ignore")
            self._work.add("memory.recalled", Recalled(len(raw), len(raw) > MAX_RECALL), {"text": kept})
        except (WireError, RequestError, OSError, ValueError, GatebookError) as error:
            self._context.log().warning(f"memory was not asked: {error}")
            return ""
        return kept

    def capture(self) -> None:
        """Tell memory what the request wants kept, after acceptance."""
        state = self._work.state
        if self._config is None or not self.captures or state.status != "accepted" or state.captured:
            return
        try:
            self._call(self._config, self._config.capture_tool, "text", self.captures)
            self._work.add("memory.captured", Captured(len(self.captures)), {"intents": self.captures})
        except (WireError, RequestError, OSError, ValueError, GatebookError) as error:
            self._context.log().warning(f"memory was not told: {error}")

    def _clean(self, text: str) -> str:
        from ledger.credentials import find_credential

        if find_credential(text.encode("utf-8", "replace")) is not None:
            raise WireError("what it recalled carries what looks like a credential")
        return text

    def _call(self, config: MemoryConfig, tool: str, argument: str, intents: list[str]) -> str:
        scope = self.scope()
        server = Server(TIMEOUT, argv=config.command, extra={"jsonrpc": "2.0"})
        try:
            client = {"name": "gatebook", "version": "1"}
            server.request(
                "initialize", {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": client}
            )
            server.send({"method": "notifications/initialized"})
            said = [
                server.request("tools/call", {"name": tool, "arguments": {argument: intent, "scope": scope}})
                for intent in intents
            ]
        finally:
            server.close()
        return "\n\n".join(text for result in said for text in _texts(result))


def _texts(result: dict[str, object]) -> list[str]:
    if result.get("isError"):
        raise WireError("the tool reports an error")
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
