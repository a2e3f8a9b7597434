"""Events as `log`, `show` and `export` write them: whole as JSON, or a line for people."""

from __future__ import annotations

from ledger.canonical import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.event import Event
    from ledger.sqlite import SQLiteStore

CLIPPED = 100
SIGNS = {"recorded": " ", "replicated": "=", "self-signed": "~", "attested": "+", "witnessed": "*"}


class Reach:
    """How far the record of each event is promised: recorded, replicated, self-signed, attested, witnessed (DESIGN, promises)."""

    def __init__(self, ledger: Ledger) -> None:
        self.size = 0
        self._stored = self._promise = ledger.store.promise
        if ledger.store.reader().of_type("ledger.checkpointed", 1):  # else nothing need be imported to say so
            from commands.audit.against import reach

            found = reach(ledger)
            if found is not None and not (found.promise == "self-signed" and self._stored == "replicated"):
                self.size, self._promise = found.head.size, found.promise

    def promise(self, event: Event) -> str:
        """The promise for one event."""
        return self._promise if event.seq <= self.size else self._stored


def content_json(content: bytes) -> object:
    """Content as text where it is UTF-8, else `{"base64": …}`."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(content).decode()}


def whole(event: Event, store: SQLiteStore) -> dict[str, object]:
    """One event, whole: the envelope's members, data, content (or `redacted`), salt and hash."""
    members = event.members
    found: dict[str, object] = {
        name: members[name] for name in ("seq", "stream", "version", "type", "v", "recorded_at")
    }
    found.update({name: value for name, value in members.items() if name not in found})
    found["data"] = load(event.data)
    if event.content_digest is not None:
        content = store.artifact(event)
        found["content"] = None if content is None else content_json(content)
        found["salt"] = None if event.salt is None else event.salt.hex()
        found["redacted"] = event.redacted
    found["hash"] = event.hash.hex()
    return found


def printable(text: str) -> str:
    """One line of foreign text for a terminal: control characters, which could steer it, are written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    flat = printable(flat[: CLIPPED + 1])
    return flat if len(flat) <= CLIPPED else flat[:CLIPPED] + "…"


def line(event: Event, store: SQLiteStore, promise: str = "recorded") -> str:
    """One event in a line for people; control characters of foreign text never reach the terminal.

    The sign after the number says how far its record is promised: = replicated, ~ self-signed, + attested, * witnessed.
    """
    shown = event.data.decode("utf-8", "replace")
    if event.redacted:
        note = "  [redacted]"
    elif event.content_digest is not None:
        content = store.artifact(event)
        note = "  [content missing]" if content is None else f"  “{content[:400].decode('utf-8', 'replace')}”"
    else:
        note = ""
    place = printable(f"{event.stream} v{event.version}")
    return f"{event.seq:>6}{SIGNS[promise]} {event.recorded_at}  {place:<34} {event.type:<22} {printable(event.actor):<18} {_one_line(shown + note)}"
