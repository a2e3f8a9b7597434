"""The rubric: which models exist, which route leads to which of them (contract page dispatch, Rubric).

Reading is strict and any fault refuses the whole file: a half-understood rubric would send work, and what
it may see, to a provider nobody chose. What was read is kept in a cache by content, because YAML costs a step
20 ms; the rules below are applied again on every load, so the cache cannot make a rubric lawful.
"""

from __future__ import annotations

import os

from ledger.canonical import MAX_SAFE
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 256 * 1024
_SHORTEST_CREDENTIAL = 20  # of those that ledger.credentials knows, which need not be loaded for less
MAX_NAME_BYTES = 96  # `provider|executor` is a stream's id, which holds 200
MAX_REVIEW_AGE = 14  # days
_TOP = ("models", "routing", "fallbacks", "delegation", "reviewed", "seed")
_ROW = ("name", "effort", "provider", "via", "taste")
_LIMITS = ("max_children", "max_depth", "default_token_budget")
_NOT_ROUTES = ("taste_min", "fallback")


class Row:
    """One model at one effort; `via` and `taste` are None where the rubric gives none."""

    __slots__ = ("effort", "name", "provider", "taste", "via")

    def __init__(self, name: str, effort: str, provider: str, via: str | None, taste: int | None) -> None:
        self.name = name
        self.effort = effort
        self.provider = provider
        self.via = via
        self.taste = taste

    @property
    def reference(self) -> str:
        """`model@effort`, as routes name it."""
        return f"{self.name}@{self.effort}"


class Rubric:
    """A rubric that keeps every rule: `rows` by reference, `chains` by route, in the routes' order of names, primary first."""

    __slots__ = ("chains", "reviewed", "rows", "seed")

    def __init__(
        self, rows: dict[str, Row], chains: dict[str, tuple[Row, ...]], reviewed: str | None, *, seed: bool
    ) -> None:
        self.rows = rows
        self.chains = chains
        self.reviewed = reviewed
        self.seed = seed


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        # YAML reads `off`, `4.5` and the like as something else than the name that was meant.
        how = "; put it in quotes" if isinstance(value, bool | int | float) else ""
        raise Invalid(f"{place} must be text, not {_kind(value)}{how}")
    if not value.strip():
        raise Invalid(f"{place} must not be empty")
    if not value.isprintable():  # control characters and lone surrogates would reach stream ids and replies
        raise Invalid(f"{place} holds a character that cannot be printed")
    if len(value) >= _SHORTEST_CREDENTIAL:
        from ledger.credentials import find_credential

        kind = find_credential(value.encode())
        if kind is not None:
            raise Invalid(f"{place} carries what looks like a credential ({kind}); take it out")
    return value


