"""YAML, TOML and JSON rubrics as plain documents, each read strictly; a date stays a `datetime.date`.

YAML goes through the event stream, never through a constructor of objects: an anchor, alias, tag or repeated
key is refused where it stands, so nothing can expand or hide.
"""

from __future__ import annotations

from typing import Any

from ledger.canonical import parse, text_of
from ledger.errors import Invalid

MAX_DEPTH = 64


def parse_document(raw: bytes, suffix: str) -> object:
    """The document in `raw`; `suffix` is `.json`, `.toml`, or anything else for YAML. Invalid names the place."""
    if suffix == ".json":
        return parse(raw, what="the file")
    text = text_of(raw, "the file")
    return _toml(text) if suffix == ".toml" else _yaml(text)


def _toml(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Invalid(f"not TOML: nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # TOMLDecodeError, and a number of too many digits
        raise Invalid(f"not TOML: {error}") from None


def _yaml(text: str) -> object:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = None
    try:
        reader = loader(text)
        return _Composer(reader, yaml).document()
    except yaml.MarkedYAMLError as error:
        raise Invalid(
            f"not YAML: {error.problem or error.context}{_at(error.problem_mark or error.context_mark)}"
        ) from None
    except yaml.YAMLError as error:
        raise Invalid(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise Invalid(f"not YAML: nested deeper than {MAX_DEPTH}") from None
    finally:
        if reader is not None:
            reader.dispose()


def _at(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


class _Composer:
    """One YAML document, from the reader's events."""

    def __init__(self, reader: Any, yaml: Any) -> None:
        self._reader = reader
        self._yaml = yaml

    def document(self) -> object:
        self._expect(self._yaml.StreamStartEvent)
        if self._reader.check_event(self._yaml.StreamEndEvent):
            raise Invalid("the file is empty")
        self._expect(self._yaml.DocumentStartEvent)
        value = self._node(1)
        self._expect(self._yaml.DocumentEndEvent)
        if not self._reader.check_event(self._yaml.StreamEndEvent):
            raise Invalid(
                f"a second document begins{_at(self._reader.peek_event().start_mark)}; a rubric is one"
            )
        return value

    def _expect(self, kind: Any) -> None:
        event = self._reader.get_event()
        if not isinstance(event, kind):
            raise Invalid(f"not YAML: unexpected content{_at(event.start_mark)}")

    def _node(self, depth: int) -> object:
        event = self._reader.get_event()
        where = _at(event.start_mark)
        if isinstance(event, self._yaml.AliasEvent) or event.anchor is not None:
            raise Invalid(f"anchors and aliases are refused{where}")
        if event.tag is not None:
            raise Invalid(f"tags are refused{where}")
        if depth > MAX_DEPTH:
            raise Invalid(f"nested deeper than {MAX_DEPTH}{where}")
        if isinstance(event, self._yaml.ScalarEvent):
            return self._scalar(event, where)
        if isinstance(event, self._yaml.SequenceStartEvent):
            return self._sequence(depth)
        return self._mapping(depth)

    def _sequence(self, depth: int) -> list[object]:
        items = []
        while not self._reader.check_event(self._yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
        self._reader.get_event()
        return items

    def _mapping(self, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self._reader.check_event(self._yaml.MappingEndEvent):
            where = _at(self._reader.peek_event().start_mark)
            key = self._node(depth + 1)
            if not isinstance(key, str):
                raise Invalid(f"a key must be text{where}; put it in quotes")
            if key in found:
                raise Invalid(f"the key {key[:80]!r} stands twice{where}")
            found[key] = self._node(depth + 1)
        self._reader.get_event()
        return found

    def _scalar(self, event: Any, where: str) -> Any:
        yaml = self._yaml
        tag = self._reader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == "tag:yaml.org,2002:merge":
            raise Invalid(f"merge keys are refused{where}")
        try:
            return self._reader.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, OverflowError):
            raise Invalid(f"{event.value[:80]!r} is not a value{where}") from None
