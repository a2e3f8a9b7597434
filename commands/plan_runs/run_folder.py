"""Where a run lies: `<runs>/<date>/`, and which day it is (contract: Today is the local date)."""

from __future__ import annotations

import os

from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.plan_runs.run_ledger import Documents

NEXT_STEP = "run canvas-scan again"


class StalePlanError(Invalid):
    """A plan or snapshot that is missing, stale, malformed or inconsistent; only a new scan makes a valid one."""

    next_step = NEXT_STEP


class RunFolder:
    """One day's folder: `runs` (real path), `date` (its name), `path`; `documents` as last read and found valid."""

    __slots__ = ("date", "documents", "path", "runs")

    def __init__(self, runs: str, day: str) -> None:
        self.runs = runs
        self.date = day
        self.path = f"{runs}/{day}"
        self.documents: Documents | None = None


def run_folder(run_dir: str) -> RunFolder:
    """The run that `run_dir` names; `Invalid` unless it is a real folder with a date's name."""
    path = os.path.abspath(run_dir)
    runs, day = os.path.split(path)
    if not is_day(day):
        raise Invalid(
            f"{run_dir}: its name {day!r} is not a date YYYY-MM-DD; give the run's folder <runs>/<date>"
        )
    if os.path.islink(path) or not os.path.isdir(path):
        raise StalePlanError(f"{run_dir}: is not a real folder; give the run's folder <runs>/<date>")
    return RunFolder(os.path.realpath(runs), day)


def is_day(name: str) -> bool:
    """Whether a folder's name is a date `YYYY-MM-DD`."""
    from projections.times import parse_date

    try:
        parse_date(name)
    except Invalid:
        return False
    return True


def parse_now(text: str | None) -> int:
    """`--now` (a time with a zone), or the clock, in us since 1970."""
    from ledger.clock import now_us
    from projections.times import parse_time

    return now_us() if text is None else parse_time(text, "--now")


def local_day(now: int, *, spelled: str | None = None) -> str:
    """The local date of `now`, as a folder's name.

    A time spelled with an offset says its own zone; `Z` and `-00:00` say that the local offset is unknown
    (RFC 9557, section 2), so there, and for the clock, the machine's zone counts.
    """
    if spelled is not None and not spelled.rstrip().upper().endswith(("Z", "-00:00", "-0000")):
        return spelled[:10] if spelled[4:5] == "-" else f"{spelled[:4]}-{spelled[4:6]}-{spelled[6:8]}"
    import time

    here = time.localtime(now // 1_000_000)
    return f"{here.tm_year:04d}-{here.tm_mon:02d}-{here.tm_mday:02d}"
