"""What a receipt allows: its fields, the order of its checks, its use (contract: Receipts). Pure.

`receipt check`, `receipt consume`, the admission of `receipt.consumed` and the Python call judge by this one file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 1
TARGET_TYPES = ("assignment", "quiz", "automation_template")
AGENTS = ("codex", "claude", "agent")
"""The kinds of actor that are an agent's session: such a one never issues its own receipt."""
FUTURE_ALLOWANCE_US = 120_000_000
"""A receipt issued more than this many microseconds after the clock is refused."""


class ActionRule:
    """How often an action may be used under one receipt (0: as often as needed), and whether it ends it."""

    __slots__ = ("limit", "terminal")

    def __init__(self, limit: int, *, terminal: bool = False) -> None:
        self.limit = limit
        self.terminal = terminal


ACTIONS: dict[str, ActionRule] = {
    "assignment.submit_text": ActionRule(1, terminal=True),
    "assignment.submit_url": ActionRule(1, terminal=True),
    "assignment.submit_files": ActionRule(1, terminal=True),
    "assignment.comment": ActionRule(1),
    "assignment.upload_init": ActionRule(0),
    "assignment.upload_blob": ActionRule(0),
    "quiz.start": ActionRule(1),
    "quiz.retake": ActionRule(1),
    "quiz.answer": ActionRule(0),
    "quiz.event": ActionRule(0),
    "quiz.complete": ActionRule(1),
}
"""The known actions; `quiz.complete` has its own rule in `usage_fault` and `is_terminal`."""

_LABEL_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-")
_LOOPBACK = frozenset(("localhost", "::1"))
_NO_SESSION = "none (CODEX_THREAD_ID and --session name none, or two)"
_PORTS = {"http": "80", "https": "443"}


def needs_evidence(action: str) -> bool:
    """Whether the item's verification gate comes before this action is consumed."""
    return action.startswith("assignment.") or action in ("quiz.answer", "quiz.complete")


def canonical_origin(text: str) -> str:
    """`scheme://host[:port]`, lower case, default port dropped; `ValueError` for user info, a path, or another scheme."""
    # Judged before it is lowered: some letters outside ASCII have an ASCII lower case (the kelvin sign).
    if not text.isascii():
        raise ValueError(f"origin {text!r} holds a letter outside ASCII; write its host as xn--…")
    scheme, mark, rest = text.strip().lower().partition("://")
    if mark == "" or scheme not in _PORTS:
        raise ValueError(f"origin {text!r} is not http(s)://host[:port]")
    rest = rest.removesuffix("/")
    if not rest or any(letter in "/?#@\\%* " or not letter.isprintable() for letter in rest):
        raise ValueError(f"origin {text!r} holds more than a host and a port")
    if rest.startswith("["):
        host, bracket, after = rest.partition("]")
        host += bracket
        if bracket == "" or not (after == "" or after.startswith(":")):
            raise ValueError(f"origin {text!r} holds a broken address")
        port = after.removeprefix(":") if after else None
    else:
        host, colon, port_text = rest.partition(":")
        port = port_text if colon else None
    if host in ("", "[]"):
        raise ValueError(f"origin {text!r} has no host")
    if port is not None and not (
        port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    ):
        raise ValueError(f"origin {text!r} has no port from 1 to 65535")
    port = None if port is None else str(int(port))
    return f"{scheme}://{host}" if port in (None, _PORTS[scheme]) else f"{scheme}://{host}:{port}"


def is_loopback(origin: str) -> bool:
    """Whether a canonical origin is this machine's own: localhost, 127.0.0.0/8 or ::1."""
    host = origin.partition("://")[2]
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    parts = host.split(".")
    is_127 = (
        len(parts) == 4
        and parts[0] == "127"
        and all(part.isdigit() and len(part) <= 3 and int(part) < 256 for part in parts)
    )
    return host in _LOOPBACK or is_127


def is_label(text: str) -> bool:
    """Whether `text` may name an authority: `[A-Za-z0-9._:/-]{1,120}`."""
    return 0 < len(text) <= 120 and _LABEL_LETTERS.issuperset(text)


