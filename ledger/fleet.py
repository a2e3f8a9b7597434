"""Opening and making the ledger of a fleet: `nats://host:port/NAME` (DESIGN, Stores).

What this machine keeps of it lies in `$XDG_STATE_HOME/gatebook/fleet/`: the replica (an ordinary ledger file, marked
as an archive so that nobody writes into it past the stream), and where the other servers of the cluster are.
"""

from __future__ import annotations

import fcntl
import os

import apsw

from ledger import clock, home
from ledger.access import ARCHIVE_ID, Ledger, ledger_id_of, make_genesis
from ledger.errors import GatebookError, Refused, Tampered, Unavailable, Usage
from ledger.extension import message_of
from ledger.files import write_whole
from ledger.jetstream import NoStream, Stream, WrongLast
from ledger.nats_client import Link, parse_location, parse_server
from ledger.nats_login import find_login
from ledger.replica import FleetStore
from ledger.sqlite import connect, create_schema, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.event import Origin


def replica_folder(url: str) -> str:
    """Where this machine keeps the replica of the ledger at `url`."""
    servers, name = parse_location(url)
    key = f"{name}@" + ",".join(f"{host}:{port}" for host, port in servers)
    if len(key) > 200:
        from blake3 import blake3

        key = f"{name}@{blake3(key.encode()).hexdigest()[:32]}"
    return os.path.join(home.state_dir(), "fleet", key.replace("/", "_"))


def _make_replica(folder: str) -> str:
    path = os.path.join(folder, "ledger.db")
    before = os.umask(0o077)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(os.path.join(folder, "ledger.lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(path) and os.path.getsize(path):
                return path
            # Others may look for it at any moment: it appears whole or not at all.
            fresh = path + ".new"
            for name in (fresh, fresh + "-wal", fresh + "-shm", fresh + "-journal"):
                if os.path.lexists(name):
                    os.unlink(name)
            connection = connect(fresh, create=True)
            try:
                connection.execute("BEGIN IMMEDIATE")
                create_schema(connection)
                connection.execute(f"PRAGMA application_id={ARCHIVE_ID}")
                connection.execute("COMMIT")
                connection.execute("PRAGMA journal_mode=WAL").fetchall()
            finally:
                connection.close()
            # Crash before this line: a file that the next call makes again.
            os.rename(fresh, path)
            for name in (fresh + "-wal", fresh + "-shm"):
                if os.path.lexists(name):
                    os.unlink(name)
        finally:
            os.close(lock)
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}: the replica cannot be kept there") from None
    except apsw.Error as error:
        raise explain(error, path) from None
    finally:
        os.umask(before)
    return path


def _known_servers(folder: str) -> list[tuple[str, int]]:
    try:
        with open(os.path.join(folder, "servers"), encoding="ascii") as file:
            return [parse_server(line) for line in file.read(64 * 1024).split()]
    except (OSError, ValueError, Usage):
        return []


def _open_store(url: str, now: Callable[[], int]) -> FleetStore:
    servers, name = parse_location(url)
    folder = replica_folder(url)
    path = os.path.join(folder, "ledger.db")
    if not os.path.exists(path) or not os.path.getsize(path):
        path = _make_replica(folder)
    link = Link(
        servers + [server for server in _known_servers(folder) if server not in servers], find_login(servers)
    )
    store = FleetStore(path, url, link, name, now=now)
    if store.query("PRAGMA application_id")[0][0] != ARCHIVE_ID:
        store.close()
        raise Refused(
            f"{folder}: this replica was made a ledger of its own (resume): move it away to follow {url} again"
        )
    return store


def _remember_servers(store: FleetStore) -> None:
    known = store.link.servers
    text = "".join(
        f"[{host}]:{port}\n" if ":" in host else f"{host}:{port}\n" for host, port in sorted(known)
    )
    if len(known) > 1 and sorted(_known_servers(store.folder)) != sorted(known):
        write_whole(os.path.join(store.folder, "servers"), text.encode())


def open_fleet(
    url: str,
    *,
    now: Callable[[], int] = clock.now_us,
    kept: Callable[[FleetStore, int], None] | None = None,
) -> Ledger:
    """The ledger at `url`, its replica caught up; with a replica but no cluster, the replica and a `notice`.

    `kept`: see `FleetStore.kept`; what a new machine reads can be folded while more of it comes.

    Raises:
        Usage: not such a name, or no ledger there. Unavailable: no cluster, and nothing of it on this machine.
        Refused: the login is not accepted. Tampered: see `FleetStore.follow`, where there is no replica to read.
    """
    store = _open_store(url, now)
    store.kept = kept
    try:
        store.follow()
        _remember_servers(store)
    except GatebookError as error:
        if not store.head().seq:
            store.close()
            raise
        store.offline = str(error)
        store.fault = error if isinstance(error, Tampered) else None
    if not store.head().seq:
        store.close()
        raise Usage(f"{url}: no ledger here; run `gatebook init`")
    ledger = Ledger(store)
    if store.offline:
        ledger.notice = f"{store.offline}: reading this machine's replica"
    else:
        remember_followed(ledger)
    return ledger


def remember_followed(ledger: Ledger) -> None:
    """Make the replica's head this machine's memory, unless that knows more or other: then every write is refused."""
    head = ledger.store.head()
    known = ledger.memory()
    if known is not None and known[0] >= head.seq:
        return
    try:
        ledger.check_memory(ledger.store.reader())
    except Refused:
        return
    ledger.remember(head.seq, head.hash)


def create_fleet(
    url: str, origin: Origin, genesis: dict[str, object], *, now: Callable[[], int] = clock.now_us
) -> dict[str, object]:
    """Make the ledger at `url`, stream, bucket, keys and genesis; or find it there. The members that `init` prints.

    The stream is made on three servers where the cluster has them, else on one; one that an administrator made is used.

    Raises:
        Refused: not allowed. Unavailable: no cluster.
    """
    store = _open_store(url, now)
    try:
        made = False
        try:
            store.stream.info()
        except NoStream:
            if store.head().seq:
                raise store.no_stream() from None
            store.stream.create()
        try:
            Stream(store.link, store.objects.stream).info()
        except NoStream:
            store.objects.create()
        store.follow()
        while not store.head().seq:
            event = make_genesis(origin, genesis, now)
            try:
                store.publish([event], [message_of(event)], lambda: None)
                made = True
            except WrongLast:
                pass  # another machine was first, or a void message came between
            store.follow()
        _remember_servers(store)
        first, head = store.reader().event(1), store.head()
        assert first is not None
        ledger_id = ledger_id_of(first.envelope)
        if made:
            home.remember_ledger(ledger_id, store.folder, clock.format_us(now()))
            home.HeadMemory(ledger_id).write(head.seq, head.hash)
        return {
            "ledger_id": ledger_id,
            "path": url,
            "created": made,
            "seq": head.seq,
            "hash": head.hash.hex(),
        }
    finally:
        store.close()
