"""`plan parse|record|approve|statement` (contract page plan-runs, Approval grammar and Signed approval)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from commands.plan_runs.run_folder import NEXT_STEP, StalePlanError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from commands.plan_runs.routes import Resolver
    from commands.plan_runs.run_ledger import Documents, Run

RUN_DIR = Flag("--run-dir", "DIR", "the run's folder <runs>/<date>", required=True)
NOW = Flag("--now", "TIME", "the time to judge by, with a zone (for tests; default: the clock)")
SESSION = Flag("--session", "ID", "the agent session, as its hooks report it (default: CODEX_THREAD_ID)")
SKILLS = Flag("--skills", "DIR", "the folder that holds <name>/SKILL.md")
ROUTES = Flag("--routes", "FILE", "routes.toml, or the same as YAML")
TEXT = Flag("--text", "TEXT|-", "the person's words, or - for stdin", required=True)


def stale_is_said(run: Callable[[Args, Context], int]) -> Callable[[Args, Context], int]:
    """The command, with a stale or malformed plan told as the contract's document beside the message."""

    def wrapped(args: Args, context: Context) -> int:
        try:
            return run(args, context)
        except StalePlanError as error:
            emit({"error": str(error), "next_step": NEXT_STEP})
            raise

    return wrapped


def resolver_of(args: Args) -> Resolver | None:
    """The route resolver of `--routes`, or None."""
    if args.routes is None:
        return None
    from commands.plan_runs.routes import Resolver, load_routes

    return Resolver(load_routes(args.routes))


def _skills(args: Args) -> Any:
    from commands.plan_runs.skills import SkillFolder

    return SkillFolder(args.skills)


def parse(args: Args, context: Context) -> int:
    """`plan parse`: says what the words decide; needs no ledger, and records the plan where one is found."""
    from commands.plan_runs.approving import parse_text, read_text, record_plan
    from commands.plan_runs.run_folder import parse_now, run_folder
    from commands.plan_runs.run_ledger import Run, read_documents, require_today

    text = read_text(args.text)
    now = parse_now(args.now)
    folder = run_folder(args.run_dir)
    require_today(folder, now, args.now)
    resolver = resolver_of(args)
    documents = read_documents(folder, now=now, current=True, resolver=resolver)
    approval = parse_text(documents, text, _skills(args), resolver)
    if approval["kind"] != "clarify" and _has_ledger(context):
        run = Run(context, args.run_dir, now=args.now)
        if not _is_held(run):
            record_plan(run, documents)
    emit(approval)
    return 2 if approval["kind"] == "clarify" else 0


def _has_ledger(context: Context) -> bool:
    """Whether there is a ledger to record in; one that was found and is not trusted is none, and that is said."""
    from ledger.errors import Refused
    from ledger.notice import tell

    try:
        return context.ledger_if_any() is not None
    except Refused as error:
        tell(f"the plan was not recorded: {error}")
        return False


def _is_held(run: Run) -> bool:
    state = run.state(run.look())
    return state.claim is not None


def record(args: Args, context: Context) -> int:
    """`plan record`: the plan of the run's folder becomes the current plan in the log."""
    from commands.plan_runs.approving import record_plan, refuse_held
    from commands.plan_runs.run_ledger import Run, agreement, completed, read_documents

    run = Run(context, args.run_dir, now=args.now)
    documents = completed(run, read_documents(run.folder))
    world = run.look()
    state = run.state(world)
    if agreement(state, documents.digest) != "current":
        refuse_held(run, world, state)
    seq, is_new = record_plan(run, documents)
    emit(
        {
            "seq": seq,
            "plan_digest": documents.digest,
            "recorded": is_new,
            "items": len(documents.plan["items"]),
        }
    )
    return 0


def approve(args: Args, context: Context) -> int:
    """`plan approve`: a refusal that nothing else has recorded is recorded as `admission.refused`."""
    from commands.authority.signing import RecordedError, one_way
    from commands.plan_runs.approving import HeldRunError, read_text, refuse_approval
    from commands.plan_runs.run_ledger import Run
    from ledger.errors import Refused
    from projections.fact import Unlawful

    one_way(args, sign=args.sign)
    text = read_text(args.text)
    run = Run(context, args.run_dir, now=args.now)
    try:
        return _approve(args, run, text)
    except (Unlawful, RecordedError):
        raise
    except (Refused, HeldRunError) as error:
        refuse_approval(run, error)
        raise


