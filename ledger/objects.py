"""Contents of a fleet's ledger: a NATS object bucket, one object an event, named by the event's content digest.

An object is salt followed by content, so its name is BLAKE3 of its bytes: what comes back checks itself, and
erasing the object erases both. The bucket is NATS' own object store (streams, subjects and meta data as its clients
write them), so that its tools can list it; the chunks' subject carries the name, so reading needs no meta data.
"""

from __future__ import annotations

import time

from blake3 import blake3

from ledger.canonical import encode
from ledger.clock import format_us, now_us
from ledger.errors import Refused, Unavailable
from ledger.event import SALT_BYTES
from ledger.jetstream import API, NoStream, Stream, create_stream, message_from, problem, read_answer
from ledger.nats_client import ANSWER_SECONDS, Message, Silence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.event import Event
    from ledger.nats_client import Link

CHUNK = 128 * 1024
HEADERS = 512  # bytes of a message's headers, at most
WINDOW = 64  # messages on the way at once
_ROLLUP = b"Nats-Rollup: sub\r\n"
_MAX_CHUNKS = 1024


class Objects:
    """The bucket of the ledger `name`."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.bucket = name
        self.stream = f"OBJ_{name}"

    def config(self, replicas: int) -> dict[str, object]:
        """The stream behind the bucket, as NATS' object store makes it."""
        return {
            "name": self.stream,
            "subjects": [f"$O.{self.bucket}.C.>", f"$O.{self.bucket}.M.>"],
            "num_replicas": replicas,
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "max_age": 0,
            "max_msgs": -1,
            "max_bytes": -1,
            "allow_rollup_hdrs": True,  # how an object is replaced or erased
            "allow_direct": True,
        }

    def create(self) -> None:
        """Make the bucket where there is none; errors as `Stream.create`."""
        create_stream(self.link, self.stream, self.config)

    def put(self, events: Iterable[Event]) -> None:
        """Store the contents of `events`, durable when this returns; the same again changes nothing.

        Raises:
            Unavailable: not all is stored. Refused: not allowed.
        """
        self._publish(message for event in events for message in self._messages(event))

    def erase(self, digests: Iterable[str]) -> None:
        """Replace the objects of these names by nothing, for good; errors as `put`."""
        names = list(digests)
        for digest in names:
            self._overwrite(digest)
        self._publish(message for digest in names for message in self._nothing(digest))

    def _overwrite(self, digest: str) -> None:
        """Have the servers overwrite the chunks on their disks: what only a rollup replaced stays there for long.

        Where deleting messages is not allowed to us the chunks are only taken out of the stream; that is said.
        """
        try:
            for place, _ in self._chunks_at_leader(digest):
                wanted = encode({"seq": place, "no_erase": False})
                code, text = problem(
                    read_answer(self.link.request(f"{API}STREAM.MSG.DELETE.{self.stream}", wanted))
                )
                if code:
                    raise Unavailable(f"nats: bucket {self.bucket}: {text}")
        except Refused as error:
            from ledger.notice import tell

            tell(f"the servers' files keep the erased bytes until they compact them ({error})")

    def _meta(
        self, digest: str, size: int, chunks: int, sha: str, *, deleted: bool
    ) -> tuple[bytes, bytes, bytes]:
        from base64 import urlsafe_b64encode

        meta: dict[str, object] = {
            "name": digest, "bucket": self.bucket, "nuid": digest, "size": size, "chunks": chunks,
            "mtime": format_us(now_us()), "options": {"max_chunk_size": CHUNK},
        }  # fmt: skip
        if deleted:
            meta["deleted"] = True
        else:
            meta["digest"] = f"SHA-256={sha}"
        name = urlsafe_b64encode(digest.encode())
        return b"$O.%b.M.%b" % (self.bucket.encode(), name), encode(meta), _ROLLUP

    def _messages(self, event: Event) -> Iterator[tuple[bytes, bytes, bytes]]:
        from base64 import urlsafe_b64encode
        from hashlib import sha256

        if event.content is None or event.salt is None or event.content_digest is None:
            return
        whole = event.salt + event.content
        subject = b"$O.%b.C.%b" % (self.bucket.encode(), event.content_digest.encode())
        limit = self.link.connection().info.get("max_payload")
        chunk = max(1, min(CHUNK, limit - HEADERS)) if isinstance(limit, int) else CHUNK
        starts = range(0, len(whole), chunk)
        for start in starts:
            # The first chunk takes the place of whatever an attempt before left.
            yield subject, whole[start : start + chunk], _ROLLUP if start == 0 else b""
        sha = urlsafe_b64encode(sha256(whole).digest()).decode()
        yield self._meta(event.content_digest, len(whole), len(starts), sha, deleted=False)

    def _nothing(self, digest: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        yield b"$O.%b.C.%b" % (self.bucket.encode(), digest.encode()), b"", _ROLLUP
        yield self._meta(digest, 0, 0, "", deleted=True)

    def _publish(self, messages: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        waiting: set[bytes] = set()
        for subject, payload, headers in messages:
            inbox = self.link.open_inbox()
            self.link.connection().publish(subject, payload, headers, inbox)
            waiting.add(inbox)
            while len(waiting) >= WINDOW:
                self._stored(waiting)
        while waiting:
            self._stored(waiting)

    def _stored(self, waiting: set[bytes]) -> None:
        message = self._next(waiting)
        if message.status == 503:
            raise Unavailable(f"nats: no bucket {self.bucket} takes contents now")
        code, text = problem(read_answer(message))
        if code:
            raise Unavailable(f"nats: bucket {self.bucket}: {text}")
        waiting.discard(message.subject)

    def _next(self, waiting: Iterable[bytes]) -> Message:
        deadline = time.monotonic() + ANSWER_SECONDS
        message = self.link.next(deadline)
        while message.subject not in waiting:
            message = self.link.next(deadline)
        return message

    def get(self, digests: list[str]) -> dict[str, tuple[bytes, bytes]]:
        """(salt, content) of each object that is there and is what its name says; erased and lost ones are left out.

        Raises:
            Unavailable: not all answers came. Refused: not allowed.
        """
        found: dict[str, tuple[bytes, bytes]] = {}
        for start in range(0, len(digests), WINDOW):
            part = digests[start : start + WINDOW]
            found.update(self._get_part(part))
        return found

    def _get_part(self, digests: list[str]) -> dict[str, tuple[bytes, bytes]]:
        subject = f"{API}DIRECT.GET.{self.stream}".encode()
        chunks: dict[bytes, list[bytes]] = {}  # what is larger than a chunk is none of ours
        names: dict[bytes, str] = {}
        for digest in digests:
            inbox = self.link.open_inbox()
            wanted = {"batch": _MAX_CHUNKS, "next_by_subj": f"$O.{self.bucket}.C.{digest}", "seq": 1}
            self.link.connection().publish(subject, encode(wanted), b"", inbox)
            chunks[inbox], names[inbox] = [], digest
        open_ones = set(names)
        while open_ones:
            message = self._next(open_ones)
            if b"\r\nNats-Time-Stamp: " in message.headers:
                parts = chunks[message.subject]
                parts.append(message.payload if len(message.payload) <= CHUNK else b"")
                if len(parts) > _MAX_CHUNKS:
                    raise Unavailable(f"nats: bucket {self.bucket}: more than was asked for")
            elif message.status in (204, 404):
                open_ones.discard(message.subject)
            elif message.status == 503:
                raise self._nobody()
            else:
                raise Unavailable(f"nats: bucket {self.bucket}: {message.headers[:60]!r}")
        found = {}
        for inbox, digest in names.items():
            whole = b"".join(chunks[inbox])
            if blake3(whole).hexdigest() != digest:
                whole = self._from_leader(digest)
            if blake3(whole).hexdigest() == digest:
                found[digest] = (whole[:SALT_BYTES], whole[SALT_BYTES:])
        return found

    def _nobody(self) -> Unavailable:
        """Why nobody serves the bucket: it is gone, or for now."""
        try:
            Stream(self.link, self.stream).info()
        except NoStream:
            return Unavailable(
                f"nats: there is no bucket {self.bucket}, so contents are lost: look for a backup of stream {self.stream}; "
                "`gatebook init` makes an empty one"
            )
        return Silence(f"nats: nobody serves bucket {self.bucket} now")

    def _from_leader(self, digest: str) -> bytes:
        """The object as the bucket's leader has it: a replica that lags behind may not have it yet."""
        return b"".join(chunk for _, chunk in self._chunks_at_leader(digest))

    def _chunks_at_leader(self, digest: str) -> Iterator[tuple[int, bytes]]:
        place = 0
        for _ in range(_MAX_CHUNKS + 1):
            wanted = {"next_by_subj": f"$O.{self.bucket}.C.{digest}", "seq": place + 1}
            answer = read_answer(self.link.request(f"{API}STREAM.MSG.GET.{self.stream}", encode(wanted)))
            found = message_from(answer, place + 1)
            if found is None:
                return
            place, _, chunk = found
            yield place, chunk
