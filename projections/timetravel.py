"""States as of an earlier moment: of one stream, or of every stream of a kind (contract page ledger, `state`, `diff`)."""

from __future__ import annotations

from projections.engine import fact_of, load, void_before_of
from projections.registry import aggregate, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ledger.store import Reader

# `gatebook state NAME`: which kind of stream the projection is folded from.
NAMES: dict[str, str] = {
    "plan": "run",
    "marker": "run",
    "results": "run",
    "runs": "run",
    "receipts": "receipt",
    "circuits": "circuit",
    "dispatches": "dispatch",
    "sessions": "session",
    "stages": "session",
}


def stream_of(name: str, key: str) -> str:
    """The stream that KEY means for the projection `name`: its id, or the whole stream name."""
    kind = NAMES[name]
    return key if key.startswith(f"{kind}/") else f"{kind}/{key}"


def version_at(reader: Reader, stream: str, seq: int) -> int:
    """The version of `stream` after event `seq` of the ledger: a binary search that looks at the stream's end first."""
    low = 0
    high = middle = reader.version(stream)
    while low < high:
        event = reader.stream(stream, after=middle - 1, upto=middle)[0]
        if event.seq <= seq:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def state_at(reader: Reader, stream: str, seq: int) -> tuple[Any, int]:
    """(state, version) of `stream` after event `seq`: from the newest snapshot before it and the events between."""
    version = version_at(reader, stream, seq)
    if version == 0:
        return aggregate(kind_of(stream)).initial(stream), 0
    return load(reader, stream, upto=version)


def without_void(module: ModuleType, state: Any, void_before: int) -> Any:
    """A state of that aggregate without what the restore at event `void_before` (0: none) made void."""
    return module.voided(state, void_before) if void_before and hasattr(module, "voided") else state


def _shown(module: ModuleType, name: str, stream: str, state: Any, void_before: int) -> Any:
    """What the projection says of a state, without what a restore made void."""
    return module.STATES[name](stream, without_void(module, state, void_before))


def projection(reader: Reader, name: str, key: str | None, seq: int) -> tuple[Any, str]:
    """(value, fold) of the projection `name` after event `seq`: of one stream, or {stream id: value} of all.

    Before a stream's first event its state is the empty one; streams that did not exist yet are left out of all.
    """
    kind = NAMES[name]
    module = aggregate(kind)
    void_before = void_before_of(reader, seq)
    if key is not None:
        stream = stream_of(name, key)
        return _shown(module, name, stream, state_at(reader, stream, seq)[0], void_before), module.FOLD
    found = {}
    for stream in reader.streams(kind):
        state, version = state_at(reader, stream, seq)
        if version:
            value = _shown(module, name, stream, state, void_before)
            if value is not None:
                found[stream.partition("/")[2]] = value
    return found, module.FOLD


def changing(reader: Reader, name: str, key: str, first: int, last: int) -> list[int]:
    """The seqs of the events with first < seq <= last after which the projection says something else than before."""
    import msgspec

    module = aggregate(NAMES[name])
    stream = stream_of(name, key)
    state, version = state_at(reader, stream, first)
    void_before = void_before_of(reader, first)
    before = msgspec.json.encode(_shown(module, name, stream, state, void_before))
    own = reader.stream(stream, after=version, upto=version_at(reader, stream, last))
    restores = reader.stream(
        "ledger", after=version_at(reader, "ledger", first), upto=version_at(reader, "ledger", last)
    )
    restored = [event for event in restores if event.type == "ledger.restored"]
    found = []
    for event in sorted([*own, *restored], key=lambda one: one.seq):
        if event.type == "ledger.restored":
            void_before = event.seq
        else:
            state = module.evolve(state, fact_of(event))
        after = msgspec.json.encode(_shown(module, name, stream, state, void_before))
        if after != before:
            found.append(event.seq)
        before = after
    return found
