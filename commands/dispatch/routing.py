"""Which candidate of a route does the work now (contract page dispatch, `route`): pure, over rubric and circuits."""

from __future__ import annotations

from commands.dispatch.rubric import check_independent, split_reference
from ledger.errors import Invalid, Refused, Usage
from projections.cooldowns import is_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from commands.dispatch.rubric import Row, Rubric
    from projections.cooldowns import Circuit

NATIVE = "native"
CURRENT = "current"
MISSING = "missing_executor"
_NOT_JSON = object()


class Blocked(Refused):
    """No candidate may do the work: `reply` is the whole JSON answer, exit 4."""

    def __init__(self, blocker: str, **more: list[str]) -> None:
        super().__init__(blocker)
        self.reply: dict[str, object] = {"status": "blocked", "blockers": [blocker], **more}


class Selection:
    """The candidate chosen, how it runs, and what was passed over before it."""

    __slots__ = ("endpoint", "executor", "probe", "resolution", "row", "skips")

    def __init__(
        self,
        row: Row,
        executor: str,
        endpoint: str,
        resolution: str,
        skips: list[tuple[str, str]],
        *,
        probe: bool,
    ) -> None:
        self.row = row
        self.executor = executor
        self.endpoint = endpoint
        self.resolution = resolution
        self.skips = skips
        self.probe = probe

    @property
    def reason(self) -> str | None:
        """Why the first candidate passed over was passed over, None when none was."""
        return self.skips[0][1] if self.skips else None

    @property
    def skipped(self) -> list[str]:
        """The candidates passed over, in chain order."""
        return [reference for reference, _ in self.skips]

    def reply(self) -> dict[str, object]:
        """The JSON answer of `route select`, in the contract's order of fields."""
        answer: dict[str, object] = {
            "status": "resolved" if self.resolution == "primary" else "fallback",
            "resolution": self.resolution,
            "candidate": self.row.reference,
            "model": self.row.name,
            "effort": self.row.effort,
            "provider": self.row.provider,
            "executor": self.executor,
            "dispatch": "direct" if self.executor == CURRENT else "delegated",
        }
        if self.skips:
            answer["reason"] = self.reason
            answer["skipped"] = self.skipped
        if self.probe:
            answer["probe"] = True
        return answer


def _json_value(text: str) -> object:
    """`text` as JSON; the scanner is asked only where it could be (a name is the usual case)."""
    if text[0] not in '[{"-0123456789' and text not in ("null", "true", "false"):
        return _NOT_JSON
    from ledger.canonical import parse

    try:
        return parse(text)
    except Invalid:
        return _NOT_JSON


def parse_list(text: str, flag: str) -> list[str]:
    """A LIST argument: a JSON list of text, or comma separated; Usage when it is neither, naming `flag`."""
    text = text.strip()
    if text in ("", "[]"):
        return []
    value = _json_value(text)
    if value is _NOT_JSON and text[0] not in '[{"':
        return [name for item in text.split(",") if (name := item.strip())]
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise Usage(f"{flag} must be a JSON list of text that is not empty, or names separated by commas")
    return value


def parse_attempted(text: str, flag: str = "--attempted") -> list[str]:
    """A LIST of `model@effort`; Usage when an entry is not that."""
    attempted = parse_list(text, flag)
    for reference in attempted:
        try:
            split_reference(reference, flag)
        except Invalid as error:
            raise Usage(str(error)) from None
    return attempted


def executor_of(row: Row, native_provider: str) -> str | None:
    """The executor whose circuit `row` runs under: `native` for the native provider, else its `via`."""
    return NATIVE if row.provider == native_provider else row.via


def _reachable(row: Row, native_provider: str, executors: Collection[str]) -> bool:
    return row.provider == native_provider or row.via in executors


def _check_active(rubric: Rubric, active: str | None, native_provider: str) -> None:
    if active is None:
        return
    try:
        split_reference(active, "the active candidate")
    except Invalid as error:
        raise Blocked(str(error)) from None
    row = rubric.rows.get(active)
    if row is not None and row.provider != native_provider:
        raise Blocked(
            f"the active candidate {active} is of provider {row.provider}, not of the native one, {native_provider!r}"
        )


