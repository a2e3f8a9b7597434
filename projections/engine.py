"""Fold, decide, admit, record: the one path by which a decided event gets into a ledger, and by which states are read.

An aggregate is a module (see `projections.circuit`, the smallest whole one) with

    KIND        the kind of its streams
    FOLD        the fold's version, changed whenever `State` or `evolve` changes meaning
    EVENTS      event type -> frozen msgspec struct of its data (its schema version in VERSIONS, default 1)
    initial     stream name -> State before the first event
    evolve      (State, Fact) -> State; may reuse the state object that it is given
    admit       (State, Fact, Law) -> None, or raises Unlawful
    UPCASTS     optional: (type, old v) -> function from the old data object to the next version's
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
import msgspec

from ledger.canonical import canonical
from ledger.credentials import check_credentials
from ledger.errors import Invalid, Tampered
from ledger.event import Draft
from projections.fact import Fact, Law, Unlawful
from projections.members import clock_of, members_of
from projections.registry import AGGREGATES, TYPES, aggregate, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from ledger.access import Ledger
    from ledger.event import Event, Origin
    from ledger.store import Reader, Recorded

SNAPSHOT_EVERY = 256
PENDING = "pending"  # stands for the content digest of a draft, whose salt is drawn when it is sealed
_readers: dict[str, tuple[int, Any]] = {}


class Proposal:
    """What a decide function wants recorded: a stream, a struct of a decided type's data, and perhaps content."""

    __slots__ = ("causation", "content", "correlation", "data", "stream", "type")

    def __init__(
        self,
        stream: str,
        type: str,
        data: msgspec.Struct,
        *,
        content: bytes | None = None,
        correlation: str | None = None,
        causation: int | None = None,
    ) -> None:
        self.stream = stream
        self.type = type
        self.data = data
        self.content = content
        self.correlation = correlation
        self.causation = causation


def module_of(name: str, seq: int = 0) -> ModuleType:
    """The aggregate whose events carry this type; `seq`: the event that a refusal names.

    Raises:
        Tampered: a type this version of gatebook does not know (a newer one's, or a forged one).
    """
    if name not in TYPES or TYPES[name][0] not in AGGREGATES:
        raise Tampered(
            f"{f'event {seq}: ' if seq else ''}unknown event type {name}: upgrade gatebook, or run `gatebook verify`",
            verdict="not-lawful",
            seq=seq or None,
        )
    return aggregate(TYPES[name][0])


def aggregate_of(stream: str) -> ModuleType:
    """The aggregate that a stream belongs to.

    Raises:
        Tampered: a kind of stream this version of gatebook does not know (a newer one's, or a forged one).
    """
    kind = kind_of(stream)
    if kind not in AGGREGATES:
        raise Tampered(
            f"stream {stream!r}: an unknown kind: upgrade gatebook, or run `gatebook verify`",
            verdict="not-lawful",
        )
    return aggregate(kind)


def reader_of(name: str, seq: int = 0) -> tuple[int, Any]:
    """(schema version, bytes -> struct) of a type's data as this gatebook writes it; `seq`: the event that a refusal names.

    Raises:
        Tampered: a type it does not know.
    """
    found = _readers.get(name)
    if found is None:
        module = module_of(name, seq)
        struct = module.EVENTS[name]
        found = (getattr(module, "VERSIONS", {}).get(name, 1), msgspec.json.Decoder(struct).decode)
        _readers[name] = found
    return found


def decode(name: str, v: int, data: bytes, seq: int = 0) -> Any:
    """The data of one event as its type's struct, upcast from older schema versions.

    Raises:
        Tampered: a type or schema version this gatebook does not know, or data that breaks the type's schema.
    """
    current, read = reader_of(name, seq)
    try:
        if v == current:
            return read(data)
        if v > current:
            raise Tampered(
                f"event {seq}: {name} has schema version {v}, this gatebook knows {current}: upgrade it",
                verdict="not-lawful",
                seq=seq,
            )
        return _upcast(name, v, data)
    except msgspec.MsgspecError as error:
        raise Tampered(
            f"event {seq}: {name} breaks its schema: {error}", verdict="not-lawful", seq=seq
        ) from None


def _upcast(name: str, v: int, data: bytes) -> Any:
    module = module_of(name)
    value = msgspec.json.decode(data)
    current = reader_of(name)[0]
    while v < current:
        step = getattr(module, "UPCASTS", {}).get((name, v))
        if step is None:
            raise Tampered(f"{name}: schema version {v} is unknown", verdict="not-lawful")
        value = step(value)
        v += 1
    return msgspec.convert(value, module.EVENTS[name])


def fact_of(event: Event, artifact: Callable[[Event], bytes | None] | None = None) -> Fact:
    """A recorded event of a decided type, decoded. `artifact` fetches content that lies outside the database."""
    members = members_of(event.seq, event.envelope)
    content = event.content
    if content is None and artifact is not None and event.in_artifact:
        content = artifact(event)
    return Fact(
        event.seq,
        members.stream,
        members.version,
        members.type,
        decode(members.type, members.v, event.data, event.seq),
        clock_of(members),
        members.actor,
        members.via,
        members.correlation,
        members.causation,
        content,
        members.content_digest,
    )


def encode_data(data: msgspec.Struct, name: str) -> bytes:
    """A struct as canonical bytes; msgspec's own order, escapes and integers are not always JCS.

    Raises:
        Invalid: an integer outside ±(2^53-1), a float, depth over 64.
    """
    return canonical(msgspec.json.encode(data), what=name, floats=False)


def _stream_kind(stream: str, name: str) -> ModuleType:
    module = module_of(name)
    if kind_of(stream) != module.KIND:
        raise Invalid(f"{name} does not belong in stream {stream}")
    return module


