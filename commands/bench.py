"""`bench`: this machine's speed as ratios against a limit measured in the same run (contract page ledger; docs/performance.md).

Absolute times depend on the machine; the ratio to bare Python, to a raw SQLite insert or to a bare SELECT on the
same disk in the same minute does not, much. `tools/bench/report.py` runs the same rows at 1 M events.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import apsw

from commands.context import Context, emit, say
from commands.entry import AS_PROCESS
from commands.flags import Args, Command, Flag
from ledger.access import create_ledger
from ledger.errors import Usage
from ledger.event import Draft, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.access import Ledger
    from projections.engine import Proposal, World

PAYLOAD = b'{"text":"' + b"y" * 287 + b'"}'
ORIGIN = Origin("cli:bench", "bench")
WORKER = """
import sys, time
from ledger.access import open_ledger
from ledger.event import Draft, Origin
path, number, count, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
ledger, origin = open_ledger(path), Origin("cli:bench", "bench")
data = b'{"text":"' + b"y" * 287 + b'"}'
time.sleep(max(0.0, start - time.time()))
worst = 0.0
for _ in range(count):
    began = time.perf_counter()
    ledger.append([Draft("x-bench/" + number, "x.bench.ran", data)], origin)
    worst = max(worst, time.perf_counter() - began)
print(worst)
"""


class Row:
    """One line of the result: what was measured, the ratio, and the limit it must keep (`at_most` or at least)."""

    __slots__ = ("at_most", "detail", "limit", "ratio", "unit", "work")

    def __init__(
        self, work: str, ratio: float, limit: float, detail: str, *, at_most: bool, unit: str = "x"
    ) -> None:
        self.work = work
        self.ratio = ratio
        self.limit = limit
        self.detail = detail
        self.at_most = at_most
        self.unit = unit

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.ratio <= self.limit if self.at_most else self.ratio >= self.limit

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "work": self.work,
            "measured": round(self.ratio, 3),
            "unit": self.unit,
            "limit": self.limit,
            "at_most": self.at_most,
            "kept": self.kept,
            "detail": self.detail,
        }


def _spawn(command: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def interleaved(commands: dict[str, list[str]], env: dict[str, str], rounds: int) -> dict[str, float]:
    """Median seconds of each command, run in turn so that noise falls on all of them."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 2):
        for name, command in commands.items():
            spent = _spawn(command, env)
            if turn > 1:  # the first two fill caches
                times[name].append(spent)
    return {name: statistics.median(found) for name, found in times.items()}


def starts(folder: str, env: dict[str, str], rounds: int) -> Iterator[Row]:
    """Whole processes against a bare Python start."""
    ledger = os.path.join(folder, "starts")
    subprocess.run([*AS_PROCESS, "--ledger", ledger, "init"], env=env, check=True, stdout=subprocess.DEVNULL)
    rubric = os.path.join(folder, "rubric.json")
    with open(rubric, "w", encoding="utf-8") as file:
        file.write('{"models":[{"name":"m","effort":"high","provider":"p"}],"routing":{"default":"m@high"}}')
    state = os.path.join(folder, "health.json")
    failure = [
        "route",
        "record-failure",
        "--provider",
        "p",
        "--executor",
        "e",
        "--reason",
        "rate_limit",
        "--state",
        state,
    ]
    select = [
        "route",
        "select",
        "--rubric",
        rubric,
        "--route",
        "default",
        "--native-provider",
        "p",
        "--executors",
        "",
        "--state",
        state,
    ]
    append = [
        "--ledger",
        ledger,
        "append",
        "--stream",
        "x-bench/1",
        "--type",
        "x.bench.ran",
        "--data",
        PAYLOAD.decode(),
    ]
    found = interleaved(
        {
            "bare": [sys.executable, "-c", "pass"],
            "append": [*AS_PROCESS, *append],
            "typed": [*AS_PROCESS, *failure],
            "select": [*AS_PROCESS, *select],
        },
        env,
        rounds,
    )
    bare = found["bare"]
    for name, work, limit in (
        ("append", "gatebook append of an x. event / bare Python start", 2.2),
        ("typed", "route record-failure (fold, admission, view) / bare Python start", 4.5),
        ("select", "route select / bare Python start", 4.5),
    ):
        yield Row(
            work, found[name] / bare, limit, f"{found[name] * 1e3:.1f} ms / {bare * 1e3:.1f} ms", at_most=True
        )


