"""`run report|deliver|finalize`: the views of a finished run, and its end (contract: Results)."""

from __future__ import annotations

from commands.plan_runs import markers
from commands.plan_runs.final_drafts import FOLDER, final_name, render_readme
from commands.plan_runs.handing_off import accept_open
from commands.plan_runs.recording import defer_unapproved, look_at, settled
from commands.plan_runs.report import REPORT, ReportItem, begins_with_urgent_block, render_report
from commands.plan_runs.results import ResultRuleError
from commands.plan_runs.rooted import MissingFileError, make_folder, read_file, remove_file, write_file
from commands.plan_runs.run_ledger import Documents, Run, read_documents
from ledger.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.plan_runs.skills import SkillFolder
    from projections.engine import Proposal, World
    from projections.plan_run import State

_DRAFT_LIMIT = 64 << 20


def valid_results(
    run: Run, world: World, documents: Documents, state: State, waiting: str = ""
) -> dict[str, dict[str, Any]]:
    """Every item's result, valid as it lies there now; `Refused` naming the first that is missing or broken.

    `waiting` is a key whose result lies there and is not recorded yet, for callers that only look.
    """
    found: dict[str, dict[str, Any]] = {}
    for item in state.items:
        if item.key not in state.results and item.key != waiting:
            raise Refused(
                f"item {item.index} ({item.key}) has no result; run `gatebook run next` or `run execute`, or `run pause`"
            )
        try:
            result = look_at(run, world, documents, item)
        except ResultRuleError as error:
            raise Refused(f"item {item.index} ({item.key}): {error}") from None
        if result is None:
            raise Refused(f"item {item.index} ({item.key}): its result.json is gone; put it back")
        found[item.key] = result.value
    return found


def report_items(
    documents: Documents, state: State, results: dict[str, dict[str, Any]], skills: SkillFolder
) -> list[ReportItem]:
    """The report's items, in plan order."""
    items = []
    for item in state.items:
        planned = documents.plan["items"][item.index - 1]
        skill = state.skill(item)
        items.append(
            ReportItem(planned, documents.assignment(planned), results[item.key], skill, skills.path(skill))
        )
    return items


def report(run: Run, skills: SkillFolder) -> dict[str, Any]:
    """Writes REPORT.md when every item has a valid result; records `run.reported`."""
    from blake3 import blake3

    from projections.engine import Proposal
    from projections.plan_run_events import Reported

    defer_unapproved(run)
    accept_open(run, missing_is="waiting")
    text = b""

    def decide(world: World) -> list[Proposal]:
        nonlocal text
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        results = valid_results(run, world, documents, state)
        text = render_report(report_items(documents, state, results, skills), run.now)
        return [
            Proposal(
                run.stream(world.reader),
                "run.reported",
                Reported(blake3(text).hexdigest()),
                content=text,
                causation=claim.seq,
            )
        ]

    def write() -> None:
        write_file(run.folder.path, REPORT, text)

    done = run.submit(decide, then=write)
    return {
        "report": f"{run.folder.path}/{REPORT}",
        "digest": blake3(text).hexdigest(),
        "seq": done.events[0].seq,
    }


def report_if_due(run: Run, skills: SkillFolder | None = None) -> None:
    """REPORT.md, written by the step that brought the last result; nothing while one is missing or when it lies there as recorded.

    A crash between the event and the file: the same step writes it, as the file is not the recorded one.
    """
    state = run.state(run.look())
    if state.missing() or not (_is_report_due(state) or _report_differs(run, state)):
        return
    from commands.plan_runs.skills import SkillFolder

    report(run, skills or SkillFolder(None))


def _report_differs(run: Run, state: State) -> bool:
    from blake3 import blake3

    try:
        raw = read_file(run.folder.path, REPORT, limit=8 << 20)
    except (Invalid, Refused):
        return True
    return bool(blake3(raw).hexdigest() != state.report)


def _is_report_due(state: State) -> bool:
    return bool(state.reported <= max((held.seq for held in state.results.values()), default=0))


