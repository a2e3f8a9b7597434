"""`route …`: candidates and provider health, drop-in for the script that the dispatch seed names.

Contract page dispatch, `route` and Circuits: the same flags, the same compact JSON, exit 0, 2 and 4.
"""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.dispatch.health import HealthFile, adopt, at_given, check_state, circuits_in, moment
from commands.flags import Args, Command, Flag
from ledger.errors import GatebookError, Invalid, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commands.dispatch.routing import Selection
    from projections.cooldowns import Circuit
    from projections.engine import Proposal, World

REASONS = ("quota", "authentication", "rate_limit", "provider_unavailable")
_STATE = Flag(
    "--state", "FILE", "the shared health file (default: $XDG_STATE_HOME/gatebook/provider-health.json)"
)
_NOW = Flag("--now", "T", "judge as of this time (RFC 3339 with a zone; default: the clock)")
_ENDPOINT = (
    Flag("--provider", "P", "the provider of the endpoint", required=True),
    Flag("--executor", "E", "the executor of the endpoint: native, or a via name", required=True),
)
_INVENTORY = (
    Flag("--rubric", "F", "the rubric (YAML, TOML or JSON)", required=True),
    Flag("--native-provider", "P", "whose models run natively here; empty: nobody's", required=True),
    Flag(
        "--executors",
        "LIST",
        "callable executors: a JSON list, or comma separated, may be empty",
        required=True,
    ),
    Flag("--authoring-providers", "LIST", "who wrote the target (for route independent)"),
)


def _blocked(error: GatebookError) -> int:
    reply = getattr(error, "reply", None) or {"status": "blocked", "blockers": [str(error)]}
    emit(reply)
    return 4


def _blockers(work: Callable[[], object]) -> int:
    """Do `work`; 0, or 4 with the blocked reply printed, whatever went wrong with a file or a ledger."""
    try:
        work()
    except Usage:
        raise
    except GatebookError as error:
        return _blocked(error)
    except OSError as error:
        return _blocked(Refused(f"{os.fsdecode(error.filename or '')}: {error.strerror or error}"))
    return 0


def _part(value: str, name: str) -> str:
    from commands.dispatch.rubric import check_endpoint_part

    try:
        return check_endpoint_part(value, name)
    except Invalid as error:
        raise Usage(str(error)) from None


def in_health(
    state: str | None,
    context: Context,
    at: int,
    decide: Callable[[World | None, dict[str, Circuit]], Sequence[Proposal]],
) -> None:
    """Run `decide` over the circuits of the file `state` (None: the user's) as they stand, record what it proposes, and bring the file up to it.

    `decide` gets the World (None where no ledger exists yet) and the circuits by endpoint.
    What the file stated is adopted, and a file that lags or is gone is rendered again, whatever `decide` proposes.

    Raises:
        Refused: a malformed state file, or what `decide` raises.
    """
    file = HealthFile(state, context)
    try:
        ledger = file.ledger(create=False)
        if ledger is None:
            stated = file.read()
            if not stated and not decide(None, {}):
                return  # nothing to record: no ledger, no file
            ledger = file.ledger(create=True)
            assert ledger is not None
        _recorded(file, context, at, decide)
    finally:
        file.close()


def _recorded(
    file: HealthFile,
    context: Context,
    at: int,
    decide: Callable[[World | None, dict[str, Circuit]], Sequence[Proposal]],
) -> None:
    from projections.engine import World, submit

    ledger = file.ledger(create=True)
    assert ledger is not None
    changed = False

    def whole(world: World) -> list[Proposal]:
        nonlocal changed
        stated, known = file.read(), circuits_in(world)
        imports = adopt(file, stated, known, world, at)
        proposals = [*imports, *decide(world, (stated or {}) if imports else known)]
        changed = bool(proposals) or (stated or {}) != known  # the latter: it lags, or is gone
        return proposals

    def view() -> None:
        # Under the lock still: the file's order is the events' order. Crash here: the next call writes it.
        if changed:
            file.write(circuits_in(World(ledger.store.reader())))

    submit(ledger, context.origin(), whole, then=view)


def opened(
    world: World | None,
    circuits: dict[str, Circuit],
    endpoint: str,
    reason: str,
    at: int,
    retry_at: int | None,
) -> tuple[int, int, list[Proposal]]:
    """(failure count, unavailable until in us, the proposal that opens `endpoint`'s circuit) for a failure at `at`."""
    from projections.engine import Proposal  # before the circuit, so that msgspec comes the short way

    # isort: split
    from projections.circuit import Opened
    from projections.cooldowns import next_opening
    from projections.times import print_time, whole_seconds

    # As the event states it: a fraction that is judged here and cut off there is another cooldown to admission.
    retry_at = None if retry_at is None else whole_seconds(retry_at)
    count, until = next_opening(circuits.get(endpoint), reason, at, retry_at)
    provider, _, executor = endpoint.partition("|")
    given = world is not None and at_given(at, world.clock)
    data = Opened(
        provider,
        executor,
        reason,
        print_time(at),
        count,
        print_time(until),
        "" if retry_at is None else print_time(retry_at),
        given,
    )
    return count, until, [Proposal(f"circuit/{endpoint}", "circuit.opened", data)]


