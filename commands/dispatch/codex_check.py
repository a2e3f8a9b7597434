"""Is a Codex here that can be driven: the program, the fields and errors of its protocol, the handshake."""

from __future__ import annotations

import os

from commands.dispatch.codex_errors import NEEDED_ERRORS
from commands.dispatch.codex_wire import RequestError, Server, WireError, binary, initialize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 30.0  # seconds for each half of the check; it takes about 0.2
MAX_FILE = 32 * 1024 * 1024
_NEEDED_FIELDS = {
    "ThreadStartParams": ("cwd", "sandbox", "approvalPolicy", "ephemeral", "model"),
    "TurnStartParams": ("threadId", "input", "cwd", "model", "effort", "approvalPolicy", "sandboxPolicy"),
    "TurnError": ("codexErrorInfo",),
}


def codex_is_missing() -> str:
    """Why Codex cannot be driven, empty when it can."""
    return _schema_fault() or _handshake_fault()


def _schema_fault() -> str:
    import shutil
    import tempfile

    from commands.dispatch.processes import run_bounded

    folder = tempfile.mkdtemp(prefix="gatebook-codex-")
    try:
        argv = [binary(), "app-server", "generate-json-schema", "--experimental", "--out", folder]
        ended = run_bounded(argv, cwd=os.curdir, timeout=TIMEOUT)
        if ended.why == "missing":
            return "the program is not here"
        if ended.code != 0:
            return "it does not print its App Server schema"
        return fault_of_schema(_definitions(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _definitions(folder: str) -> dict[str, list[object]]:
    """Every named definition in the schema files below `folder`: by file, by title, by key of `definitions`."""
    found: dict[str, list[object]] = {}
    for path in _schema_files(folder):
        document = _read(path)
        if not isinstance(document, dict):
            continue
        found.setdefault(os.path.basename(path).removesuffix(".json"), []).append(document)
        for key in ("definitions", "$defs"):
            _gather(document.get(key), found)
    return found


def _gather(definitions: object, found: dict[str, list[object]]) -> None:
    if not isinstance(definitions, dict):
        return
    for name, definition in definitions.items():
        found.setdefault(name, []).append(definition)
        if isinstance(definition, dict) and "properties" not in definition and "type" not in definition:
            _gather(definition, found)  # a namespace: `definitions.v2.Turn`


def _schema_files(folder: str) -> Iterator[str]:
    for base, _, names in os.walk(folder):
        yield from (os.path.join(base, name) for name in sorted(names) if name.endswith(".json"))


def _read(path: str) -> object:
    from ledger.canonical import parse
    from ledger.errors import Invalid

    if os.path.getsize(path) > MAX_FILE:
        return None
    with open(path, "rb") as file:
        try:
            return parse(file.read())
        except Invalid:
            return None


def fault_of_schema(definitions: dict[str, list[object]]) -> str:
    """The first field or error variant that `definitions` lack, empty when they have all that we rely on."""
    for name, fields in _NEEDED_FIELDS.items():
        known = set().union(*(_properties(definition) for definition in definitions.get(name, [])))
        for field in fields:
            if field not in known:
                return f"its schema has no {name}.{field}"
    variants = set().union(*(_words(definition) for definition in definitions.get("CodexErrorInfo", [])))
    for variant in NEEDED_ERRORS:
        if variant not in variants:
            return f"its schema has no error {variant}"
    return ""


def _properties(definition: object) -> set[str]:
    properties = definition.get("properties") if isinstance(definition, dict) else None
    return set(properties) if isinstance(properties, dict) else set()


def _words(definition: object) -> set[str]:
    """Every enum value, constant and property name in a definition, at any depth."""
    found: set[str] = set()
    stack = [definition]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            found |= _properties(here)
            found |= {
                word for word in (*_items(here.get("enum")), here.get("const")) if isinstance(word, str)
            }
            stack.extend(here.values())
        elif isinstance(here, list):
            stack.extend(here)
    return found


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _handshake_fault() -> str:
    try:
        server = Server(TIMEOUT)
    except (OSError, ValueError):
        return "the program is not here"
    try:
        initialize(server)
    except (RequestError, WireError):
        return "it does not initialize over stdio"
    finally:
        server.close()
    return ""
