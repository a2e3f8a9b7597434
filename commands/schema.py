"""`schema`: JSON Schema of every event type, made from the structs that are checked (contract page ledger)."""

from __future__ import annotations

from commands.context import Context, dumps, say
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BASE = "https://json-schema.org/draft/2020-12/schema"


def schema_of(name: str) -> dict[str, object]:
    """The JSON Schema of one type's data.

    Raises:
        Usage: no such type.
    """
    import msgspec

    from projections.engine import module_of
    from projections.registry import TYPES

    if name not in TYPES:
        import difflib

        near = difflib.get_close_matches(name, list(TYPES), 1)
        raise Usage(
            f"no event type is called {name!r}"
            + (f"; did you mean {near[0]}?" if near else "; `gatebook schema` lists them")
        )
    module = module_of(name)
    found = msgspec.json.schema(module.EVENTS[name])
    version = getattr(module, "VERSIONS", {}).get(name, 1)
    kind, writer = TYPES[name]
    return {
        "$schema": BASE,
        "title": name,
        "x-version": version,
        "x-stream-kind": kind,
        "x-written-by": writer,
        **found,
    }


def run(args: Args, _context: Context) -> int:
    """Print one type's schema, or the list of types."""
    from projections.registry import TYPES

    if args.type is not None:
        say(dumps(schema_of(args.type), pretty=True))
    elif args.json:
        say(dumps({name: schema_of(name) for name in TYPES}, pretty=True))
    else:
        for name, (kind, writer) in TYPES.items():
            say(f"{name:<24} {kind:<10} {writer}")
    return 0


def _types() -> Iterable[str]:
    from projections.registry import TYPES

    return TYPES


COMMANDS = {
    "schema": Command(
        run,
        "The JSON Schema of an event type's data, made from the structs that gatebook checks; without TYPE the list of\n"
        "types, their kind of stream, and the command that writes each.",
        words=(Word("TYPE", "an event type", optional=True, offers=_types),),
        flags=(Flag("--json", None, "all schemas in one object"),),
        example="gatebook schema circuit.opened",
    )
}