class Raw:
    """The peer: a plain SQLite table of the same size of rows, WAL, synchronous FULL, no hash, no index."""

    def __init__(self, folder: str) -> None:
        self.connection = apsw.Connection(os.path.join(folder, "raw.db"))
        self.connection.execute("PRAGMA journal_mode=WAL").fetchall()
        self.connection.execute("PRAGMA synchronous=FULL").fetchall()
        self.connection.execute("CREATE TABLE raw (seq INTEGER PRIMARY KEY, payload BLOB)")

    def write(self, batch: int) -> None:
        """One transaction of `batch` rows."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO raw (payload) VALUES (?)", [(PAYLOAD,)] * batch)
        self.connection.execute("COMMIT")


def _rate(work: Callable[[], object], events: int, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return events * times / (time.perf_counter() - began)


def appends(folder: str, transactions: int) -> Iterator[Row]:
    """In-process appends against raw inserts, in alternating blocks."""
    ledger, _ = create_ledger(os.path.join(folder, "appends"), ORIGIN)
    raw = Raw(folder)
    for batch, limit, work in (
        (1, 0.8, "in-process append, one a transaction, durable / raw insert"),
        (1000, 0.25, "append in batches of 1,000 / raw insert"),
    ):
        drafts = [Draft(f"x-bench/{number % 7}", "x.bench.ran", PAYLOAD) for number in range(batch)]
        times = max(3, transactions // (1 if batch == 1 else 50))
        ours, theirs = [], []
        for _ in range(4):
            ours.append(_rate(lambda drafts=drafts: ledger.append(drafts, ORIGIN), batch, times))  # type: ignore[misc]
            theirs.append(_rate(lambda batch=batch: raw.write(batch), batch, times))  # type: ignore[misc]
        mine, peer = statistics.median(ours), statistics.median(theirs)
        yield Row(work, mine / peer, limit, f"{mine:,.0f} / {peer:,.0f} events/s", at_most=False)
    ledger.close()


def fill(folder: str, events: int, streams: int = 7) -> Ledger:
    """A ledger of `events` open events of 300 bytes in a few streams."""
    ledger, _ = create_ledger(folder, ORIGIN)
    batch = [Draft(f"x-bench/{number % streams}", "x.bench.ran", PAYLOAD) for number in range(1000)]
    for _ in range(max(1, events // 1000)):
        ledger.append(batch, ORIGIN)
    return ledger


def _scan(ledger: Ledger) -> float:
    connection = apsw.Connection(ledger.path, flags=apsw.SQLITE_OPEN_READWRITE)
    began = time.perf_counter()
    for _row in connection.execute("SELECT seq, envelope, data, salt, content, hash FROM events"):
        pass
    spent = time.perf_counter() - began
    connection.close()
    return spent


def audits(folder: str, events: int) -> Iterator[Row]:
    """Verification against a bare SELECT of the six columns, and replay."""
    from ledger.verify import verify
    from projections.replay import replay

    ledger = fill(os.path.join(folder, "audits"), events)
    count = ledger.store.head().seq
    scans: list[float] = []
    single: list[float] = []
    double: list[float] = []
    replays: list[float] = []
    for _ in range(3):
        scans.append(_scan(ledger))
        for jobs, found in ((1, single), (2, double)):
            began = time.perf_counter()
            assert verify(ledger.store, memory=ledger.memory(), jobs=jobs).ok
            found.append(time.perf_counter() - began)
        began = time.perf_counter()
        assert replay(ledger.store)[0].ok
        replays.append(time.perf_counter() - began)
    scan = statistics.median(scans)
    for name, limit, found in (
        ("verify --jobs 1", 0.25, single),
        ("verify --jobs 2 (what `verify` does here)", 0.45, double),
    ):
        spent = statistics.median(found)
        detail = f"{count / spent:,.0f} / {count / scan:,.0f} events/s over {count:,} events"
        yield Row(f"{name} / bare SELECT of all six columns", scan / spent, limit, detail, at_most=False)
    rate = count / statistics.median(replays)
    yield Row(
        "replay of open events", rate, 200_000, f"over {count:,} events", at_most=False, unit="events/s"
    )
    ledger.close()


def _failures(world: World, streams: int) -> list[Proposal]:
    """One more failure of each of many endpoints: decided events, each with its fold and admission."""
    from projections.circuit import Opened
    from projections.cooldowns import next_opening
    from projections.engine import Proposal
    from projections.times import print_time, whole_seconds

    at = whole_seconds(world.clock)
    found = []
    for number in range(streams):
        stream = f"circuit/p{number}|native"
        count, until = next_opening(world.state(stream).circuit(), "rate_limit", at)
        data = Opened(f"p{number}", "native", "rate_limit", print_time(at), count, print_time(until))
        found.append(Proposal(stream, "circuit.opened", data))
    return found


def decided(folder: str, events: int) -> Iterator[Row]:
    """Replay of events that each had to be admitted."""
    from projections.engine import submit
    from projections.replay import replay

    ledger, _ = create_ledger(os.path.join(folder, "decided"), ORIGIN)
    streams = 200
    for _ in range(max(1, events // streams)):
        submit(ledger, ORIGIN, lambda world: _failures(world, streams))
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        report, running = replay(ledger.store)
        assert report.ok
        rates.append(running.admitted / (time.perf_counter() - began))
    yield Row(
        "replay of decided events (circuits)",
        statistics.median(rates),
        200_000,
        f"over {running.admitted:,} events",
        at_most=False,
        unit="events/s",
    )
    ledger.close()


def flat(folder: str, small: int, large: int, rounds: int) -> Iterator[Row]:
    """Append, and `log -n 50`, on a small and a large ledger: the same cost."""
    from commands.flags import parse
    from commands.log import COMMANDS as LOG
    from commands.log import Filter, _last

    wanted = Filter(parse(LOG["log"], ["-n", "50"]))
    spent: dict[str, dict[int, float]] = {"append": {}, "log": {}}
    for size in (small, large):
        ledger = fill(os.path.join(folder, f"flat-{size}"), size)
        one, tail = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            ledger.append([Draft("x-bench/1", "x.bench.ran", PAYLOAD)], ORIGIN)
            one.append(time.perf_counter() - began)
            began = time.perf_counter()
            _last(ledger, wanted, 1, ledger.store.head().seq, 50)
            tail.append(time.perf_counter() - began)
        spent["append"][size], spent["log"][size] = statistics.median(one), statistics.median(tail)
        ledger.close()
    for name, found in spent.items():
        detail = f"{found[large] * 1e6:.0f} us / {found[small] * 1e6:.0f} us"
        yield Row(
            f"{name} at {large:,} events / at {small:,}",
            found[large] / found[small],
            1.5,
            detail,
            at_most=True,
        )


def contention(folder: str, env: dict[str, str], processes: int, each: int) -> Iterator[Row]:
    """Many writers at once: the longest that one of them waited."""
    path = os.path.join(folder, "contention")
    ledger, _ = create_ledger(path, ORIGIN)
    start = str(time.time() + 0.5 + processes * 0.12)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, path, str(n), str(each), start],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    worst = max(float(worker.communicate()[0]) for worker in workers)
    count = ledger.store.head().seq - 1
    assert count == processes * each, f"{count} of {processes * each} events are there"
    detail = f"{processes} x {each}, none lost"
    yield Row(f"{processes} processes at once: worst wait", worst * 1e3, 150, detail, at_most=True, unit="ms")
    ledger.close()


def _compile() -> None:
    """Byte code as pip leaves it: an editable install under PYTHONDONTWRITEBYTECODE would compile at every start."""
    import compileall

    import commands
    import ledger
    import projections

    for package in (ledger, projections, commands):
        compileall.compile_dir(package.__path__[0], quiet=2)


def measure(
    *, events: int = 100_000, rounds: int = 15, transactions: int = 400, writers: int = 16
) -> Iterator[Row]:
    """All rows, in a scratch directory that is removed."""
    _compile()
    folder = tempfile.mkdtemp(prefix="gatebook-bench-", dir=os.environ.get("GATEBOOK_BENCH_DIR"))
    before = {name: os.environ.get(name) for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME")}
    os.environ["XDG_STATE_HOME"] = os.path.join(folder, "state")
    os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
    env = {**os.environ}
    env.pop("GATEBOOK_LEDGER", None)
    try:
        yield from starts(folder, env, rounds)
        yield from appends(folder, transactions)
        yield from audits(folder, events)
        yield from decided(folder, min(events, 100_000))
        yield from flat(folder, 1_000, events, rounds * 10)
        yield from contention(folder, env, writers, 200)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def run(args: Args, _context: Context) -> int:
    """Measure, and print each row with its limit beside it."""
    rows = []
    if args.events == 0:
        raise Usage("--events: at least 1")
    for row in measure(events=args.events or 100_000):
        rows.append(row)
        if not args.json:
            shown = f"{row.ratio:,.0f}" if row.ratio >= 1000 else f"{row.ratio:.2f}"
            bound = f"{'<=' if row.at_most else '>='} {row.limit:,} {row.unit}"
            say(
                f"{'ok  ' if row.kept else 'MISS'} {row.work:<66} {shown:>9} {row.unit:<9} {bound:<22} {row.detail}"
            )
            sys.stdout.flush()
    if args.json:
        emit(
            {
                "rows": [row.as_json() for row in rows],
                "python": sys.version.split()[0],
                "sqlite": apsw.sqlite_lib_version(),
            }
        )
    return 0


COMMANDS = {
    "bench": Command(
        run,
        "Measures this machine in a scratch directory: start-up, appends, verify, replay, contention, each as a ratio to\n"
        "something bare measured in the same run, with the limit beside it. Takes about a minute.",
        flags=(
            Flag("--events", "N", "size of the ledger that is verified (default 100,000)", number=True),
            Flag("--json", None, "one JSON object"),
        ),
        example="gatebook bench --events 20000",
    )
}
