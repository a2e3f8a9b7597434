"""Receipts as files: made, signed with the ledger's receipt key, read back strictly (contract: Receipts)."""

from __future__ import annotations

import os

from commands.plan_runs.documents import parse_document, render_document
from commands.plan_runs.rooted import read_file
from ledger.errors import Invalid, Refused, Usage
from projections.receipt_form import file_fields, signed_bytes
from projections.receipt_rules import ACTIONS, VERSION, ActionRule, canonical_origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ledger.access import Ledger
    from projections.receipt import Issued, Reference

_LIMIT = 64 << 10


def local_user() -> str:
    """The login of the effective user: what a receipt's `user` is compared with."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def sign_receipt(ledger: Ledger, fields: dict[str, Any]) -> str:
    """The Ed25519 signature (hex) by the ledger's receipt key; `Refused` where this machine does not have it."""
    from commands.authority.keys import current_key

    return current_key(ledger, "receipt").sign(signed_bytes(fields)).hex()


def render_receipt(issued: Issued) -> bytes:
    """The bytes of a receipt's file."""
    return render_document(file_fields(issued))


def read_receipt(path: str) -> dict[str, Any]:
    """The object in a receipt's file; `Invalid` or `Refused` when it is no regular JSON file."""
    folder, name = os.path.split(os.path.abspath(path))
    value = parse_document(read_file(folder, name, limit=_LIMIT), path)
    if not isinstance(value, dict):
        raise Invalid(f"{path}: is not a receipt")
    return value


def reference(given: str) -> Reference:
    """The authority's reference: a label, a random salt, SHA-256 of salt and words. The words go nowhere else."""
    from hashlib import sha256

    from commands.append import read_input
    from projections.receipt import Reference
    from projections.receipt_rules import is_label

    label = "words"
    words = given.encode("utf-8", "surrogateescape")
    if given.startswith("@"):
        words = read_input(given[1:], "--authority")
        name = "".join(letter if is_label(letter) else "-" for letter in os.path.basename(given[1:]))
        label = f"file:{name}"[:120]
    if not words.strip():
        raise Usage("--authority: is empty; give the words, or @FILE, by which the person allows this")
    salt = os.urandom(16)
    return Reference(label, salt.hex(), sha256(salt + words).hexdigest())


def config_actions() -> dict[str, ActionRule]:
    """The actions of other profiles from the user's config: `[receipt_actions."x.y"]` with `terminal` and `limit`."""
    root = os.environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(root, "gatebook", "config.toml")
    try:
        with open(path, "rb") as file:
            raw = file.read(1 << 20)
    except OSError:
        return {}
    import tomllib

    try:
        table = tomllib.loads(raw.decode("utf-8")).get("receipt_actions", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path}: is not TOML: {error}") from None
    found: dict[str, ActionRule] = {}
    for action, rule in table.items() if isinstance(table, dict) else ():
        limit = rule.get("limit") if isinstance(rule, dict) else None
        terminal = rule.get("terminal") if isinstance(rule, dict) else None
        known = (
            isinstance(limit, int)
            and not isinstance(limit, bool)
            and limit >= 0
            and isinstance(terminal, bool)
        )
        if not known or action in ACTIONS or "*" in action:
            raise Invalid(
                f"{path}: receipt_actions.{action} needs `terminal` (true or false) and `limit` (0 or more), and a name of its own"
            )
        assert isinstance(limit, int)
        found[action] = ActionRule(limit, terminal=bool(terminal))
    return found


def known_actions() -> tuple[str, ...]:
    """Every action that a receipt here may name, sorted; the common ones alone while the user's config cannot be read."""
    try:
        own = config_actions()
    except Invalid:
        own = {}
    return tuple(sorted({**ACTIONS, **own}))


def new_receipt(
    ledger: Ledger,
    *,
    origin: str,
    course: str,
    target_type: str,
    target: str,
    actions: list[str],
    session: str,
    user: str,
    expires: str,
    authority: Reference,
    synthetic_qa: bool = False,
    parent: Issued | None = None,
    nonce: str | None = None,
    issued_at: str | None = None,
) -> Issued:
    """A whole receipt, signed by the receipt key; `Usage` or `Invalid` naming the field that is wrong."""
    import msgspec

    from ledger.clock import format_us, now_us
    from projections.receipt import Issued, Rule, issue_fault
    from projections.times import parse_time

    try:
        origin = canonical_origin(origin)
    except ValueError as error:
        raise Usage(f"--origin: {error}") from None
    own = (
        {rule.action: ActionRule(rule.limit, terminal=rule.terminal) for rule in parent.rules}
        if parent
        else config_actions()
    )
    nonce = nonce or os.urandom(16).hex()
    issued = Issued(
        _receipt_id(ledger.id, nonce),
        VERSION,
        issued_at or format_us(now_us()),
        format_us(parse_time(expires, "--expires")),
        origin,
        course,
        target_type,
        target,
        tuple(sorted(set(actions))),
        session,
        user,
        authority,
        nonce,
        "",
        synthetic_qa,
        parent.receipt_id if parent is not None else "",
        tuple(
            Rule(action, own[action].limit, own[action].terminal)
            for action in sorted(set(actions))
            if action in own
        ),
    )
    fault = issue_fault(issued, {**ACTIONS, **own})
    if fault is not None:
        raise Invalid(f"no receipt: {fault}")
    return msgspec.structs.replace(issued, signature=sign_receipt(ledger, file_fields(issued)))


def _receipt_id(ledger_id: str, nonce: str) -> str:
    """The receipt's id: 32 hex digits that follow from ledger and nonce, so that a nonce makes one receipt only."""
    from blake3 import blake3

    return blake3(f"{ledger_id} {nonce}".encode()).hexdigest()[:32]


def require_place(path: str) -> None:
    """Raise `Invalid` where no receipt's file can be made: looked at before the event, which cannot be taken back."""
    whole = os.path.abspath(path)
    folder = os.path.dirname(whole)
    if os.path.isdir(whole):
        raise Invalid(f"--out {path}: is a folder; name the receipt's file in it")
    if not os.path.isdir(folder):
        raise Invalid(f"--out {path}: there is no folder {folder}; make it, or name another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Invalid(f"--out {path}: nothing can be written in {folder}; name another file")


def write_receipt(path: str, issued: Issued) -> None:
    """The receipt's file, 0600, made or replaced in one piece."""
    from ledger.files import write_whole

    write_whole(os.path.abspath(path), render_receipt(issued))


def require_person(actor: str) -> None:
    """Raise `Refused` when the caller is an agent session or has no terminal: an agent never issues its own."""
    import sys

    from commands.plan_runs.owner import agent_session

    if agent_session(actor) is not None:
        raise Refused(
            "an agent session issues no receipt; a person does, at a terminal or with a signature (authority policy)"
        )
    if not sys.stdin.isatty():
        raise Refused(
            "no terminal here: a receipt is issued by a person at a terminal, or signed under an authority policy"
        )
