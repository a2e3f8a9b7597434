"""Where a run lies: `<runs>/<date>/`, and which day it is (contract: Today is the local date)."""

from __future__ import annotations

import os

from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import date, datetime


class RunFolder:
    """One day's folder: `runs` (real path), `date` (its name), `path`."""

    __slots__ = ("date", "path", "runs")

    def __init__(self, runs: str, day: str) -> None:
        self.runs = runs
        self.date = day
        self.path = f"{runs}/{day}"


def run_folder(run_dir: str) -> RunFolder:
    """The run that `run_dir` names; `Invalid` unless it is a real folder with a date's name."""
    path = os.path.abspath(run_dir)
    runs, day = os.path.split(path)
    if parse_day(day) is None:
        raise Invalid(
            f"{run_dir}: its name {day!r} is not a date YYYY-MM-DD; give the run's folder <runs>/<date>"
        )
    if os.path.islink(path) or not os.path.isdir(path):
        raise Invalid(f"{run_dir}: is not a real folder; give the run's folder <runs>/<date>")
    return RunFolder(os.path.realpath(runs), day)


def parse_day(name: str) -> date | None:
    """The date that a folder's name is, or None."""
    from datetime import date

    if len(name) != 10 or not name.isascii():
        return None
    try:
        return date.fromisoformat(name)
    except ValueError:
        return None


def parse_now(text: str | None) -> datetime:
    """`--now` (an ISO time with a zone), or the clock; aware."""
    from datetime import UTC, datetime

    from commands.plan_runs.documents import parse_time

    if text is None:
        return datetime.now(UTC)
    moment: datetime | None = parse_time(text)
    if moment is None:
        raise Invalid(f"--now {text!r}: is not an ISO time with a zone, such as 2026-11-30T10:00:00-07:00")
    return moment


def local_day(now: datetime, *, spelled: str | None = None) -> str:
    """The local date of `now`, as a folder's name.

    A time spelled with an offset says its own zone; `Z` says that the local offset is unknown (RFC 9557,
    section 2), so there, and for the clock, the machine's zone counts.
    """
    if spelled is not None and not spelled.rstrip().upper().endswith("Z"):
        return now.date().isoformat()
    return now.astimezone().date().isoformat()
