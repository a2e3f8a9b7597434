"""The package offers the shared runtime's functions under the seed's names, and costs nothing until one is used."""

import ast
import subprocess
import sys

import pytest

import commands.plan_runs as runtime

NAMES = [
    "validate_plan", "validate_plan_assignments", "plan_digest", "parse_approval", "apply_approval_to_plan", "write_plan", "validate_execute_marker", "prepare_results",
    "current_authorization_session", "resolve_skill", "validate_result", "write_result", "merge_ledger_entry", "require_mutation_authorization",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_seed_is_a_function_here(name):
    assert callable(getattr(runtime, name))


def test_another_name_is_none():
    with pytest.raises(AttributeError):
        _ = runtime.submit_everything


def test_importing_the_package_loads_nothing():
    code = "import sys; before = set(sys.modules); import commands.plan_runs; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) <= {"__future__", "commands", "commands.plan_runs"}
