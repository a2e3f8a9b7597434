"""What every command gets beside its own arguments: the global options, the ledger, stdout."""

from __future__ import annotations

import _json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from ledger.access import Ledger
    from ledger.event import Origin


class Context:
    """The global options of one call, and what follows from them."""

    __slots__ = ("_ledger", "actor_given", "ledger_given", "log_format", "log_level", "via")

    def __init__(self, via: str = "") -> None:
        self.ledger_given: str | None = None
        self.actor_given: str | None = None
        self.log_format = "console"
        self.log_level = "warning"
        self.via = via
        self._ledger: Ledger | None = None

    def actor(self) -> str:
        """`--actor`, `$GATEBOOK_ACTOR`, `codex:$CODEX_THREAD_ID`, `cli:<login>`: the first there is (contract ledger)."""
        named = self.actor_given or os.environ.get("GATEBOOK_ACTOR")
        if named:
            return named
        thread = os.environ.get("CODEX_THREAD_ID")
        if thread:
            return f"codex:{thread}"
        import pwd

        try:
            return f"cli:{pwd.getpwuid(os.geteuid()).pw_name}"
        except KeyError:
            return f"cli:{os.geteuid()}"

    def origin(self) -> Origin:
        """The actor and the command as they stand in events."""
        from ledger.event import Origin

        return Origin(self.actor(), self.via)

    def ledger(self) -> Ledger:
        """The ledger of this call, opened once: `--ledger`, `$GATEBOOK_LEDGER`, or the nearest trusted `.gatebook/`.

        Raises:
            Usage: none there (exit 2). Refused: found but not trusted.
        """
        if self._ledger is None:
            from ledger.access import open_current

            self._ledger = open_current(self.ledger_given)
        return self._ledger

    @property
    def opened(self) -> Ledger | None:
        """The ledger, if this call opened one."""
        return self._ledger

    def ledger_if_any(self) -> Ledger | None:
        """The ledger of this call, or None where there is none (for commands that need no ledger)."""
        from ledger.access import find

        if (
            self._ledger is None
            and not self.ledger_given
            and not os.environ.get("GATEBOOK_LEDGER")
            and find() is None
        ):
            return None
        return self.ledger()

    def log(self) -> FilteringBoundLogger:
        """Structlog to stderr with the call's format and level; imported only when something is to be said."""
        from commands.diagnostics import logger

        return logger(self.log_format, self.log_level)

    def take_notices(self) -> None:
        """Let what is told beside the answer (`ledger.notice`) follow `--log-format` and `--log-level`."""
        if self.log_format == "json" or self.log_level == "error":
            from ledger.notice import divert

            divert(self._tell)

    def _tell(self, level: str, text: str) -> None:
        if self.log_format == "json":
            getattr(self.log(), level)(text, command=self.via)
        elif level == "error":
            sys.stderr.write(f"gatebook: {text}\n")

    def close(self) -> None:
        """Close the ledger if one was opened, after what its reader must be told."""
        if self._ledger is not None:
            if self._ledger.notice:
                from ledger.notice import tell

                tell(self._ledger.notice)
            self._ledger.close()
            self._ledger = None


def _unencodable(value: object) -> object:
    raise TypeError(f"{type(value).__name__} in output")


def dumps(value: object, *, pretty: bool = False) -> str:
    """Compact JSON in the given key order; what is not UTF-8 text (odd file names) is escaped."""
    if pretty:
        import json

        return json.dumps(value, indent=2, ensure_ascii=False)
    text = _compact(value, _json.encode_basestring)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _compact(value, _json.encode_basestring_ascii)
    return text


def _compact(value: object, quote: Callable[[str], str]) -> str:
    return "".join(
        _json.make_encoder(None, _unencodable, quote, None, ":", ",", False, False, False)(value, 0)
    )


def emit(value: object) -> None:
    """Print the one JSON document of a command; escaped where stdout's encoding is not UTF-8."""
    try:
        sys.stdout.write(dumps(value) + "\n")
    except UnicodeEncodeError:
        sys.stdout.write(_compact(value, _json.encode_basestring_ascii) + "\n")


def put(text: str) -> None:
    """Write a document that is UTF-8 by its standard (a signed note, a proof), whatever the terminal's encoding is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())


def say(text: str) -> None:
    """Print a line for people; what the terminal cannot show is escaped."""
    try:
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
