"""Opening, finding and making ledgers: which file, whose, and is it as this machine remembers it.

`Ledger` is what commands hold: a store, the ledger's id, and the guard that compares every write with
the head this machine saw last (DESIGN, Views: Which ledger).
"""

from __future__ import annotations

import fcntl
import os

import apsw
from blake3 import blake3

from ledger import clock, home
from ledger.canonical import encode
from ledger.errors import Invalid, Refused, Tampered, Unavailable, Usage
from ledger.event import Draft, Event, Head, Origin
from ledger.sqlite import FORMAT, INSERT, SQLiteStore, connect, create_schema, explain, read_only_refusal
from ledger.store import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.store import Reader, Recorded

FOLDER = ".gatebook"
ARCHIVE_ID = 0x67617263  # "garc", the application id of an imported archive
GITIGNORE = b"# made by gatebook: a ledger is never committed\n*\n"


def ledger_id_of(genesis: bytes) -> str:
    """The ledger id: the first 16 bytes of BLAKE3 of genesis' envelope, hex."""
    return blake3(genesis).hexdigest()[:32]


class Ledger:
    """An open ledger. `transact` as in `Store`, guarded by this machine's memory of the head."""

    def __init__(self, store: SQLiteStore, *, archive: bool = False) -> None:
        self.store = store
        self.path = store.path
        self.folder = store.folder
        self.place = store.url or store.folder
        """Where the ledger is, as its users name it: a fleet's URL, else the directory."""
        self.notice = ""
        """What a reader must be told: that the fleet did not answer when this was opened, so its replica is read."""
        self.archive = archive
        genesis = store.reader().event(1)
        self.genesis = genesis
        self.id = ledger_id_of(genesis.envelope) if genesis else ""
        self._memory = home.HeadMemory(self.id) if genesis else None
        self._checked = False
        self._last: tuple[int, bytes] | None = None
        store.guard(self._before, self._after)

    def transact(
        self,
        decide: Callable[[Reader], Sequence[Draft]],
        origin: Origin,
        *,
        clock_jump: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Recorded:
        """Append what `decide` returns, all or nothing, durable when this returns; `then` runs before the next writer.

        Raises:
            Refused: an archive, or a file behind this machine's memory of it; and what `decide` and `Store` raise.
        """
        self.notice = ""  # a write that the fleet does not take says why itself
        if self.archive:
            raise read_only_refusal(self.folder)
        if self._memory is None:
            raise Refused(f"{self.path}: has no genesis event; verdict truncated: restore a backup")
        return self.store.transact(decide, origin, clock_jump=clock_jump, then=then)

    def append(self, drafts: Sequence[Draft], origin: Origin, *, clock_jump: bool = False) -> Recorded:
        """`transact` with drafts that need no look at the ledger."""
        return self.transact(lambda _reader: drafts, origin, clock_jump=clock_jump)

    def memory(self) -> tuple[int, bytes] | None:
        """(seq, hash) of the last head this machine saw, None when it never saw one."""
        return self._memory.read() if self._memory else None

    def check_memory(self, reader: Reader) -> None:
        """Raise Refused when the file is behind what this machine remembers, or has another history."""
        remembered = self.memory()
        if remembered is None:
            return
        seq, known = remembered
        head = reader.head()
        if seq > head.seq:
            raise Refused(
                f"{self.path}: ends at event {head.seq}, this machine saw event {seq} (verdict truncated: a restored backup or a "
                "deleted tail): restore the newer file, or `gatebook resume --as-successor --reason R`"
            )
        event = reader.event(seq)
        if event is None or event.hash != known:
            raise Refused(
                f"{self.path}: event {seq} is not the one this machine saw (verdict forked): run `gatebook verify`; "
                "`gatebook resume --as-successor --reason R` goes on with this history"
            )

    def _before(self, reader: Reader, _events: Sequence[Event]) -> None:
        # Under the lock. The memory file once a handle; then what this handle itself wrote last.
        if not self._checked:
            self.check_memory(reader)
            self._checked = True
        elif self._last is not None:
            head, last = reader.head(), self._last
            if head.seq == last[0] and head.hash == last[1]:
                return
            event = reader.event(self._last[0])
            if event is None or event.hash != self._last[1]:
                raise Refused(
                    f"{self.path}: event {self._last[0]} was written here and is gone (verdict truncated: the file "
                    "was replaced while open): run `gatebook verify`"
                )

    def _after(self, last: Event) -> None:
        self._last = (last.seq, last.hash)
        self.remember(last.seq, last.hash)

    def remember(self, seq: int, hash: bytes) -> None:
        """Make (seq, hash) this machine's memory of the head; a state directory that cannot be written is only said."""
        if self._memory is None:
            return
        try:
            self._memory.write(seq, hash)
        except OSError as error:
            from ledger.notice import tell

            tell(f"{self._memory.path}: {error.strerror}: the head is not remembered on this machine")

    def adopt_head(self) -> Head:
        """Take the file's head as this machine's memory, whatever it was: `trust` and `resume` only."""
        head = self.store.head()
        self.remember(head.seq, head.hash)
        self._checked = False
        return head

    def accept_any_head(self) -> None:
        """Skip the comparison with the memory for this handle: `resume --as-successor` only."""
        self._checked = True

    def close(self) -> None:
        """Close the store and the memory."""
        self.store.close()
        if self._memory is not None:
            self._memory.close()


def place_of_files(location: str) -> str:
    """`location` as an absolute path.

    Raises:
        Usage: it is a URL: no directory `tls:` is made or looked for.
    """
    if ("://" in location or location.startswith("nats:")) and not os.path.exists(location):
        raise Usage(
            f"{location[:200]}: a path is needed here; a fleet's ledger is --ledger nats://host:port/NAME"
        )
    return os.path.abspath(location)


def _database(location: str) -> str:
    """The database file that a `--ledger` value means: the file, its directory, or a directory that holds `.gatebook`."""
    if os.path.isdir(location):
        inner = os.path.join(location, FOLDER, "ledger.db")
        own = os.path.join(location, "ledger.db")
        return inner if not os.path.exists(own) and os.path.exists(inner) else own
    return location


def open_ledger(location: str, *, now: Callable[[], int] = clock.now_us) -> Ledger:
    """The ledger at a path (file, its directory, or a directory with `.gatebook`), as `--ledger` names it.

    Raises:
        Usage: none there. Tampered, Invalid, Unavailable: as `SQLiteStore`.
    """
    path = _database(place_of_files(location))
    store = SQLiteStore(path, now=now)
    archive = store.query("PRAGMA application_id")[0][0] == ARCHIVE_ID
    return Ledger(store, archive=archive)


def find(start: str | None = None) -> str | None:
    """The nearest `.gatebook` folder from `start` (default: the working directory) upwards; it is not checked yet."""
    here = os.path.abspath(start or os.getcwd())
    while True:
        place = standing_at(here)
        if place is not None:
            return place
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def standing_at(here: str) -> str | None:
    """The ledger folder that commands in the directory `here` use before they look further up; None where there is none."""
    for place in (os.path.join(here, FOLDER), os.path.join(here, ".git", FOLDER)):
        if _holds_ledger(place):
            return place
    linked = _common_dir(os.path.join(here, ".git"))
    if linked and _holds_ledger(os.path.join(linked, FOLDER)):
        return os.path.join(linked, FOLDER)
    return None


def _holds_ledger(folder: str) -> bool:
    """Whether `folder` is a ledger's; one whose database is gone, or that is closed to us, still is: no outer ledger takes its place."""
    try:
        return any(name in ("ledger.db", "ledger.lock") for name in os.listdir(folder))
    except PermissionError:
        return os.path.lexists(folder)  # closed to this user: nobody can say that no ledger is in it
    except OSError:
        return False


def _common_dir(git: str) -> str | None:
    """The common git directory behind a `.git` file of a linked work tree; None for anything else."""
    if not os.path.isfile(git):
        return None
    with open(git, "rb") as file:
        line = file.read(4096).strip()
    if not line.startswith(b"gitdir: "):
        return None
    folder = os.path.join(os.path.dirname(git), os.fsdecode(line[8:]))
    try:
        with open(os.path.join(folder, "commondir"), "rb") as file:
            return os.path.normpath(os.path.join(folder, os.fsdecode(file.read(4096).strip())))
    except OSError:
        return folder if os.path.isdir(folder) else None


def open_found(folder: str, *, now: Callable[[], int] = clock.now_us) -> Ledger:
    """Open a ledger that was found by searching, if this user trusts it.

    Raises:
        Refused: not a private real directory, tracked by git, or not trusted on this machine.
    """
    home.check_found(folder)
    expected = home.trusted_id(folder)
    if expected is None:
        raise Refused(
            f"{folder}: this ledger was found, not chosen: `gatebook trust {folder}` accepts it, or name it with --ledger"
        )
    found = open_ledger(folder, now=now)
    # With no first event it is nobody's: it takes no event, and `verify` says what is wrong.
    if found.id and found.id != expected:
        found.close()
        raise Refused(
            f"{folder}: another ledger stands where this machine trusted {expected}: look, then `gatebook trust {folder}`"
        )
    return found


def open_current(location: str | None, *, now: Callable[[], int] = clock.now_us) -> Ledger:
    """The ledger that a command means: `--ledger`, else `$GATEBOOK_LEDGER`, else the nearest trusted `.gatebook/`.

    Raises:
        Usage: none there. Refused: found but not trusted. Others as `open_ledger`.
    """
    named = location or os.environ.get("GATEBOOK_LEDGER")
    if named:
        if named.startswith("nats://"):
            from ledger.fleet import open_fleet

            return open_fleet(named, now=now)
        return open_ledger(named, now=now)
    folder = find()
    if folder is None:
        raise Usage("no ledger here; run `gatebook init`")
    return open_found(folder, now=now)


def make_keys() -> dict[str, tuple[bytes, str]]:
    """New Ed25519 pairs: name -> (32-byte seed, public key as hex)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    made = {}
    for name in ("checkpoint", "receipt"):
        key = Ed25519PrivateKey.generate()
        made[name] = (key.private_bytes_raw(), key.public_key().public_bytes_raw().hex())
    return made


def create_ledger(
    folder: str,
    origin: Origin,
    genesis: dict[str, object] | None = None,
    *,
    now: Callable[[], int] = clock.now_us,
) -> tuple[Ledger, bool]:
    """Make a ledger in `folder` (0700) with its genesis event, keys and trust; or open the one that stands there.

    `genesis` adds members to the data of `ledger.opened` (the authority policy). Returns the ledger and whether
    it was made now.

    Raises:
        Refused: `folder` is a link or somebody else's. Unavailable: no room or no right to write.
    """
    try:
        if os.path.islink(folder) or (os.path.exists(folder) and not os.path.isdir(folder)):
            raise Refused(f"{folder}: a link or a file stands where the ledger's directory would be")
        os.makedirs(folder, 0o700, exist_ok=True)
        lock = os.open(
            os.path.join(folder, "ledger.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; no ledger was made") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = _create_database(folder, origin, genesis or {}, now)
    except OSError as error:
        # Keys and trust lie in the state folder: it may be that one which takes nothing.
        where = os.fsdecode(error.filename) if error.filename else folder
        raise Unavailable(f"{where}: {error.strerror}; no ledger was made") from None
    finally:
        os.close(lock)
    opened = open_ledger(folder, now=now)
    if made:
        opened.adopt_head()
    return opened, made


def _check_not_lost(folder: str) -> None:
    """Raise Refused when a ledger that this machine trusts stood here and its database is gone or empty.

    With its whole directory gone, a new ledger may be made; with the rest still here, it was lost (or an
    attempt to make one died, which leaves `ledger.new`).
    """
    if not os.path.lexists(os.path.join(folder, ".gitignore")) or os.path.lexists(
        os.path.join(folder, "ledger.new")
    ):
        return
    lost = home.trusted_id(folder)
    if lost is not None:
        raise Refused(
            f"{folder}/ledger.db: is missing or empty, and ledger {lost} stood here: restore a backup, "
            f"or move {folder} away to begin a new ledger"
        )


def _remove(*paths: str) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _create_database(folder: str, origin: Origin, extra: dict[str, object], now: Callable[[], int]) -> bool:
    """Make the database whole under another name, then give it its own: nobody opens half a ledger."""
    from ledger.files import flush_names, write_whole

    path = os.path.join(folder, "ledger.db")
    if os.path.islink(path):
        raise Refused(f"{path}: a link stands where the ledger's file would be")
    if os.path.exists(path) and os.path.getsize(path):
        return False  # whatever it is, opening says so
    _check_not_lost(folder)
    new = os.path.join(folder, "ledger.new")
    _remove(new, f"{new}-wal", f"{new}-shm", f"{new}-journal")  # of an attempt that died
    before = os.umask(0o077)
    try:
        try:
            connection = connect(new, create=True)
            try:
                ignore = os.path.join(folder, ".gitignore")
                if not os.path.lexists(ignore):
                    write_whole(ignore, GITIGNORE)
                connection.execute("BEGIN IMMEDIATE")
                create_schema(connection)
                genesis = _write_genesis(connection, origin, extra, now)
                connection.execute("COMMIT")
                connection.execute("PRAGMA journal_mode=WAL").fetchall()
            finally:
                connection.close()
        except apsw.Error as error:
            raise explain(error, path) from None
        # A log of a database that is gone would be replayed into this one.
        _remove(f"{path}-wal", f"{path}-shm", f"{new}-wal", f"{new}-shm")
        # What stood here before (a rubric, say) may have been made under a looser umask; a ledger is private.
        os.chmod(folder, 0o700)
        home.remember_ledger(ledger_id_of(genesis.envelope), folder, clock.format_us(now()))
        # Crash before this line: no ledger, and keys of none, never used. After it: a ledger, and trusted.
        os.rename(new, path)
        flush_names(folder)
    finally:
        os.umask(before)
    return True


def make_genesis(origin: Origin, extra: dict[str, object], now: Callable[[], int]) -> Event:
    """The sealed genesis event of a new ledger, whose keys this machine keeps from now on.

    `extra` adds members to the data of `ledger.opened`. A ledger that is then not made leaves keys that nothing names.
    """
    keys = make_keys()
    public = {name: text for name, (_, text) in keys.items()}
    data = encode({"format": FORMAT, "keys": public, **extra}, what="ledger.opened", floats=False)
    event = first_event(data, origin, now())
    ledger_id = ledger_id_of(event.envelope)
    for name, (seed, _) in keys.items():
        home.write_key(ledger_id, name, seed)
    return event


def _write_genesis(
    connection: apsw.Connection, origin: Origin, extra: dict[str, object], now: Callable[[], int]
) -> Event:
    event = make_genesis(origin, extra, now)
    connection.execute(
        INSERT,
        (1, event.envelope, event.data, None, None, event.hash),
    )
    return event


class _Nothing:
    """The reader of a ledger that has no event yet."""

    def __init__(self, now: int) -> None:
        self.clock = now

    def head(self) -> Head:
        return Head()

    def version(self, _stream: str) -> int:
        return 0


def first_event(data: bytes, origin: Origin, now: int) -> Event:
    """The sealed genesis event with this data."""
    nothing: Reader = _Nothing(now)  # type: ignore[assignment]
    draft = Draft("ledger", "ledger.opened", data)
    return prepare([draft], nothing, origin, lambda _event: None, clock_jump=False).events[0]


def trust(folder: str, *, now: Callable[[], int] = clock.now_us) -> Ledger:
    """Accept a found ledger on this machine, its present head included.

    Raises:
        Refused: it is not a private real directory, git tracks it, or this machine saw a later head of it:
            `resume --as-successor` is the way back then, because it voids what was open.
        Usage, Tampered: no ledger there.
    """
    if not os.path.lexists(os.path.join(folder, "ledger.db")) and os.path.lexists(
        os.path.join(folder, FOLDER, "ledger.db")
    ):
        folder = os.path.join(folder, FOLDER)
    if not os.path.lexists(folder):
        raise Usage(f"{folder}: no ledger here")
    home.check_found(folder)
    opened = open_ledger(folder, now=now)
    if not opened.id:
        raise Tampered(f"{folder}: has no genesis event", verdict="nothing-to-verify")
    try:
        opened.check_memory(opened.store.reader())
    except Tampered:
        pass  # the memory itself is damaged: accepting the ledger anew mends it
    home.remember_ledger(opened.id, folder, clock.format_us(now()))
    opened.adopt_head()
    return opened


def git_common_dir(start: str) -> tuple[str, str]:
    """(the work tree around `start`, its common git directory), for `init --git-dir`.

    Raises:
        Invalid: `start` is in no git work tree.
    """
    here = os.path.abspath(start)
    while True:
        git = os.path.join(here, ".git")
        if os.path.isdir(git):
            return here, git
        linked = _common_dir(git)
        if linked:
            return here, linked
        parent = os.path.dirname(here)
        if parent == here:
            raise Invalid(f"{start}: --git-dir needs a git repository, and there is none here or above")
        here = parent
