"""`append`: one event of an open type, or a batch of them. The path that agents and hooks take on every step.

Imports neither msgspec nor argparse nor structlog; a test lists what is loaded.
"""

from __future__ import annotations

import sys

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from ledger.canonical import MAX_DEPTH, canonical, encode, parse_object
from ledger.errors import GatebookError, Invalid, Refused, Usage
from ledger.event import Draft, Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.store import Recorded

MAX_INPUT = 64 * 1024 * 1024
_BATCH_FIELDS = frozenset(
    ("causation", "content", "correlation", "data", "expect_version", "idempotency_key", "stream", "type")
)  # fmt: skip


def read_input(path: str, what: str) -> bytes:
    """The bytes of a file, or of stdin for `-`, at most 64 MiB.

    Raises:
        Invalid: it has no name, cannot be read, or is larger.
    """
    if not path:
        raise Invalid(f"{what}: the file's name is missing")
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(MAX_INPUT + 1)
    except OSError as error:
        raise Invalid(f"{what}: {path}: {error.strerror}") from None
    if len(raw) > MAX_INPUT:
        raise Invalid(f"{what}: {path}: over {MAX_INPUT} bytes")
    return raw


def _given(value: str | None, what: str, *, stdin: bool) -> bytes | None:
    """A flag's TEXT, @FILE or (where `stdin`) `-`, as bytes."""
    if value is None:
        return None
    if value == "-" and stdin:
        return read_input("-", what)
    if value.startswith("@"):
        return read_input(value[1:], what)
    return value.encode("utf-8", "surrogateescape")


def refuse_decided(
    context: Context, stream: str, name: str, data: bytes, correlation: str | None = None
) -> Refused:
    """Record that `append` of a decided type was refused, and return the error that names the right command."""
    from projections.refusals import record_refusal
    from projections.registry import writer_of

    writer = writer_of(name)
    way = f"only {writer.strip('()')} records it" if writer.startswith("(") else f"use `gatebook {writer}`"
    error = Refused(f"{name} is decided by gatebook and cannot be appended: {way}")
    record_refusal(
        context.ledger(),
        context.origin(),
        type=name,
        stream=stream,
        reason="decided-type",
        refused=data,
        correlation=correlation,
    )
    return error


def _check_open(context: Context, stream: str, name: str, data: bytes) -> None:
    from ledger.event import check_names

    check_names(stream, name)
    if not name.startswith("x."):
        from projections.registry import is_decided

        if is_decided(name):
            raise refuse_decided(context, stream, name, data)
        raise Invalid(
            f"unknown type {name!r}: custom types begin with x. (like x.note.added); `gatebook schema` lists the others"
        )
    if not stream.startswith("x") or "/" not in stream:
        raise Invalid(
            f"stream {stream!r}: custom types live in streams whose kind begins with x, like x-notes/1"
        )


def _draft(context: Context, fields: dict[str, object]) -> Draft:
    data = fields["data"]
    content = fields.get("content")
    stream, name = str(fields["stream"]), str(fields["type"])
    assert isinstance(data, bytes)
    assert content is None or isinstance(content, bytes)
    _check_open(context, stream, name, data)
    from ledger.credentials import check_credentials

    check_credentials(data, content)
    return Draft(
        stream,
        name,
        data,
        content=content,
        correlation=fields.get("correlation"),  # type: ignore[arg-type]
        causation=fields.get("causation"),  # type: ignore[arg-type]
        idempotency_key=fields.get("idempotency_key"),  # type: ignore[arg-type]
        expect_version=fields.get("expect_version"),  # type: ignore[arg-type]
    )


def reply(event: Event, *, replayed: bool) -> dict[str, object]:
    """What `append` prints of one event."""
    return {
        "seq": event.seq,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "recorded_at": event.recorded_at,
        "hash": event.hash.hex(),
        "replayed": replayed,
    }


def _single(args: Args, context: Context) -> Draft:
    if args.stream is None or args.type is None:
        raise Usage("append needs --stream and --type (or --batch FILE)")
    raw = _given(args.data, "--data", stdin=True)
    content = _given(args.content, "--content", stdin=False)
    return _draft(
        context,
        {
            "stream": args.stream,
            "type": args.type,
            "data": b"{}" if raw is None else canonical(raw, what="--data"),
            "content": content,
            "expect_version": args.expect_version,
            "idempotency_key": args.idempotency_key,
            "correlation": args.correlation,
            "causation": args.causation,
        },
    )