def _kind(value: object) -> str:
    """What a person calls a JSON or YAML value's type."""
    if value is None:
        return "null"
    names = {
        bool: "true/false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), type(value).__name__)


def _integer(value: object, place: str, *, least: int = -MAX_SAFE) -> int:
    if type(value) is not int:  # a bool is an int to Python, not to a rubric
        raise Invalid(f"{place} must be an integer, not {_kind(value)}")
    if not least <= value <= MAX_SAFE:
        raise Invalid(f"{place} must be {'positive' if least == 1 else 'within ±(2^53-1)'}")
    return value


def _mapping(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Invalid(f"{place} must be a mapping, not {_kind(value)}")
    for key in value:
        _text(key, f"a key of {place}")
    return value


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise Invalid(f"{place} must be a list, not {_kind(value)}")
    return value


def check_endpoint_part(value: object, place: str) -> str:
    """`value` as a provider or executor name: text without `|`, fit for a stream's id; else Invalid naming `place`."""
    name = _text(value, place)
    if "|" in name:
        raise Invalid(f"{place} must not contain '|'")
    if not name.isascii():
        import unicodedata

        if unicodedata.normalize("NFC", name) != name:
            raise Invalid(f"{place} must be in Unicode normal form NFC")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise Invalid(f"{place} is longer than {MAX_NAME_BYTES} bytes")
    return name


def split_reference(reference: object, place: str) -> tuple[str, str]:
    """`model@effort`, split at the last `@`; Invalid when it is not that."""
    name, at, effort = _text(reference, place).rpartition("@")
    if not at or not name.strip() or not effort.strip():
        raise Invalid(f"{place} must be model@effort, not {str(reference)[:80]!r}")
    return name, effort


def _row(value: object, place: str) -> Row:
    fields = _mapping(value, place)
    for key in ("name", "effort", "provider"):
        if key not in fields:
            raise Invalid(f"{place} has no {key}")
    effort = _text(fields["effort"], f"{place}.effort")
    if "@" in effort:
        raise Invalid(f"{place}.effort must not contain '@'")
    return Row(
        _text(fields["name"], f"{place}.name"),
        effort,
        check_endpoint_part(fields["provider"], f"{place}.provider"),
        None if fields.get("via") is None else check_endpoint_part(fields["via"], f"{place}.via"),
        _integer(fields["taste"], f"{place}.taste") if "taste" in fields else None,
    )


def _rows(value: object) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for index, item in enumerate(_list(value, "models")):
        row = _row(item, f"models[{index}]")
        if row.reference in rows:
            raise Invalid(f"models[{index}] repeats {row.reference}")
        rows[row.reference] = row
    if not rows:
        raise Invalid("models must not be empty")
    return rows


def _chain(references: Iterable[tuple[str, object]], rows: dict[str, Row]) -> tuple[Row, ...]:
    chain: list[Row] = []
    for place, reference in references:
        split_reference(reference, place)
        row = rows.get(str(reference))
        if row is None:
            raise Invalid(f"{place} names {reference}, which is not among the models")
        if any(row.provider == other.provider for other in chain):
            raise Invalid(
                f"{place} names {reference}, but the chain already has a candidate of provider {row.provider}"
            )
        chain.append(row)
    return tuple(chain)


def _chains(
    routing: dict[str, object], fallbacks: dict[str, object], rows: dict[str, Row]
) -> dict[str, tuple[Row, ...]]:
    for route in fallbacks:
        if route not in routing or route in _NOT_ROUTES:
            raise Invalid(f"fallbacks.{route} has no primary: routing.{route} is missing")
    chains = {}
    for route, primary in sorted(routing.items()):
        if route in _NOT_ROUTES:
            continue
        rest = _list(fallbacks.get(route, []), f"fallbacks.{route}")
        places = [(f"fallbacks.{route}[{index}]", reference) for index, reference in enumerate(rest)]
        chains[route] = _chain([(f"routing.{route}", primary), *places], rows)
    if not chains:
        raise Invalid("routing has no route")
    return chains


def _check_taste(routing: dict[str, object], chains: dict[str, tuple[Row, ...]]) -> None:
    if "taste_min" in routing:
        _integer(routing["taste_min"], "routing.taste_min")
    elif "taste" in chains:
        raise Invalid("routing.taste needs routing.taste_min")
    for row in chains.get("taste", ()):
        if row.taste is None or row.taste < _integer(routing["taste_min"], "routing.taste_min"):
            raise Invalid(f"route taste candidate {row.reference} is below routing.taste_min")


def check_independent(chains: dict[str, tuple[Row, ...]], authoring_providers: Iterable[str]) -> None:
    """Refuse (Invalid) a chain `independent` with a candidate of the orchestrator's or of an authoring provider."""
    if "independent" not in chains:
        return
    if "orchestrator" not in chains:
        raise Invalid("routing.independent needs routing.orchestrator")
    orchestrator, authors = chains["orchestrator"][0].provider, frozenset(authoring_providers)
    for row in chains["independent"]:
        if row.provider == orchestrator:
            raise Invalid(
                f"route independent candidate {row.reference} is of the orchestrator's provider {orchestrator}"
            )
        if row.provider in authors:
            raise Invalid(
                f"route independent candidate {row.reference} is of the authoring provider {row.provider}"
            )


def _check_delegation(document: dict[str, object]) -> None:
    if "delegation" not in document:
        return
    delegation = _mapping(document["delegation"], "delegation")
    for name in _LIMITS:
        if name not in delegation:
            raise Invalid(f"delegation.{name} is missing")
        _integer(delegation[name], f"delegation.{name}", least=1)


def _check_review_fields(document: dict[str, object]) -> tuple[str | None, bool]:
    seed, reviewed = document.get("seed", False), document.get("reviewed")
    if not isinstance(seed, bool):
        raise Invalid(f"seed must be true or false, not {_kind(seed)}")
    if reviewed is not None:
        from projections.times import parse_date

        parse_date(reviewed, "reviewed")
    return reviewed if isinstance(reviewed, str) else None, seed


def build_rubric(document: object) -> Rubric:
    """`document` (parsed, dates as text) as a rubric that keeps every rule of the contract page; Invalid otherwise."""
    top = _mapping(document, "the rubric")
    for key in ("models", "routing"):
        if key not in top:
            raise Invalid(f"{key} is missing")
    rows = _rows(top["models"])
    routing = _mapping(top["routing"], "routing")
    chains = _chains(routing, _mapping(top.get("fallbacks", {}), "fallbacks"), rows)
    _check_taste(routing, chains)
    check_independent(chains, ())
    _check_delegation(top)
    reviewed, seed = _check_review_fields(top)
    return Rubric(rows, chains, reviewed, seed=seed)


def _known_parts(document: object) -> object:
    """`document` without the keys that no rule reads, `reviewed` as text: what is checked and kept in the cache."""
    if not isinstance(document, dict):
        return document
    if hasattr(document.get("reviewed"), "isoformat"):  # YAML and TOML have dates of their own
        document["reviewed"] = document["reviewed"].isoformat()
    kept = {key: value for key, value in document.items() if key in _TOP}
    if isinstance(kept.get("models"), list):
        kept["models"] = [
            {key: value for key, value in row.items() if key in _ROW} if isinstance(row, dict) else row
            for row in kept["models"]
        ]
    return kept


def _read_file(path: str) -> bytes:
    try:
        # O_NONBLOCK: a FIFO given as a rubric must not hang the step.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read it ({getattr(error, 'strerror', None) or 'not a path'})") from None
    try:
        return _read_bounded(descriptor)
    except OSError as error:
        raise Invalid(f"cannot read it ({error.strerror})") from None
    finally:
        os.close(descriptor)


def _read_bounded(descriptor: int) -> bytes:
    import stat

    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Invalid("it is not a regular file")
    parts, size = [], 0
    while part := os.read(descriptor, MAX_BYTES + 1 - size):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise Invalid(
                f"it is larger than {MAX_BYTES // 1024} KiB; a rubric is a short list of models and routes"
            )
    return b"".join(parts)


def load_rubric(path: str) -> Rubric:
    """The rubric in the file at `path`: `.json` as JSON, `.toml` as TOML, anything else as YAML.

    Raises:
        Invalid: unreadable, over 256 KiB, not strictly of its format (a key twice, an anchor, alias or tag,
            NaN), or against a rule; the message names the file and the place.
    """
    try:
        return _load(path)
    except Invalid as error:
        raise _named(path, error) from None


def _named(path: str, error: Invalid) -> Invalid:
    return Invalid(f"rubric {os.fsencode(path).decode('utf-8', 'backslashreplace')}: {error}")


def _load(path: str) -> Rubric:
    raw = _read_file(path)
    suffix = os.path.splitext(path)[1].lower()
    from commands.dispatch import rubric_cache

    place = rubric_cache.place_of(raw, suffix)
    document = rubric_cache.recall(place)
    if document is not None:
        try:
            return build_rubric(document)
        except Invalid:
            pass  # a damaged cache is no reason to refuse a rubric, and none to believe it
    from commands.dispatch.rubric_formats import parse_document

    document = _known_parts(parse_document(raw, suffix))
    rubric = build_rubric(document)
    rubric_cache.remember(place, document)
    return rubric


def active_path(given: str | None) -> str:
    """The rubric file in force: `given`, else `.gatebook/rubric.yaml` here, else the user's; Invalid when there is none."""
    if given is not None:
        return given
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    places = (os.path.join(".gatebook", "rubric.yaml"), os.path.join(config, "gatebook", "rubric.yaml"))
    for place in places:
        if os.path.lexists(place):  # a link that leads nowhere is told, not passed over
            return place
    raise Invalid(f"no rubric here: write {places[0]} or {places[1]}, or give --rubric FILE")


def load_reviewed(path: str, now: int) -> Rubric:
    """As `load_rubric`; refuses (Invalid) a seed and what was not reviewed in the last 14 days too; `now` in microseconds."""
    rubric = load_rubric(path)
    try:
        _check_reviewed(rubric, now)
    except Invalid as error:
        raise _named(path, error) from None
    return rubric


def _check_reviewed(rubric: Rubric, now: int) -> None:
    from projections.times import DAY, parse_date

    if rubric.seed:
        raise Invalid("it is a seed (seed: true): review the models and routes, then remove that line")
    if rubric.reviewed is None:
        raise Invalid("reviewed is missing: write the date you last reviewed it (reviewed: YYYY-MM-DD)")
    age = now // DAY - parse_date(rubric.reviewed, "reviewed")
    if age > MAX_REVIEW_AGE:
        raise Invalid(
            f"it was reviewed {age} days ago ({rubric.reviewed}), more than {MAX_REVIEW_AGE}: review it and date it anew"
        )
