"""`plan record|parse|approve|statement`: a person's words become decisions in the log, then in plan.json."""

from __future__ import annotations

from commands.plan_runs import plans
from commands.plan_runs.run_ledger import (
    Documents,
    Run,
    agreement,
    completed,
    decided_plan,
    proposed,
    read_documents,
    require_unchanged,
    standing,
)
from ledger.errors import Conflict, GatebookError, Invalid
from projections.approval_grammar import apply_approval_to_plan, parse_approval

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.plan_runs.routes import Resolver
    from commands.plan_runs.skills import SkillFolder
    from projections.engine import Proposal, World
    from projections.plan_run import State
    from projections.plan_run_events import Approved


def parse_text(
    documents: Documents, text: str, skills: SkillFolder, resolver: Resolver | None
) -> dict[str, Any]:
    """What the words decide about this plan (see `projections.approval_grammar`)."""

    def resolve(index: int, name: str) -> str:
        assert resolver is not None
        return resolver.of_swap(name, documents.assignment(documents.plan["items"][index - 1]))

    return parse_approval(text, documents.plan, skills=skills, resolver=None if resolver is None else resolve)


def proposals_for(run: Run, world: World, documents: Documents) -> list[Proposal]:
    """`plan.proposed` where the log has another plan than the run's folder; nothing where they agree."""
    from projections.engine import Proposal

    require_unchanged(run.folder, documents)
    stream = run.stream(world.reader)
    state: State = world.state(stream)
    if agreement(state, documents.digest) != "other":
        return []
    data = proposed(documents, run.folder)
    return [Proposal(stream, "plan.proposed", data, content=documents.raw)]


def record_plan(run: Run, documents: Documents) -> tuple[int | None, bool]:
    """Records the plan if needed; returns the seq of the standing `plan.proposed` and whether it is new."""
    done = run.submit(lambda world: proposals_for(run, world, documents))
    if done.events:
        return done.events[0].seq, True
    return run.state(run.look()).proposed, False


class HeldRunError(Conflict):
    """An approval while a marker lies on the run: recorded as `admission.refused` by the command."""


def refuse_held(run: Run, world: World, state: State) -> None:
    """Raise `HeldRunError` while any marker, ours or another tool's, lies on the run."""
    found = standing(run, world, state)
    if found.kind in ("held", "foreign"):
        assert found.marker is not None
        raise HeldRunError(
            f"{run.folder.path}: session {found.marker.session_id} holds the run since {found.marker.fields['created_at']}; no new approval until it is over"
        )
    if found.kind == "missing":
        assert found.claim is not None
        raise HeldRunError(
            f"{run.folder.path}: session {found.claim.session_id} holds the run since {found.claim.created_at}; no new approval until it is over"
        )


def approved(
    run: Run, documents: Documents, text: str, approval: dict[str, Any], *, nonce: str, expires_at: str = ""
) -> Approved:
    """The data of `plan.approved`, unsigned."""
    from blake3 import blake3

    from projections.plan_run_events import Approved

    after = plans.plan_digest(apply_approval_to_plan(documents.plan, approval))
    return Approved(
        run.session,
        approval["decisions"],
        documents.digest,
        after,
        nonce,
        blake3(nonce.encode() + text.encode()).hexdigest(),
        expires_at,
    )


def refuse_approval(run: Run, error: GatebookError) -> None:
    """Records `admission.refused` for an approval that was refused before any admission.

    Its digest is of run and session, never of the words: a digest of `all` is guessed.
    """
    from projections.refusals import record_refusal

    held = isinstance(error, HeldRunError)
    try:
        stream = run.stream(run.look().reader)
        record_refusal(
            run.ledger,
            run.context.origin(),
            type="plan.approved",
            stream=stream,
            reason="a plan is approved while a marker is held" if held else "the approval was refused",
            refused=f"{stream} {run.session}".encode("utf-8", "surrogateescape"),
            correlation=stream,
        )
    except GatebookError:
        return


def record_approval(run: Run, documents: Documents, text: str, data: Approved, stream: str) -> int:
    """Appends `plan.approved` (and `plan.proposed` before it, if needed), then writes the decisions; returns its seq.

    `stream` is the one that a signature is for: where a new runs folder got another number since, a `Conflict`.
    Crash between the two: the next command finds the digest "before" and writes them (DESIGN, Views).
    """
    from projections.engine import Proposal

    def decide(world: World) -> list[Proposal]:
        here = run.stream(world.reader)
        if data.signature and here != stream:
            raise Conflict(f"{run.folder.runs}: another runs folder became known meanwhile; approve again")
        refuse_held(run, world, world.state(here))
        first = proposals_for(run, world, documents)
        cause = world.reader.head().seq + 1 if first else run.state(world).proposed
        return [*first, Proposal(here, "plan.approved", data, content=text.encode(), causation=cause)]

    def write() -> None:
        state = run.state(run.look())
        assert state.approval is not None
        plan = plans.read_plan(run.folder.path)
        if plans.plan_digest(plan) == state.approval.before:
            plans.write_plan(run.folder.path, decided_plan(plan, state.approval))

    return run.submit(decide, then=write).events[-1].seq


def read_text(given: str) -> str:
    """The approval's words: the flag's value, or stdin for `-`; `Invalid` when they are not UTF-8."""
    from ledger.event import MAX_CONTENT

    if given == "-":
        from commands.append import read_input

        raw = read_input("-", "--text")
    else:
        raw = given.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_CONTENT:
        raise Invalid(f"--text: is larger than {MAX_CONTENT} bytes; an approval is a line")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"--text: is not UTF-8 at byte {error.start}") from None


def prepared_documents(run: Run, resolver: Resolver | None) -> Documents:
    """Today's documents, current, an earlier approval completed; what every approval starts from."""
    run.require_today()
    documents = read_documents(run.folder, now=run.now, current=True, resolver=resolver)
    return completed(run, documents)