def actions_fault(
    target_type: str, actions: list[str], rules: Mapping[str, ActionRule] = ACTIONS
) -> str | None:
    """What is wrong with a receipt's actions for its target type, or None."""
    if target_type not in TARGET_TYPES:
        return f"target_type {target_type!r} is not one of {', '.join(TARGET_TYPES)}"
    if not actions:
        return "a receipt needs an action"
    if actions != sorted(set(actions)):
        return "actions are not sorted and unique"
    prefixes = ("assignment.", "quiz.") if target_type == "automation_template" else (f"{target_type}.",)
    for action in actions:
        if action not in rules:
            return f"action {action!r} is not known"
        if not action.startswith(prefixes):
            return f"action {action} does not belong to a target of type {target_type}"
    return None


def is_terminal(
    action: str, uses: Mapping[str, int], actions: list[str], rules: Mapping[str, ActionRule] = ACTIONS
) -> bool:
    """Whether using `action` now, after `uses`, ends the receipt."""
    if action == "quiz.complete":
        retake_open = "quiz.retake" in actions and uses.get("quiz.retake", 0) == 0
        return not retake_open or uses.get(action, 0) + 1 >= complete_limit(actions)
    return rules[action].terminal


def complete_limit(actions: list[str]) -> int:
    """How often `quiz.complete` may be used: once, twice under a receipt with `quiz.retake`."""
    return 2 if "quiz.retake" in actions else 1


def usage_fault(
    action: str,
    uses: Mapping[str, int],
    actions: list[str],
    *,
    closed: str | None,
    rules: Mapping[str, ActionRule] = ACTIONS,
) -> str | None:
    """Why `action` may not be used (again), or None. `closed` says what ended the receipt (None: nothing has)."""
    if closed is not None:
        return f"the receipt is spent: {closed}"
    limit = complete_limit(actions) if action == "quiz.complete" else rules[action].limit
    count = uses.get(action, 0)
    if limit and count >= limit:
        return f"{action} was used {count} of {limit} times already"
    return None


def scope_fault(
    receipt: Mapping[str, Any], request: Mapping[str, Any], now_us: int, times_us: tuple[int, int]
) -> str | None:
    """The first fault of a signed receipt for a request, in the contract's order from origin to the synthetic rule.

    `request` has origin (canonical), course_id, target_type, target_id, action, session_id, user. `now_us` is the
    clock as read, `times_us` issued_at and expires_at, all in microseconds since the epoch.
    """
    for field, name in (("origin", "origin"), ("course_id", "course")):
        if receipt[field] != request[field]:
            return f"{name}: the receipt is for {receipt[field]}, asked was {request[field]}"
    if (receipt["target_type"], receipt["target_id"]) != (request["target_type"], request["target_id"]):
        return (
            f"target: the receipt is for {receipt['target_type']} {receipt['target_id']}, "
            f"asked was {request['target_type']} {request['target_id']}"
        )
    if receipt["target_type"] == "automation_template":
        return "target: an automation_template is delegated only, never consumed"
    if request["action"] not in receipt["actions"]:
        return f"action: the receipt allows {', '.join(receipt['actions'])}, asked was {request['action']}"
    for field, name in (("session_id", "session"), ("user", "user")):
        if receipt[field] != request[field]:
            return f"{name}: the receipt is for {receipt[field]}, this is {request[field] or _NO_SESSION}"
    issued_us, expires_us = times_us
    if now_us >= expires_us:
        return f"expired: the receipt was valid until {receipt['expires_at']}"
    if issued_us - now_us > FUTURE_ALLOWANCE_US:
        return f"future: the receipt was issued at {receipt['issued_at']}, more than 2 minutes ahead of the clock"
    if receipt["synthetic_qa"] and not is_loopback(receipt["origin"]):
        return f"synthetic: a synthetic_qa receipt is for loopback origins only, not {receipt['origin']}"
    return None