def _retry_at(args: Args) -> int | None:
    from projections.times import parse_time

    if not args.retry_at:  # empty: the script took `--retry-at "$RETRY_AT"` so
        return None
    if args.reason != "quota":
        raise Usage("--retry-at goes only with --reason quota")
    try:
        return parse_time(args.retry_at, "--retry-at")
    except Invalid as error:
        raise Usage(str(error)) from None


def _endpoint(args: Args) -> str:
    provider, executor = _part(args.provider, "--provider"), _part(args.executor, "--executor")
    # `current` is how a selection names the native runtime that is already the candidate.
    endpoint = f"{provider}|{'native' if executor == 'current' else executor}"
    from ledger.event import check_names

    try:
        check_names(f"circuit/{endpoint}", "circuit.opened")
    except Invalid as error:
        raise Usage(f"--provider and --executor: {error}") from None
    return endpoint


def record_failure(args: Args, context: Context) -> int:
    """`route record-failure`: a typed outage opens the endpoint's circuit, or reopens it with the next step."""
    endpoint, at, retry_at = _endpoint(args), moment(args.now), _retry_at(args)
    outcome: tuple[int, int] = (0, 0)

    def decide(world: World | None, circuits: dict[str, Circuit]) -> Sequence[Proposal]:
        nonlocal outcome
        count, until, proposals = opened(world, circuits, endpoint, args.reason, at, retry_at)
        outcome = (count, until)
        return proposals

    blocked = _blockers(lambda: in_health(args.state, context, at, decide))
    if blocked:
        return blocked
    from projections.times import print_time

    emit(
        {
            "status": "recorded",
            "provider": args.provider,
            "executor": args.executor,
            "reason": args.reason,
            "failure_count": outcome[0],
            "unavailable_until": print_time(outcome[1]),
        }
    )
    return 0


def closed(world: World | None, endpoint: str, at: int) -> list[Proposal]:
    """The proposal that closes `endpoint`'s circuit at `at`."""
    from projections.circuit import Closed
    from projections.engine import Proposal
    from projections.times import print_time

    provider, _, executor = endpoint.partition("|")
    given = world is not None and at_given(at, world.clock)
    return [
        Proposal(f"circuit/{endpoint}", "circuit.closed", Closed(provider, executor, print_time(at), given))
    ]


def record_success(args: Args, context: Context) -> int:
    """`route record-success`: the endpoint answered; its circuit closes, whatever it was."""
    endpoint, at = _endpoint(args), moment(args.now)

    def decide(world: World | None, circuits: dict[str, Circuit]) -> Sequence[Proposal]:
        return closed(world, endpoint, at) if endpoint in circuits else []

    blocked = _blockers(lambda: in_health(args.state, context, at, decide))
    if blocked:
        return blocked
    emit({"status": "cleared", "provider": args.provider, "executor": args.executor})
    return 0


def reset(args: Args, context: Context) -> int:
    """`route reset`: every circuit of the state file closes; the log keeps that they were there."""
    at, count = moment(args.now), 0

    def decide(world: World | None, circuits: dict[str, Circuit]) -> Sequence[Proposal]:
        nonlocal count
        count = len(circuits)
        return [proposal for endpoint in sorted(circuits) for proposal in closed(world, endpoint, at)]

    blocked = _blockers(lambda: in_health(args.state, context, at, decide))
    if blocked:
        return blocked
    emit({"status": "reset", "circuits": count})
    return 0


def select_once(
    args: Args,
    context: Context,
    executors: Sequence[str],
    authors: Sequence[str],
    attempted: Sequence[str],
    at: int,
) -> Selection:
    """One selection, with its probe claimed in the same write transaction.

    Raises:
        Blocked: no candidate (its `reply` is the answer). Refused: a malformed state file. Invalid: a malformed rubric.
    """
    from commands.dispatch.routing import select as choose
    from commands.dispatch.rubric import load_rubric

    rubric = load_rubric(args.rubric)

    def judge(circuits: dict[str, Circuit]) -> Selection:
        return choose(
            rubric, args.route, args.native_provider, executors, authoring_providers=authors, attempted=attempted,
            active_candidate=args.active_candidate, circuits=circuits, now=at,
        )  # fmt: skip

    return select_in(args.state, context, at, judge)


