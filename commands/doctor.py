"""`doctor`: the ledger's surroundings, each with what to do about it (contract page ledger)."""

from __future__ import annotations

import os
import shutil
import stat

from commands.context import Context, emit, say
from commands.findings import Finding
from commands.flags import Args, Command, Flag
from ledger.errors import GatebookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.access import Ledger

LOW_SPACE = 64 * 1024 * 1024
GAP_HOURS = 24
RECENT = 10_000


def _permissions(ledger: Ledger) -> Iterator[Finding]:
    for name, mode in (("", 0o700), ("ledger.db", 0o600), ("ledger.lock", 0o600)):
        path = os.path.join(ledger.folder, name) if name else ledger.folder
        try:
            info = os.stat(path)
        except OSError as error:
            yield Finding(
                "permissions",
                "problem",
                f"{path}: {error.strerror}",
                "the next write makes it again" if name == "ledger.lock" else "restore a backup",
            )
            continue
        loose = stat.S_IMODE(info.st_mode) & ~mode
        if loose & 0o077:
            yield Finding(
                "permissions",
                "problem",
                f"{path} has mode {stat.S_IMODE(info.st_mode):04o}",
                f"chmod {mode:o} {path}",
            )
        if info.st_uid != os.geteuid():
            yield Finding(
                "permissions",
                "problem",
                f"{path} belongs to user {info.st_uid}",
                "run gatebook as the ledger's owner",
            )


def _place(ledger: Ledger) -> Iterator[Finding]:
    from ledger.home import check_found, trusted_id

    try:
        check_found(ledger.folder)
    except GatebookError as error:
        yield Finding("place", "problem", str(error))
    if not ledger.store.url and trusted_id(ledger.folder) != ledger.id:
        yield Finding(
            "trust",
            "note",
            "this machine was not told to trust the ledger at this place",
            f"gatebook trust {ledger.folder}",
        )
    kind = _filesystem(ledger.folder)
    if kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs")):
        yield Finding(
            "filesystem",
            "problem",
            f"{kind}: locks of network filesystems are not safe for SQLite",
            "move the ledger to a local disk, or use a nats:// ledger",
        )
    free = shutil.disk_usage(ledger.folder).free
    level = "problem" if free < LOW_SPACE else "ok"
    yield Finding(
        "space",
        level,
        f"{free // (1024 * 1024)} MiB free",
        "make room: appends stop when the disk is full" if level == "problem" else "",
    )


def _filesystem(path: str) -> str:
    best, kind = "", "unknown"
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split()
                point = fields[1].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[2]
    except OSError:
        pass
    return kind


def _database(ledger: Ledger) -> Iterator[Finding]:
    from ledger.sqlite import sqlite_version
    from ledger.verify import check_schema
    from ledger.walk import Wrong

    yield Finding("sqlite", "ok", f"SQLite {sqlite_version()}")
    try:
        check_schema(ledger.store)
        yield Finding("schema", "ok", "tables, indexes and triggers are format 1's")
    except Wrong as wrong:
        yield Finding("schema", "problem", f"{wrong.field} was changed", "gatebook verify; restore a backup")
    try:
        size = os.stat(ledger.path + "-wal").st_size
    except FileNotFoundError:
        size = 0
    level = "note" if size > LOW_SPACE else "ok"
    yield Finding(
        "wal",
        level,
        f"{size // 1024} KiB in the WAL",
        "a long reader keeps it from shrinking" if level == "note" else "",
    )


def _memory(ledger: Ledger) -> Iterator[Finding]:
    head = ledger.store.head()
    try:
        remembered = ledger.memory()
    except GatebookError as error:
        yield Finding("head memory", "problem", str(error))
        return
    if remembered is None:
        yield Finding(
            "head memory",
            "note",
            "this machine has not seen this ledger's head yet",
            "the next append remembers it",
        )
        return
    try:
        ledger.check_memory(ledger.store.reader())
        yield Finding("head memory", "ok", f"event {remembered[0]} of {head.seq}")
    except GatebookError as error:
        yield Finding("head memory", "problem", str(error))


def _keys(ledger: Ledger) -> Iterator[Finding]:
    from commands.authority.keys import current_key
    from commands.authority.signers import NOBODY, nobody_signs
    from ledger.home import keys_dir
    from projections.engine import state_of

    state, _ = state_of(ledger, "ledger")
    for name in ("checkpoint", "receipt"):
        try:
            current_key(ledger, name)
            yield Finding("keys", "ok", f"{name} key")
        except GatebookError as error:
            # Of a fleet's machines one has the keys; of a ledger of files, this one has lost them or was told others.
            fleet = ledger.store.url and not os.path.lexists(os.path.join(keys_dir(ledger.id), name))
            mend = (
                "the machine that ran `gatebook init` signs; to sign here too, copy its keys (docs/scale.md)"
            )
            if not fleet:
                mend = "without the current key this machine cannot sign; restore it from its backup, or from where it was rotated"
            path = os.path.join(keys_dir(ledger.id), name)
            if os.path.isfile(path) and os.stat(path).st_mode & 0o077:
                mend = f"chmod 600 {path}; gatebook authority rotate {name}"
            yield Finding("keys", "note" if fleet else "problem", str(error), mend)
    if state.policy is None:
        yield Finding(
            "authority",
            "note",
            "no authority policy: any user of this account can approve",
            "gatebook authority require --help",
        )
    elif not state.policy.presence:
        yield Finding(
            "authority",
            "note",
            "the policy does not ask for presence: ssh-agent signs silently for who reaches it",
            "use sk- keys and --presence, see docs/security.md",
        )
    if state.policy is not None and nobody_signs(state.policy):
        yield Finding("authority", "problem", NOBODY, "list sk-* keys; the log cannot take this policy back")
    if state.policy_seq > 1 and state.policy is not None:
        yield Finding(
            "authority", "note", f"the policy was set after genesis, by event {state.policy_seq}", ""
        )


