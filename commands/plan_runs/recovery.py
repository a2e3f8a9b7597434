"""`run recover`: markers of past days are closed, so that a new day can be claimed (contract: Marker).

The event says for every item whether its result is kept or deferred; the files are written after it, the
marker removed last. Crash in between: the marker still lies there, the log says what to write, the next call does.
"""

from __future__ import annotations

import os

from commands.plan_runs import markers
from commands.plan_runs.approving import proposals_for
from commands.plan_runs.processed import read_processed
from commands.plan_runs.recording import (
    deferral,
    entry_of,
    look_at,
    write_canonical,
)
from commands.plan_runs.report import REPORT, ReportItem, render_report
from commands.plan_runs.results import RESULT, ResultRuleError
from commands.plan_runs.rooted import read_file, remove_file, write_file
from commands.plan_runs.run_folder import StalePlanError, is_day
from commands.plan_runs.run_ledger import Run, read_documents, standing
from commands.plan_runs.skills import SkillFolder
from ledger.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.context import Context
    from projections.engine import Proposal, World
    from projections.plan_run import State
    from projections.plan_run_events import Item, Recovered

NOTES = "the run of this day was not finished; recovered, not run"


def past_days(runs: str, before: str) -> list[str]:
    """The days before `before` whose folder holds a marker, oldest first."""
    days = [name for name in os.listdir(runs) if is_day(name) and name < before]
    return sorted(day for day in days if os.path.lexists(f"{runs}/{day}/{markers.MARKER}"))


def recover_past(run: Run, *, before: str) -> list[str]:
    """Recovers every past day of `run`'s runs folder; `Refused`, naming the first that must be looked at."""
    recovered, faults = recover_all(run.context, run.folder.runs, before, run.spelled, run.session)
    if faults:
        raise Refused(f"a past day's marker is kept for inspection: {faults[0]['reason']}")
    return recovered


def recover_all(
    context: Context, runs: str, before: str, now: str | None, session: str
) -> tuple[list[str], list[dict[str, str]]]:
    """(days recovered, days kept with the reason); each day in a transaction of its own."""
    recovered: list[str] = []
    faults: list[dict[str, str]] = []
    for day in past_days(runs, before):
        try:
            Recovery(Run(context, f"{runs}/{day}", now=now, session=session)).recover()
            recovered.append(day)
        except (Invalid, Refused) as error:
            faults.append({"date": day, "reason": f"{runs}/{day}: {error}"})
    return recovered, faults