def select_in(
    state: str | None,
    context: Context,
    at: int,
    judge: Callable[[dict[str, Circuit]], Selection],
    correlation: str | None = None,
) -> Selection:
    """What `judge` chooses from the circuits as they stand, its probe claimed in the same write transaction.

    A refusal of `judge` claims nothing, and is raised after what the file stated has been adopted.
    """
    outcome: Selection | GatebookError | None = None

    def decide(world: World | None, circuits: dict[str, Circuit]) -> Sequence[Proposal]:
        nonlocal outcome
        try:
            outcome = chosen = judge(circuits)
        except GatebookError as error:
            outcome = error
            return []
        if not chosen.probe:
            return []
        from projections.circuit import Probed
        from projections.engine import Proposal
        from projections.times import print_time

        provider, _, executor = chosen.endpoint.partition("|")
        given = world is not None and at_given(at, world.clock)
        data = Probed(provider, executor, print_time(at), given)
        return [Proposal(f"circuit/{chosen.endpoint}", "circuit.probed", data, correlation=correlation)]

    in_health(state, context, at, decide)
    if isinstance(outcome, GatebookError):
        raise outcome
    assert outcome is not None
    return outcome


def select(args: Args, context: Context) -> int:
    """`route select`: the first candidate of the route that may be tried now."""
    from commands.dispatch.routing import parse_attempted, parse_list

    executors = parse_list(args.executors, "--executors")
    authors = parse_list(args.authoring_providers or "", "--authoring-providers")
    attempted = parse_attempted(args.attempted or "")
    at = moment(args.now)
    check_state(args.state)
    return _blockers(lambda: emit(select_once(args, context, executors, authors, attempted, at).reply()))


def validate(args: Args, _context: Context) -> int:
    """`route validate`: every candidate of every route is reachable by itself."""
    from commands.dispatch.routing import parse_list
    from commands.dispatch.routing import validate as check
    from commands.dispatch.rubric import load_rubric

    executors = parse_list(args.executors, "--executors")
    authors = parse_list(args.authoring_providers or "", "--authoring-providers")
    try:
        check(load_rubric(args.rubric), args.native_provider, executors, authoring_providers=authors)
    except (Invalid, Refused) as error:
        return _blocked(error)
    emit({"status": "valid"})
    return 0


COMMANDS = {
    "route validate": Command(
        validate,
        "Checks that every primary and fallback of the rubric can be reached with these executors.\n"
        'Prints {"status":"valid"}, or {"status":"blocked","blockers":[…]} with exit 4.',
        flags=_INVENTORY,
        example="gatebook route validate --rubric rubric.yaml --native-provider anthropic --executors codex",
        json_errors=True,
    ),
    "route select": Command(
        select,
        "Chooses the candidate of a route: the primary, or along the chain past open circuits and missing executors.\n"
        "After a cooldown exactly one caller gets the probe. Exit 4: blocked, with the reasons.",
        flags=(
            *_INVENTORY[:1],
            Flag("--route", "R", "a key of the rubric's routing", required=True),
            *_INVENTORY[1:],
            Flag(
                "--attempted", "LIST", "candidates that this request dispatched and recorded as unavailable"
            ),
            Flag("--active-candidate", "REF", "the model@effort that is asking"),
            _STATE,
            _NOW,
        ),
        example="gatebook route select --rubric rubric.yaml --route default --native-provider anthropic --executors codex",
        json_errors=True,
    ),
    "route record-failure": Command(
        record_failure,
        "Records a typed outage of an endpoint: its circuit opens for 24 h (quota, authentication) or by steps of\n"
        "15 min, 1 h, 6 h, 24 h. Prints the count and until when.",
        flags=(
            *_ENDPOINT,
            Flag("--reason", "REASON", "the typed outage", required=True, choices=REASONS),
            Flag("--retry-at", "T", "when the quota is back (only with quota, used when in the future)"),
            _STATE,
            _NOW,
        ),
        example="gatebook route record-failure --provider anthropic --executor native --reason quota",
        json_errors=True,
    ),
    "route record-success": Command(
        record_success,
        "Records that an endpoint answered: its circuit closes, whatever it was.",
        flags=(*_ENDPOINT, _STATE, _NOW),
        example="gatebook route record-success --provider anthropic --executor native",
        json_errors=True,
    ),
    "route reset": Command(
        reset,
        "Forgets every circuit of the state file: each is closed on record, and the file is written again.",
        flags=(_STATE, _NOW),
        example="gatebook route reset",
        json_errors=True,
    ),
}