def _clock(ledger: Ledger) -> Iterator[Finding]:
    from ledger.clock import DAY, format_us, now_us

    head = ledger.store.head()
    behind = head.clock - now_us()
    if behind > 0:
        level = "problem" if behind > DAY else "note"
        yield Finding(
            "clock",
            level,
            f"the clock is {behind / 1e6:.1f} s behind the last event",
            "set the clock that is wrong; was it that of the last event, then `gatebook append --clock-jump` an event"
            if level == "problem"
            else "",
        )
    previous = None
    for event in ledger.store.read(max(1, head.seq - RECENT + 1)):
        if previous is not None and event.clock - previous.clock > GAP_HOURS * 3600 * 1_000_000:
            hours = (event.clock - previous.clock) // 3_600_000_000
            yield Finding(
                "clock",
                "note",
                f"{hours} h between events {previous.seq} and {event.seq} ({format_us(event.clock)})",
            )
        if event.clock_behind > 60_000_000:
            yield Finding(
                "clock", "note", f"event {event.seq}: the clock was {event.clock_behind / 1e6:.0f} s behind"
            )
        previous = event


def _views(ledger: Ledger) -> Iterator[Finding]:
    from projections.views import connect, path_of, usable

    path = path_of(ledger)
    head = ledger.store.head().seq
    if not os.path.exists(path):
        yield Finding("views", "ok", "none yet; made when first asked for")
        return
    import sqlite3

    try:
        database = connect(path)
        start = usable(ledger, database)
        database.close()
    except sqlite3.Error as error:
        yield Finding("views", "problem", f"{path}: {error}", "gatebook rebuild")
        return
    if start is None:
        yield Finding("views", "note", "made by other folds or from another history", "gatebook rebuild")
    else:
        yield Finding("views", "ok", f"at event {start - 1} of {head}")


def _refusals(ledger: Ledger) -> Iterator[Finding]:
    from projections.refusals import suppressed

    count = suppressed(ledger)
    if count:
        yield Finding(
            "refusals",
            "note",
            f"{count} refusals were counted but not written (over 100 a minute, or the ledger could not be written)",
        )


def _artifacts(ledger: Ledger) -> Iterator[Finding]:
    from ledger.event import ARTIFACTS
    from ledger.leftovers import unnamed_artifacts

    orphans = unnamed_artifacts(ledger.store)
    if orphans:
        yield Finding(
            "artifacts",
            "note",
            f"{len(orphans)} file{'' if len(orphans) == 1 else 's'} that no event names (a crash while writing)",
            f"they can be deleted from {os.path.join(ledger.folder, ARTIFACTS)}",
        )


def _files(ledger: Ledger) -> list[Finding]:
    """Shared files against the log, as the kinds of work know them."""
    from commands.shared_files import check_files

    return [Finding(*item) for item in check_files(ledger)]


def _hooks() -> Iterator[Finding]:
    from commands.hooks import ON_PATH, callable_by_name, installed

    if any(installed().values()) and not callable_by_name():
        yield Finding("hooks", "note", "they call `gatebook`, which is not on PATH here", ON_PATH)
    for agent, where in installed().items():
        yield Finding(
            "hooks",
            "ok" if where else "note",
            f"{agent}: {where or 'no Stop guard'}",
            "" if where else f"gatebook hooks install {agent}",
        )


def examine(ledger: Ledger) -> list[Finding]:
    """Every check, in order; a check that fails by itself is a finding too."""
    found: list[Finding] = []
    checks = (_permissions, _place, _database, _memory, _keys, _clock, _views, _refusals, _artifacts, _files)
    for check in checks:
        try:
            found += check(ledger)
        except (GatebookError, OSError) as error:
            found.append(Finding(check.__name__.strip("_"), "problem", str(error)))
    found += _hooks()
    if ledger.store.url:
        from commands.fleet_checks import check_fleet

        found += check_fleet(ledger)
    return found


def run(args: Args, context: Context) -> int:
    """Check, print, and exit 1 when there is a problem."""
    if args.adopt is not None:
        from commands.shared_files import adopt

        emit(adopt(context.ledger(), args.adopt, context.origin()))
        return 0
    ledger = context.ledger()
    found = examine(ledger)
    problems = [item for item in found if item.level == "problem"]
    if args.json:
        emit(
            {
                "ok": not problems,
                "ledger_id": ledger.id,
                "path": ledger.place,
                "checks": [item.as_json() for item in found],
            }
        )
    else:
        say(f"ledger {ledger.id} in {ledger.place}, {ledger.store.head().seq} events")
        signs = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
        for item in found:
            say(
                f"{signs[item.level]} {item.name:<12} {item.found}"
                + (f"\n{'':<21}-> {item.mend}" if item.mend else "")
            )
    return 1 if problems else 0


COMMANDS = {
    "doctor": Command(
        run,
        "Checks permissions, place, disk, SQLite, the table's shape, this machine's memory of the head, keys, clock, views,\n"
        "shared files and agent hooks; says how to mend each. Exit 1 when there is a problem.",
        flags=(
            Flag("--adopt", "FILE", "import a shared file that another tool changed, as an event"),
            Flag("--json", None, "one JSON object"),
        ),
        example="gatebook doctor",
    )
}
