"""A dispatch request: read strictly, and everything that blocks it before anybody works (contract page dispatch)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from projections import lean  # noqa: F401 - before msgspec

# isort: split
import msgspec
from msgspec import Meta, Struct

from ledger.errors import GatebookError, Invalid, Refused

MAX_REQUEST = 512 * 1024
Text = Annotated[str, Meta(min_length=1)]


class Memory(Struct, forbid_unknown_fields=True, frozen=True):
    """What may be recalled before and captured after, as plain intents."""

    enabled: bool = False
    recall: tuple[str, ...] | str = ()
    capture: tuple[str, ...] | str = ()


class Context(Struct, forbid_unknown_fields=True, frozen=True):
    """What the worker may know."""

    project: str | None = None
    mode: Literal["fresh", "fork", "hybrid"] = "fresh"
    state: str | None = None
    files: tuple[str, ...] = ()
    memory: Memory = Memory()


class Approval(Struct, forbid_unknown_fields=True, frozen=True):
    """Something that needs a person's yes; `approval_seq` None means it is outstanding."""

    what: Text
    approval_seq: Annotated[int, Meta(ge=1)] | None = None


class Authority(Struct, forbid_unknown_fields=True, frozen=True):
    """The ceiling: where, what may be written, with which tools, after which approvals."""

    working_directory: Text
    allowed_paths: tuple[Text, ...] = ()
    tools: tuple[Text, ...] = ()
    approvals: tuple[Approval, ...] = ()


class Expected(Struct, forbid_unknown_fields=True, frozen=True):
    """What the seam must do to count."""

    exit: Annotated[int, Meta(ge=0, le=255)] = 0
    contains: str | None = None


class Verification(Struct, forbid_unknown_fields=True, frozen=True):
    """The check that we run ourselves: an argument list, or text for `sh -c`."""

    seam: Annotated[tuple[str, ...], Meta(min_length=1)] | Text
    expected: Expected = Expected()
    fixed_target: tuple[Text, ...] | Text = ()


class Request(Struct, forbid_unknown_fields=True, frozen=True):
    """One bounded piece of work for one worker."""

    operation: Text
    route: Text
    outcome: Text
    authority: Authority
    verification: Verification
    context: Context = Context()
    constraints: tuple[str, ...] | str = ()
    delegation: dict[str, str | int | bool | None] | None = None
    artifacts: tuple[Text, ...] = ()
    blockers: tuple[str, ...] | str = ()
    repeatable: bool = False
    authoring_providers: tuple[Text, ...] = ()

    @property
    def seam(self) -> list[str]:
        """The seam as the argument list that is run."""
        seam = self.verification.seam
        return ["/bin/sh", "-c", seam] if isinstance(seam, str) else list(seam)


def listed(value: tuple[str, ...] | str) -> list[str]:
    """A field that is one text or several, as several; blank ones dropped."""
    return [item for item in ((value,) if isinstance(value, str) else value) if item.strip()]


class Malformed(Refused):
    """A request that is none; `route` is what it asked for, where that can be said."""

    def __init__(self, message: str, route: str = "") -> None:
        super().__init__(message)
        self.route = route


def read_request(path: str) -> tuple[dict[str, Any], bytes]:
    """The request in the file `path` (`-`: stdin) as an object, and its canonical bytes.

    Raises:
        Malformed: it cannot be read, is over 512 KiB, or is not one strict JSON object.
    """
    from commands.append import read_input
    from ledger.canonical import encode, parse_object

    try:
        raw = read_input(path, "the request")
        if len(raw) > MAX_REQUEST:
            raise Invalid(f"the request: larger than {MAX_REQUEST // 1024} KiB")
        found = parse_object(raw, what="the request", floats=False)
        return found, encode(found, what="the request", floats=False)
    except (GatebookError, ValueError) as error:
        raise Malformed(str(error)) from None


def parse_request(found: dict[str, Any]) -> Request:
    """The request with every field checked.

    Raises:
        Malformed: a field is missing, unknown or of a wrong type, or something carries a credential; names the place.
    """
    from ledger.credentials import locate_credential

    asked = found.get("route")
    route = asked if isinstance(asked, str) else ""
    secret = locate_credential(found, "request")
    if secret is not None:
        raise Malformed(f"{secret[0]} carries what looks like a credential ({secret[1]}); take it out")
    for name in ("outcome", "route", "verification", "authority"):
        if not found.get(name):
            raise Malformed(f"request.{name} is missing", route)
    if found.get("operation") in ("review", "computer-use"):
        raise Malformed(f"operation {found['operation']} is not supported here; only execute is", route)
    try:
        request = msgspec.convert(found, Request)
    except msgspec.ValidationError as error:
        raise Malformed(f"request: {error}", route) from None
    _check_texts(request)
    return request


def _check_texts(request: Request) -> None:
    if request.operation != "execute":
        raise Malformed("request.operation must be execute", request.route)
    places = (
        ("outcome", request.outcome),
        ("route", request.route),
        ("authority.working_directory", request.authority.working_directory),
        ("verification.seam", " ".join(listed(request.verification.seam))),
    )
    for place, text in places:
        if not text.strip():
            raise Malformed(f"request.{place} must not be blank", request.route)
    for place, text in _all_paths(request):
        if "\0" in text:
            raise Malformed(f"request.{place} holds a NUL", request.route)
    for name, value in (request.delegation or {}).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise Malformed(f"request.delegation.{name} must be positive", request.route)
    if request.route == "independent" and not request.authoring_providers:
        raise Malformed("request.authoring_providers is needed for route independent", request.route)
    memory = request.context.memory
    for place, intents in (("recall", memory.recall), ("capture", memory.capture)):
        if any(_names_tool(intent) for intent in listed(intents)):
            raise Malformed(
                f"request.context.memory.{place} names a tool; say in plain words what is meant",
                request.route,
            )
    whats = [approval.what for approval in request.authority.approvals]
    if len(set(whats)) != len(whats):
        raise Malformed("request.authority.approvals names one thing twice", request.route)


def _names_tool(intent: str) -> bool:
    """Whether an intent holds a tool's name (`mcp__server__tool`) or a call (`search("x")`)."""
    words = intent.split()
    return any("mcp__" in word or (word.partition("(")[0].isidentifier() and "(" in word) for word in words)


def _all_paths(request: Request) -> list[tuple[str, str]]:
    authority, verification = request.authority, request.verification
    return [
        ("authority.working_directory", authority.working_directory),
        *(("authority.allowed_paths", path) for path in authority.allowed_paths),
        *(("artifacts", path) for path in request.artifacts),
        *(("verification.fixed_target", path) for path in listed(verification.fixed_target)),
        *(("verification.seam", part) for part in request.seam),
    ]


def identity(found: dict[str, Any]) -> str:
    """What stays the same when approvals are filled in: BLAKE3 (hex) of the request with every approval_seq null."""
    from blake3 import blake3

    from ledger.canonical import encode

    plain = dict(found)
    authority = found.get("authority")
    if isinstance(authority, dict) and isinstance(authority.get("approvals"), list):
        approvals = [
            {**approval, "approval_seq": None} if isinstance(approval, dict) else approval
            for approval in authority["approvals"]
        ]
        plain["authority"] = {**authority, "approvals": approvals}
    return blake3(encode(plain, what="the request", floats=False)).hexdigest()