class Recovery:
    """One past day."""

    __slots__ = ("documents", "run")

    def __init__(self, run: Run) -> None:
        self.run = run

    def recover(self) -> None:
        """Closes the day: every item has a valid result, ledger file and report are written, the marker is gone."""
        try:
            self.documents = read_documents(self.run.folder)
        except StalePlanError as error:
            raise Refused(f"no valid plan and snapshot: {error}") from None
        self.run.submit(self.decide, then=self.write)

    def decide(self, world: World) -> list[Proposal]:
        """`marker.recovered`, after `plan.proposed` where the log does not know the day's plan."""
        from projections.engine import Proposal

        run = self.run
        stream = run.stream(world.reader)
        state: State = world.state(stream)
        found = standing(run, world, state)
        marker = found.marker
        if marker is None or found.kind == "over":
            return []
        if found.claim is not None and found.kind != "held":
            raise Refused(f"{markers.MARKER} is not the claim that the log holds")
        if marker.plan_digest != self.documents.digest:
            raise Refused(
                f"the marker holds the plan {marker.plan_digest}, plan.json is {self.documents.digest}"
            )
        proposals: list[Proposal] = (
            [] if found.claim is not None else proposals_for(run, world, self.documents)
        )
        items: list[Item] = list(proposals[0].data.items) if proposals else state.items  # type: ignore[attr-defined]
        data = self._closed(world, state, items, marker, is_ours=found.kind in ("held", "void"))
        cause = found.claim.seq if found.claim is not None else None
        return [*proposals, Proposal(stream, "marker.recovered", data, causation=cause)]

    def _closed(
        self, world: World, state: State, items: list[Item], marker: markers.Marker, *, is_ours: bool
    ) -> Recovered:
        from blake3 import blake3

        from projections.plan_run_events import Recovered

        run = self.run
        kept: dict[str, str] = {}
        deferred: list[str] = []
        entries: dict[str, str] = {}
        shared = read_processed(run.folder.runs)
        for item in items:
            result, digest = self._standing_result(world, state, item, marker, is_ours=is_ours)
            if result is None:
                deferred.append(item.key)
                result = deferral(NOTES)
            else:
                kept[item.key] = digest
            entries[item.key] = shared.put(item.key, entry_of(run, result, world.clock))
        return Recovered(
            blake3(marker.raw).hexdigest(),
            marker.session_id,
            marker.claim_nonce or "",
            marker.plan_digest,
            kept,
            tuple(deferred),
            entries,
        )

    def _standing_result(
        self, world: World, state: State, item: Item, marker: markers.Marker, *, is_ours: bool
    ) -> tuple[dict[str, Any] | None, str]:
        """The item's valid result of that day, or None: one in an approved slot needs a preparation, ours a record too."""
        planned = self.documents.plan["items"][item.index - 1]
        is_approved = markers.is_approved(planned)
        if is_approved and (marker.prepared_keys is None or item.key not in marker.prepared_keys):
            return None, ""
        try:
            found = look_at(self.run, world, self.documents, item)
        except ResultRuleError:
            return None, ""
        if found is None:
            return None, ""
        if is_approved and is_ours:
            held = state.results.get(item.key)
            is_open = (
                state.open is not None and state.open.key == item.key and found.digest != state.open.slot
            )
            if not (
                is_open or (held is not None and held.digest == found.digest)
            ) or found.digest == state.archived.get(item.key):
                return None, ""
        return found.value, found.digest

    def write(self) -> None:
        """After the event: deferred results, ledger file, report, and the marker's removal last."""
        run = self.run
        state = run.state(run.look())
        data = state.recovered
        if data is None:
            # Over, and not by a recovery: a finalized day whose marker's removal was cut short.
            remove_file(run.folder.path, markers.MARKER)
            return
        wanted = deferral(NOTES)
        for key in data.deferred:
            if not _stands(run, key, wanted):
                write_canonical(run.folder.path, key, wanted)
        self._write_processed(state, data)
        self._write_report(state)
        remove_file(run.folder.path, markers.MARKER)

    def _write_processed(self, state: State, data: Recovered) -> None:
        run = self.run
        shared = read_processed(run.folder.runs)
        for key, digest in data.entries.items():
            if shared.digest(key) != digest:
                result = deferral(NOTES) if key in data.deferred else _read(run, key)
                shared.put(key, entry_of(run, result, state.recovered_clock))
        shared.write()

    def _write_report(self, state: State) -> None:
        run = self.run
        skills = SkillFolder(None)
        items = []
        for item in state.items:
            planned = self.documents.plan["items"][item.index - 1]
            result = _read(run, item.key)
            items.append(
                ReportItem(
                    planned,
                    self.documents.assignment(planned),
                    result,
                    state.skill(item),
                    skills.path(state.skill(item)),
                )
            )
        write_file(run.folder.path, REPORT, render_report(items, state.recovered_clock))


def _read(run: Run, key: str) -> dict[str, Any]:
    from commands.plan_runs.documents import parse_document

    name = f"{key}/{RESULT}"
    value: dict[str, Any] = parse_document(read_file(run.folder.path, name), name)
    return value


def _stands(run: Run, key: str, wanted: dict[str, Any]) -> bool:
    try:
        return _read(run, key) == wanted
    except (Invalid, Refused):
        return False


def checked_runs(path: str) -> str:
    """The real path of the runs folder that `--runs` names; `Invalid` unless it is a folder."""
    if not os.path.isdir(path):
        raise Invalid(f"--runs {path}: is not a folder")
    return os.path.realpath(path)