def _approve(args: Args, run: Run, text: str) -> int:
    """Parses, records `plan.approved`, then writes every item's decision into plan.json."""
    from commands.plan_runs.approving import parse_text, prepared_documents, record_approval, refuse_held
    from commands.plan_runs.owner import current_authorization_session

    run.session = current_authorization_session(args.session)
    resolver = resolver_of(args)
    documents = prepared_documents(run, resolver)
    world = run.look()
    stream = run.stream(world.reader)
    refuse_held(run, world, run.state(world))
    approval = parse_text(documents, text, _skills(args), resolver)
    if approval["kind"] == "clarify":
        emit(approval)
        return 2
    data = _approved(args, run, documents, text, approval, stream)
    seq = record_approval(run, documents, text, data, stream)
    emit(
        {
            **approval,
            "seq": seq,
            "session_id": run.session,
            "digest_before": data.digest_before,
            "plan_digest": data.digest_after,
            "signed_by": data.principal or None,
        }
    )
    return 0


def _approved(
    args: Args, run: Run, documents: Documents, text: str, approval: dict[str, Any], stream: str
) -> Any:
    """The event's data: signed where asked for; refused and recorded where the policy wants what is missing."""
    from commands.plan_runs.approving import approved

    if not args.sign and args.statement is None:
        import os

        return approved(run, documents, text, approval, nonce=os.urandom(16).hex())
    from commands.authority.signing import signed_plan_approval

    return signed_plan_approval(args, run, documents, text, approval, stream)


def statement(args: Args, context: Context) -> int:
    """`plan statement`: writes the exact bytes that a person signs, on this machine or another."""
    from commands.authority.signing import new_fields, write_statement
    from commands.plan_runs.approving import approved, parse_text, prepared_documents, read_text
    from commands.plan_runs.owner import current_authorization_session
    from commands.plan_runs.run_ledger import Run
    from projections.authority import plan_statement

    text = read_text(args.text)
    run = Run(context, args.run_dir, now=args.now, session=current_authorization_session(args.session))
    resolver = resolver_of(args)
    documents = prepared_documents(run, resolver)
    approval = parse_text(documents, text, _skills(args), resolver)
    if approval["kind"] == "clarify":
        emit(approval)
        return 2
    data = approved(run, documents, text, approval, **new_fields())
    signed = plan_statement(run.ledger.id, run.stream(run.look().reader), data)
    write_statement(args.out, signed, data.expires_at)
    emit(
        {
            "statement": args.out,
            "bytes": len(signed),
            "decisions": approval["decisions"],
            "expires_at": data.expires_at,
        }
    )
    return 0


COMMANDS = {
    "plan parse": Command(
        stale_is_said(parse),
        "Says what a person's words decide about today's plan; writes nothing into it.\n"
        "Exit 0 apply or cancel, 2 the words need a question (kind clarify), 1 the plan is invalid.",
        flags=(RUN_DIR, SKILLS, ROUTES, NOW, TEXT),
        example="gatebook plan parse --run-dir runs/2026-11-30 --skills skills --text 'approve 1,3'",
    ),
    "plan record": Command(
        stale_is_said(record),
        "Records the plan of the run's folder as the current plan; a changed plan voids its approval.",
        flags=(RUN_DIR, NOW),
        example="gatebook plan record --run-dir runs/2026-11-30",
    ),
    "plan approve": Command(
        stale_is_said(approve),
        "Parses a person's words, records plan.approved, then sets every item's decision in plan.json.\n"
        "Exit 2: the words need a question; 4: a signature is missing or wrong; 5: somebody holds the run.",
        flags=(
            RUN_DIR,
            SKILLS,
            ROUTES,
            NOW,
            SESSION,
            TEXT,
            Flag("--sign", None, "sign with ssh-keygen, as the ledger's authority policy asks"),
            Flag("--key", "FILE", "the private key (or a public one whose key the agent holds) to sign with"),
            Flag("--statement", "FILE", "the bytes that were signed elsewhere"),
            Flag("--signature", "FILE", "their signature, as ssh-keygen -Y sign writes it"),
        ),
        example="gatebook plan approve --run-dir runs/2026-11-30 --text 'all; defer 2'",
    ),
    "plan statement": Command(
        stale_is_said(statement),
        "Writes the exact bytes to sign for an approval, for signing on another machine:\n"
        "ssh-keygen -Y sign -n gatebook -f KEY FILE, then plan approve --statement FILE --signature FILE.sig.",
        flags=(
            RUN_DIR,
            SKILLS,
            ROUTES,
            NOW,
            SESSION,
            TEXT,
            Flag("--out", "FILE", "where the statement goes", required=True),
        ),
        example="gatebook plan statement --run-dir runs/2026-11-30 --text all --out approval.json",
    ),
}
