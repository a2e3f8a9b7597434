"""Plan runs: what the seed's page calls the shared runtime, importable under its names.

Importing the package costs nothing; each name is loaded from its module when first asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HOMES = {
    "validate_plan": "commands.plan_runs.plans",
    "validate_plan_assignments": "commands.plan_runs.plans",
    "plan_digest": "commands.plan_runs.plans",
    "write_plan": "commands.plan_runs.plans",
    "parse_approval": "projections.approval_grammar",
    "apply_approval_to_plan": "projections.approval_grammar",
    "validate_execute_marker": "commands.plan_runs.markers",
    "prepare_results": "commands.plan_runs.preparation",
    "current_authorization_session": "commands.plan_runs.owner",
    "resolve_skill": "commands.plan_runs.routes",
    "validate_result": "commands.plan_runs.results",
    "write_result": "commands.plan_runs.results",
    "merge_ledger_entry": "commands.plan_runs.processed",
    "require_mutation_authorization": "commands.plan_runs.authorization",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the names are the table's, in one place


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
