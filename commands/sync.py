"""`sync`: this machine's replica of a fleet's ledger catches up, verified (contract page ledger)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from ledger.errors import Refused, Tampered, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.replica import FleetStore

FOLLOW_SECONDS = 0.25
RETRY_SECONDS = 2.0


def fleet_store(ledger: Ledger) -> FleetStore:
    """The store of a `nats://` ledger.

    Raises:
        Usage: it is a ledger of files.
    """
    from ledger.replica import FleetStore

    if not isinstance(ledger.store, FleetStore):
        raise Usage(f"{ledger.folder}: a ledger of files has no replica; sync is for nats://host:port/NAME")
    return ledger.store


def _answer(ledger: Ledger, store: FleetStore, came: int) -> dict[str, object]:
    head = store.head()
    return {
        "ledger_id": ledger.id,
        "url": store.url,
        "replica": store.folder,
        "events": came,
        "void": store.voids,
        "head": {"seq": head.seq, "hash": head.hash.hex()},
    }


def _check_memory(ledger: Ledger) -> None:
    try:
        ledger.check_memory(ledger.store.reader())
    except Refused as error:
        verdict = "truncated" if "truncated" in str(error) else "forked"
        raise Tampered(str(error), verdict=verdict) from None


def run(args: Args, context: Context) -> int:
    """Read the stream to its end; with `--follow` go on, one line whenever something came."""
    ledger = context.ledger()
    store = fleet_store(ledger)
    ledger.notice = ""  # a cluster that does not answer is what this ends with
    # Opening has caught up; this compares all that the replica has with all that the stream has.
    store.follow(whole=True)
    came = store.came
    _check_memory(ledger)
    emit(_answer(ledger, store, came))
    if args.follow:
        _follow(ledger, store, context)
    return 0


class Follower:
    """Catches a fleet's replica up again and again; a cluster that does not answer is said once, and tried on."""

    def __init__(self, ledger: Ledger, context: Context) -> None:
        self._ledger = ledger
        self._store = fleet_store(ledger)
        self._context = context
        self._away = False
        self._seen = self._store.head().seq
        self.came = 0
        """How many events are there since the last catching up, whichever command of this machine read them in."""

    def wait(self) -> bool:
        """Wait a moment, then `catch_up`."""
        import time

        time.sleep(RETRY_SECONDS if self._away else FOLLOW_SECONDS)
        return self.catch_up()

    def catch_up(self) -> bool:
        """Read the stream to its end; whether something came, be it void.

        Raises:
            Tampered: the stream lost or rewrote what this machine had seen.
        """
        from ledger.fleet import remember_followed

        voids = self._store.voids
        try:
            self._store.follow()
        except Unavailable as error:
            if not self._away:
                self._context.log().warning("the cluster does not answer; trying on", error=str(error))
            self._away = True
            return False
        self._away = False
        head = self._store.head().seq
        self.came, self._seen = head - self._seen, head
        if not self.came and self._store.voids == voids:
            return False
        remember_followed(self._ledger)
        _check_memory(self._ledger)
        return True


def _follow(ledger: Ledger, store: FleetStore, context: Context) -> None:
    import sys

    follower = Follower(ledger, context)
    while True:
        sys.stdout.flush()
        if follower.wait():
            emit(_answer(ledger, store, follower.came))


COMMANDS = {
    "sync": Command(
        run,
        "The local replica of a nats:// ledger catches up: every message is checked against the chain, what the replica\n"
        "already has is compared, what is no extension of the chain is counted as void. Exit 3: the stream lost or\n"
        "rewrote what this machine had seen. Exit 75: no cluster.",
        flags=(Flag("--follow", None, "go on; one JSON line whenever something came"),),
        example="gatebook --ledger nats://127.0.0.1:4222/team sync",
    )
}