def void_before_of(reader: Reader, upto: int = 2**62) -> int:
    """The seq of the last restore up to event `upto`, 0 without one: what was open before it is void."""
    last = reader.of_type("ledger.restored", 1, upto + 1)
    return last[0].seq if last else 0


class World:
    """Folded states as of one moment, loaded when asked for: what decide functions and admission look at.

    `clock` is the clock as read (us since 1970), the same that the recorded events will carry.
    """

    def __init__(self, reader: Reader, *, save: bool = False) -> None:
        self.reader = reader
        self.clock = reader.clock
        self._save = save
        self._loaded: dict[str, tuple[Any, int]] = {}
        self._void: int | None = None

    @property
    def void_before(self) -> int:
        """The seq of the last `ledger.restored`; everything open before it is void."""
        if self._void is None:
            self._void = void_before_of(self.reader)
        return self._void

    def state(self, stream: str) -> Any:
        """The folded state of `stream`: from its newest valid snapshot and the events after it."""
        return self._load(stream)[0]

    def version(self, stream: str) -> int:
        """The version of `stream` that `state` stands for."""
        return self._load(stream)[1]

    def _load(self, stream: str) -> tuple[Any, int]:
        found = self._loaded.get(stream)
        if found is None:
            found = self._loaded[stream] = load(self.reader, stream)
        return found

    def law(self) -> Law:
        """What admission may look at, at this moment."""
        return Law(self.state, self.void_before)

    def admit(self, fact: Fact) -> None:
        """Judge `fact` against its stream's state and fold it in.

        Raises:
            Unlawful: it may not follow.
        """
        module = aggregate_of(fact.stream)
        state, version = self._load(fact.stream)
        module.admit(state, fact, self.law())
        state = module.evolve(state, fact)
        self._loaded[fact.stream] = (state, version + 1)
        if self._save and (version + 1) % SNAPSHOT_EVERY == 0:
            self.reader.save_snapshot(fact.stream, version + 1, module.FOLD, msgspec.json.encode(state))


def load(reader: Reader, stream: str, upto: int | None = None) -> tuple[Any, int]:
    """(state, version) of `stream`, up to and including version `upto` (None: all).

    Raises:
        Tampered: an event that this version cannot decode; never skipped.
    """
    module = aggregate_of(stream)
    state, version = module.initial(stream), 0
    kept = reader.snapshot(stream, module.FOLD, upto)
    if kept is not None:
        try:
            state, version = msgspec.json.decode(kept[1], type=type(state)), kept[0]
        except msgspec.MsgspecError:
            version = 0  # not this fold's shape: fold from the beginning
    evolve = module.evolve
    for event in reader.stream(stream, after=version, upto=upto):
        state = evolve(state, fact_of(event))
        version += 1
    return state, version


def _draft(proposal: Proposal, world: World, origin: Origin, seq: int) -> tuple[Draft, Fact]:
    _stream_kind(proposal.stream, proposal.type)
    current, _ = reader_of(proposal.type)
    data = encode_data(proposal.data, proposal.type)
    decode(
        proposal.type, current, data
    )  # what is written is what will be read: types and ranges checked once, here
    check_credentials(data, proposal.content)
    draft = Draft(
        proposal.stream,
        proposal.type,
        data,
        v=current,
        content=proposal.content,
        correlation=proposal.correlation,
        causation=proposal.causation,
    )
    fact = Fact(
        seq,
        proposal.stream,
        world.version(proposal.stream) + 1,
        proposal.type,
        proposal.data,
        world.clock,
        origin.actor,
        origin.via,
        proposal.correlation,
        proposal.causation,
        proposal.content,
        None if proposal.content is None else PENDING,
    )
    return draft, fact


def submit(
    ledger: Ledger,
    origin: Origin,
    decide: Callable[[World], Sequence[Proposal]],
    *,
    clock_jump: bool = False,
    then: Callable[[], None] | None = None,
) -> Recorded:
    """Fold, decide, admit and record in one write transaction; durable when this returns.

    `decide` gets the World and returns proposals (none: nothing is written). It has no side effects: a store
    without a lock calls it again after a lost race. Whatever it raises leaves the ledger untouched. `then` runs
    after the commit (also when nothing was recorded) before the next writer: for views in shared files.

    Raises:
        Unlawful: admission refused a proposal; the refusal is recorded after the rollback.
        and what `decide` and `Ledger.transact` raise.
    """
    seq = 0
    recorded = False

    def inner(reader: Reader) -> list[Draft]:
        nonlocal seq, recorded
        world = World(reader, save=True)
        proposals = decide(world)
        seq = reader.head().seq
        drafts = []
        for proposal in proposals:
            seq += 1
            draft, fact = _draft(proposal, world, origin, seq)
            world.admit(fact)
            drafts.append(draft)
        recorded = bool(drafts)
        return drafts

    def after() -> None:
        assert then is not None
        try:
            then()
        except OSError as error:
            if not recorded or not error.filename:
                raise
            why = f"{error.strerror}: event {seq} is recorded; once that is mended the next command here completes the file"
            raise OSError(error.errno, why, error.filename) from None

    try:
        return ledger.transact(inner, origin, clock_jump=clock_jump, then=None if then is None else after)
    except Unlawful as error:
        from projections.refusals import record_refusal

        fact = error.fact
        record_refusal(
            ledger, origin, type=fact.type, stream=fact.stream, reason=error.reason,
            refused=encode_data(fact.data, fact.type), as_type=error.record_as, correlation=fact.correlation,
        )  # fmt: skip
        raise


def state_of(ledger: Ledger, stream: str) -> tuple[Any, int]:
    """(state, version) of one stream now, outside any transaction."""
    return load(ledger.store.reader(), stream)