def _check_attempted(
    chain: Sequence[Row],
    native_provider: str,
    attempted: Sequence[str],
    circuits: Mapping[str, Circuit],
    route: str,
) -> dict[str, str]:
    """The reason of each attempted candidate's circuit; Blocked where one has none."""
    rows = {row.reference: row for row in chain}
    reasons = {}
    for reference in attempted:
        row = rows.get(reference)
        if row is None:
            raise Blocked(f"attempted candidate {reference} is not a candidate of route {route!r}")
        circuit = circuits.get(f"{row.provider}|{executor_of(row, native_provider)}")
        if circuit is None:
            raise Blocked(f"attempted candidate {reference} has no recorded availability failure")
        reasons[reference] = circuit.reason
    return reasons


def _check_authors(rubric: Rubric, authoring_providers: Collection[str]) -> None:
    try:
        check_independent(rubric.chains, authoring_providers)
    except Invalid as error:
        raise Blocked(str(error)) from None


def select(
    rubric: Rubric,
    route: str,
    native_provider: str,
    executors: Collection[str],
    *,
    authoring_providers: Collection[str] = (),
    attempted: Sequence[str] = (),
    active_candidate: str | None = None,
    barred: Mapping[str, str] | None = None,
    circuits: Mapping[str, Circuit],
    now: int,
) -> Selection:
    """The first candidate of `route` that may be tried at `now`, judged by `circuits` (by `provider|executor`).

    `barred` candidates (by reference, with the reason) cannot keep to what the request allows: they are passed over.

    A Selection with `probe` is a claim: the caller must record it (`endpoint` names the circuit) in the same
    transaction in which it read `circuits`, or nobody may use it.

    Raises:
        Blocked: unknown route, a candidate that is not independent, a false claim in `attempted` or
            `active_candidate`, or no candidate left; `reply` says which were attempted and skipped.
    """
    chain = rubric.chains.get(route)
    if chain is None:
        raise Blocked(f"the rubric has no route {route!r}")
    _check_authors(rubric, authoring_providers)
    _check_active(rubric, active_candidate, native_provider)
    reasons = _check_attempted(chain, native_provider, attempted, circuits, route)
    skips: list[tuple[str, str]] = []
    for row in chain:
        executor = executor_of(row, native_provider)
        endpoint = f"{row.provider}|{executor}"
        circuit = circuits.get(endpoint)
        if row.reference in reasons:
            skips.append((row.reference, reasons[row.reference]))
        elif barred and row.reference in barred:
            skips.append((row.reference, barred[row.reference]))
        elif executor is None or not _reachable(row, native_provider, executors):
            skips.append((row.reference, MISSING))
        elif circuit is not None and is_open(circuit, now):
            skips.append((row.reference, circuit.reason))
        else:
            return Selection(
                row,
                CURRENT if row.reference == active_candidate else executor,
                endpoint,
                "primary" if row is chain[0] else "fallback",
                skips,
                probe=circuit is not None,
            )
    why = ", ".join(f"{reference}: {reason}" for reference, reason in skips)
    raise Blocked(
        f"route {route} has no candidate left ({why})",
        attempted=list(attempted),
        skipped=[reference for reference, _ in skips],
    )


def validate(
    rubric: Rubric,
    native_provider: str,
    executors: Collection[str],
    *,
    authoring_providers: Collection[str] = (),
) -> None:
    """Every candidate of every route can be reached by itself, and `independent` is; Blocked with each that is not."""
    _check_authors(rubric, authoring_providers)
    unreachable = [
        f"route {route} candidate {row.reference} has no reachable executor"
        for route, chain in rubric.chains.items()
        for row in chain
        if not _reachable(row, native_provider, executors)
    ]
    if unreachable:
        blocked = Blocked(unreachable[0])
        blocked.reply["blockers"] = unreachable
        raise blocked