def deliver(run: Run) -> dict[str, Any]:
    """Copies each ready draft to `final_drafts/` under a stable name, with a README; the sources stay."""
    from projections.engine import Proposal
    from projections.plan_run_events import Delivered

    accept_open(run, missing_is="waiting")
    copies: list[tuple[str, str, str]] = []
    contents: dict[str, bytes] = {}

    def decide(world: World) -> list[Proposal]:
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        drafts: dict[str, str] = {}
        copies.clear()
        for item in state.items:
            held = state.results.get(item.key)
            if held is None or held.status != "draft_ready":
                continue
            try:
                found = look_at(run, world, documents, item)
            except ResultRuleError as error:
                raise Refused(f"item {item.index} ({item.key}): {error}") from None
            assert found is not None
            assert found.evidence is not None
            source = found.evidence.draft_name
            name = final_name(item.key, source, [copy[0] for copy in copies])
            contents[name] = read_file(run.folder.path, source, limit=_DRAFT_LIMIT)
            copies.append((name, source, found.evidence.draft_digest))
            drafts[item.key] = found.evidence.draft_digest
        return [Proposal(run.stream(world.reader), "run.delivered", Delivered(drafts), causation=claim.seq)]

    def write() -> None:
        make_folder(run.folder.path, FOLDER)
        for name, content in contents.items():
            write_file(run.folder.path, f"{FOLDER}/{name}", content)
        write_file(run.folder.path, f"{FOLDER}/README.md", render_readme(copies))

    done = run.submit(decide, then=write)
    return {
        "folder": f"{run.folder.path}/{FOLDER}",
        "drafts": [{"name": name, "source": source, "digest": digest} for name, source, digest in copies],
        "seq": done.events[0].seq,
    }


def finalize(run: Run) -> dict[str, Any]:
    """Ends the run when everything holds: events first, the marker's removal as the last file action.

    `Refused`, the marker kept, names the first missing piece. Called again after a crash it removes what was left.
    """
    from projections.engine import Proposal
    from projections.plan_run_events import Finalized, Released

    left = _already_over(run)
    if left is not None:
        return left
    accept_open(run, missing_is="waiting")
    if _is_report_due(run.state(run.look())) and _may_write_report(run):
        report_if_due(run)
    statuses: dict[str, int] = {}
    digest = ""

    def decide(world: World) -> list[Proposal]:
        nonlocal digest
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        valid_results(run, world, documents, state)
        statuses.clear()
        for held in state.results.values():
            statuses[held.status] = statuses.get(held.status, 0) + 1
        digest = documents.digest
        text = _report_on_disk(run)
        if _is_report_due(state):
            raise Refused(f"{run.folder.path}/{REPORT}: is older than a result; run `gatebook run report`")
        stream = run.stream(world.reader)
        data = Finalized(run.session, claim.nonce, digest, text, statuses)
        return [
            Proposal(stream, "run.finalized", data, causation=state.reported or claim.seq),
            Proposal(stream, "marker.released", Released(run.session, claim.nonce), causation=claim.seq),
        ]

    def remove() -> None:
        remove_file(run.folder.path, markers.MARKER)

    done = run.submit(decide, then=remove)
    return {"finalized": True, "plan_digest": digest, "statuses": dict(statuses), "seq": done.events[0].seq}


def _may_write_report(run: Run) -> bool:
    """Whether there is no REPORT.md, or one that begins as it must and may be written anew; any other is kept and refused."""
    try:
        raw = read_file(run.folder.path, REPORT, limit=8 << 20)
    except MissingFileError:
        return True
    except (Invalid, Refused):
        return False
    return begins_with_urgent_block(raw)


def _report_on_disk(run: Run) -> str:
    from blake3 import blake3

    try:
        raw = read_file(run.folder.path, REPORT, limit=8 << 20)
    except MissingFileError:
        raise Refused(f"{run.folder.path}/{REPORT}: is missing; run `gatebook run report`") from None
    except Invalid as error:
        raise Refused(str(error)) from None
    if not begins_with_urgent_block(raw):
        raise Refused(
            f"{run.folder.path}/{REPORT}: does not begin with the urgent block; run `gatebook run report`"
        )
    return blake3(raw).hexdigest()


def _already_over(run: Run) -> dict[str, Any] | None:
    """The end that this session has recorded before; a marker file that a crash left behind is removed now."""
    from commands.plan_runs.run_ledger import standing

    world = run.look()
    state = run.state(world)
    found = standing(run, world, state)
    if not state.finalized or found.claim is not None or found.kind not in ("over", "free"):
        return None
    if found.kind == "over":
        remove_file(run.folder.path, markers.MARKER)
    elif state.finalized_by != run.session:
        raise Refused(
            f"{run.folder.path}: was finalized by session {state.finalized_by} (event {state.finalized}); nobody holds it"
        )
    statuses: dict[str, int] = {}
    for held in state.results.values():
        statuses[held.status] = statuses.get(held.status, 0) + 1
    return {"finalized": True, "plan_digest": state.current, "statuses": statuses, "seq": state.finalized}