def _batch_fields(line: bytes, where: str) -> dict[str, object]:
    given = parse_object(
        line, what=where, depth=MAX_DEPTH + 1
    )  # the line itself is one level around its data
    unknown = sorted(set(given) - _BATCH_FIELDS)
    if unknown:
        raise Invalid(f"{where}: unknown field {unknown[0]!r}; allowed: {', '.join(sorted(_BATCH_FIELDS))}")
    for field in ("stream", "type"):
        if field not in given:
            raise Invalid(f"{where}: {field} is missing")
    for field in ("stream", "type", "content", "correlation", "idempotency_key"):
        if field in given and not isinstance(given[field], str):
            raise Invalid(f"{where}: {field} must be text")
    for field in ("causation", "expect_version"):
        number = given.get(field)
        if field in given and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise Invalid(f"{where}: {field} must be a whole number")
    data = given.get("data", {})
    if not isinstance(data, dict):
        raise Invalid(f"{where}: data must be an object")
    fields = dict(given)
    fields["data"] = encode(data, what=f"{where}: data")
    if "content" in given:
        try:
            fields["content"] = str(given["content"]).encode()
        except UnicodeEncodeError:
            raise Invalid(f"{where}: content: a lone surrogate is not text") from None
    return fields


def _batch(args: Args, context: Context) -> list[Draft]:
    for flag in (
        "stream",
        "type",
        "data",
        "content",
        "expect_version",
        "idempotency_key",
        "correlation",
        "causation",
    ):
        if getattr(args, flag) is not None:
            raise Usage(
                f"--batch carries every field in its lines; --{flag.replace('_', '-')} does not go with it"
            )
    raw = read_input(str(args.batch), "--batch")
    drafts = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{args.batch}: line {number}"
        fields = _batch_fields(line, where)
        try:
            drafts.append(_draft(context, fields))
        except GatebookError as error:
            raise type(error)(f"{where}: {error}") from None
    if not drafts:
        raise Invalid(f"{args.batch}: no event in it; one JSON object a line is expected")
    return drafts


def run(args: Args, context: Context) -> int:
    """Append the event or batch that `args` describe; prints the contract's JSON."""
    batch = args.batch is not None
    drafts = _batch(args, context) if batch else [_single(args, context)]
    done: Recorded = context.ledger().append(drafts, context.origin(), clock_jump=bool(args.clock_jump))
    if batch:
        emit(
            {
                "events": [reply(event, replayed=done.replayed) for event in done.events],
                "replayed": done.replayed,
            }
        )
    else:
        emit(reply(done.events[0], replayed=done.replayed))
    return 0


COMMANDS = {
    "append": Command(
        run,
        "Records one event of an open type (x.…) in a stream whose kind begins with x; durable when it returns.\n"
        "Prints {seq, stream, version, type, recorded_at, hash, replayed}. Decided types are refused (exit 4).\n"
        "Exit 5: the expected version or the idempotency key conflicts.",
        flags=(
            Flag("--stream", "S", "KIND/ID, the kind beginning with x"),
            Flag("--type", "T", "dotted, past tense, beginning with x."),
            Flag("--data", "JSON|@FILE|-", "a JSON object, kept for good ({} when not given)"),
            Flag("--content", "TEXT|@FILE", "free text or a document; can be redacted later"),
            Flag("--expect-version", "N", "only if the stream is at this version", number=True),
            Flag("--idempotency-key", "K", "the same call again returns the first event"),
            Flag("--correlation", "C", "what this belongs to"),
            Flag("--causation", "SEQ", "the earlier event that caused it", number=True),
            Flag("--batch", "FILE|-", "one JSON object a line with the same fields; all or nothing"),
            Flag("--clock-jump", None, "accept a clock over 24 h behind the last event's"),
        ),
        example="""gatebook append --stream x-notes/today --type x.note.added --data '{"text":"tests pass"}'""",
    )
}
