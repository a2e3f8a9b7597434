"""Circuits on behalf of a dispatch: in the state file's ledger, each event naming the dispatch's own ledger and head.

The rules and the shared file are `commands.route`'s; here the same decisions carry a correlation, and the
caller learns which ledger they stand in, so that its own events can name that one.
"""

from __future__ import annotations

from commands.context import Context
from commands.dispatch.health import HealthFile, check_state, moment
from commands.route import closed, in_health, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commands.dispatch.routing import Selection
    from commands.dispatch.rubric import Rubric
    from projections.cooldowns import Circuit
    from projections.engine import Proposal, World


class Named:
    """Another ledger as of one head; all empty where there is none yet."""

    __slots__ = ("hash", "ledger", "seq")

    def __init__(self, ledger: str = "", seq: int = 0, hash: str = "") -> None:
        self.ledger = ledger
        self.seq = seq
        self.hash = hash


class Circuits:
    """The user's provider health as a dispatch uses it; `now` is the time given for the whole call, None for the clock."""

    def __init__(self, state: str | None, context: Context, now: str | None) -> None:
        check_state(state)
        self._state = state
        self._now = now
        # The dispatch's own --ledger is the project's; health has its ledger beside its file.
        self._context = Context(context.via)
        self._context.actor_given = context.actor_given

    def _run(
        self,
        decide: Callable[[World | None, dict[str, Circuit]], Sequence[Proposal]],
        at: int,
    ) -> Named:
        in_health(self._state, self._context, at, decide)
        return self._named()

    def _named(self) -> Named:
        file = HealthFile(self._state, self._context)
        try:
            ledger = file.ledger(create=False)
            if ledger is None:
                return Named()
            head = ledger.store.head()
            return Named(ledger.id, head.seq, head.hash.hex())
        finally:
            file.close()

    def select(
        self,
        rubric: Rubric,
        route: str,
        native_provider: str,
        executors: Sequence[str],
        *,
        authors: Sequence[str],
        attempted: Sequence[str],
        active: str | None,
        barred: Mapping[str, str],
        correlation: str,
        check: Callable[[Selection], None],
    ) -> tuple[Selection, Named]:
        """One selection with its probe claimed, and the ledger it was judged by. Blocked as `routing.select`.

        `check` raises for a candidate that must not be used after all: then nothing is claimed.
        """
        from commands.dispatch.routing import select
        from commands.route import select_in

        at = moment(self._now)

        def judge(circuits: dict[str, Circuit]) -> Selection:
            found = select(
                rubric, route, native_provider, executors, authoring_providers=authors, attempted=attempted,
                active_candidate=active, barred=barred, circuits=circuits, now=at,
            )  # fmt: skip
            check(found)
            return found

        chosen = select_in(self._state, self._context, at, judge, correlation)
        return chosen, self._named()

    def failed(self, endpoint: str, reason: str, retry_at: int | None, correlation: str) -> Named:
        """Record a typed outage of `endpoint`."""
        at = moment(self._now)

        def decide(world: World | None, circuits: dict[str, Circuit]) -> list[Proposal]:
            return _correlated(opened(world, circuits, endpoint, reason, at, retry_at)[2], correlation)

        return self._run(decide, at=at)

    def answered(self, endpoint: str, correlation: str) -> Named:
        """Record that `endpoint` answered: its circuit closes if it was open."""
        at = moment(self._now)

        def decide(world: World | None, circuits: dict[str, Circuit]) -> list[Proposal]:
            return _correlated(closed(world, endpoint, at), correlation) if endpoint in circuits else []

        return self._run(decide, at=at)


def _correlated(proposals: list[Proposal], correlation: str) -> list[Proposal]:
    for proposal in proposals:
        proposal.correlation = correlation
    return proposals
