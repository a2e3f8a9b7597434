"""The next candidate of an open request: by rubric, circuits, and what each executor can hold to."""

from __future__ import annotations

from commands.dispatch.ceiling import PATHS
from commands.dispatch.circuits import Circuits, Named
from commands.dispatch.executors import (
    NATIVE,
    Executor,
    check_mode,
    external_executors,
    native_executor,
    split_command,
)
from commands.dispatch.preflight import Stop
from commands.dispatch.routing import MISSING, Blocked, executor_of, parse_attempted, parse_list
from ledger.errors import Invalid, Refused
from projections.dispatch import unselectable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.dispatch.config import Config
    from commands.dispatch.routing import Selection
    from commands.dispatch.rubric import Rubric
    from commands.dispatch.work import Work
    from commands.flags import Args
    from projections.dispatch import State

APPROVAL, ENFORCEMENT = "outstanding_approval", "unenforced_paths"


def _given(args: Args, name: str) -> str | None:
    """A flag's value; None where the command has no such flag."""
    found: str | None = args.__dict__.get(name)
    return found


class _NotNowError(Refused):
    """What was `found` may not be selected as the request stands."""

    def __init__(self, found: Selection) -> None:
        super().__init__("no candidate may be selected now")
        self.found = found


class Chooser:
    """The choices of one call: rubric, native provider, inventory and circuits; arguments are checked here, files later."""

    __slots__ = ("_at", "_rubric", "_rubric_path", "active", "attempted", "authors", "circuits", "config", "inventory", "names", "native", "native_command", "native_provider")  # fmt: skip

    def __init__(self, args: Args, context: Context) -> None:
        """Usage for a bad argument."""
        from commands.dispatch.health import moment

        self._at = moment(args.now)
        listed, provider = _given(args, "executors"), _given(args, "native_provider")
        self.names = None if listed is None else parse_list(listed, "--executors")
        self.authors = parse_list(_given(args, "authoring_providers") or "", "--authoring-providers")
        self.attempted = parse_attempted(_given(args, "attempted") or "")
        self.active: str | None = _given(args, "active_candidate")
        self.native_provider = provider or ""
        native = _given(args, "native")
        self.native_command = split_command(native) if native is not None else ()
        self.circuits = Circuits(args.state, context, args.now)
        self._rubric_path: str | None = _given(args, "rubric")
        self._rubric: Rubric | None = None
        self.config: Config | None = None
        self.inventory: dict[str, Executor] = {}

    @property
    def rubric(self) -> Rubric:
        """The rubric in force, fit for dispatching today; Stop otherwise."""
        if self._rubric is None:
            from commands.dispatch.rubric import active_path, load_reviewed

            try:
                self._rubric = load_reviewed(active_path(self._rubric_path), self._at)
            except Invalid as error:
                raise Stop("rubric", str(error)) from None
        return self._rubric

    def discover(self, work: Work) -> None:
        """Find out, once, which executors can be called: Codex is asked, others are the user's configuration."""
        from commands.dispatch.config import load_config

        if self.config is not None:
            return
        try:
            self.config = load_config(work.ceiling.folder)
        except Refused as error:
            raise Stop("executor", str(error)) from None
        names = ["codex", *self.config.executors] if self.names is None else self.names
        self.inventory = external_executors(names, self.config)
        self.inventory[NATIVE] = native_executor(self.native_command, self.config)

    def select(self, work: Work) -> Selection:
        """Choose and record the next candidate; Stop when there is none that may do it."""
        state, rubric = work.state, self.rubric
        self.discover(work)
        barred = self._barred(work, state, rubric)
        executors = [name for name in self.inventory if name not in (NATIVE, *state.left)]
        independent = work.request.route == "independent"  # nobody else's choice depends on the authors
        authors = [*work.request.authoring_providers, *self.authors] if independent else []

        def check(found: Selection) -> None:
            if state.request is not None and unselectable(state, state.request):
                raise _NotNowError(found)
            try:
                check_mode(self.executor_of(found.endpoint), work.request.context.mode)
            except Refused as error:
                raise Stop("context_mode", str(error)) from None

        try:
            chosen, named = self.circuits.select(
                rubric, work.request.route, self.native_provider, executors, authors=authors,
                attempted=list(dict.fromkeys([*self.attempted, *state.unavailable])), active=self.active, barred=barred, correlation=work.named(), check=check,
            )  # fmt: skip
        except Blocked as error:
            raise Stop(_code_of(error, barred), *_blockers(error, barred)) from None
        except _NotNowError as error:
            work.selected(error.found, Named())  # refused on record, and no probe is claimed for it
            raise
        except Stop:
            raise
        except Refused as error:
            raise Stop("executor", str(error)) from None
        work.selected(chosen, named)
        return chosen

    def executor_of(self, endpoint: str) -> Executor:
        """The executor behind `provider|executor`."""
        return self.inventory[endpoint.partition("|")[2]]

    def _barred(self, work: Work, state: State, rubric: Rubric) -> dict[str, str]:
        """The candidates that cannot keep to the request's authority, and those whose native runtime is missing."""
        outstanding = bool(state.outstanding(work.void_before))
        barred = {}
        for row in rubric.chains.get(work.request.route, ()):
            name = executor_of(row, self.native_provider)
            executor = self.inventory.get(name or "")
            if name == NATIVE and NATIVE in state.left:
                barred[row.reference] = MISSING
            elif executor is None:
                continue  # not here: the resolver says so
            elif outstanding and not executor.interactive:
                barred[row.reference] = APPROVAL
            elif work.ceiling.sandbox == PATHS and not executor.enforces_paths:
                barred[row.reference] = ENFORCEMENT
        return barred


def _code_of(error: Blocked, barred: dict[str, str]) -> str:
    if "skipped" not in error.reply:
        return "route"
    if APPROVAL in barred.values():
        return "approval"
    return "enforcement" if ENFORCEMENT in barred.values() else "exhausted"


_WHY = {
    APPROVAL: "an approval is outstanding, and {} cannot ask for it (`gatebook dispatch approve`)",
    ENFORCEMENT: "allowed_paths are narrower than the working directory, and {} cannot enforce that",
}


def _blockers(error: Blocked, barred: dict[str, str]) -> list[str]:
    whys = [_WHY[reason].format(reference) for reference, reason in barred.items() if reason in _WHY]
    return [str(error), *(whys if "skipped" in error.reply else [])]
