"""What a call may load: start-up is the product's speed (contract page ledger; DESIGN, The house)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from program import ROOT, call

# sys.modules of the call itself, after it; the site's own imports are taken off by a run that does nothing.
PROBE = """
import sys
before = set(sys.modules)
sys.argv[0:1] = []
from commands.entry import run
code = run(sys.argv)
sys.stdout.write("\\n" + "\\n".join(sorted(set(sys.modules) - before)))
sys.exit(code)
"""
NEVER = {
    "argparse", "structlog", "yaml", "sqlite_utils", "rich", "cryptography", "subprocess", "logging", "pathlib",
    "dataclasses", "sqlite3", "asyncio", "nats", "datasette", "unittest", "inspect", "ctypes", "socket", "ssl", "tempfile",
    "shutil", "random", "click", "http", "urllib", "email", "importlib.metadata",
}  # fmt: skip
APPEND_NEVER = NEVER | {"msgspec", "uuid", "json", "re", "typing", "datetime", "decimal", "hashlib", "threading", "difflib", "unicodedata", "projections", "commands.dispatch", "contextlib", "enum", "functools"}  # fmt: skip


def loaded(cwd, *args):
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[ROOT, *sys.path]!r}\n{PROBE}", *args],
        cwd=cwd, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done
    return json.loads(done.stdout.split("\n")[0]), set(done.stdout.split("\n")[1:])


def among(modules, names):
    return sorted(name for name in modules if any(name == one or name.startswith(f"{one}.") for one in names))


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("init").json()
    return tmp_path


@pytest.mark.parametrize(
    "more",
    [
        (), ("--data", '{"a":[1,"b",null],"c":{"d":true}}'), ("--content", "words"), ("--idempotency-key", "k", "--expect-version", "0", "--correlation", "c", "--causation", "1"),
        ("--data", '{"a":1.5}'), ("--clock-jump",),
    ],
)  # fmt: skip
def test_append_loads_nothing_it_does_not_need(here, more):
    reply, modules = loaded(here, "append", "--stream", "x-n/1", "--type", "x.n.added", *more)
    assert reply["seq"] == 2
    assert among(modules, APPEND_NEVER) == []
    assert {name for name in modules if name.split(".")[0] in ("ledger", "commands")} <= {
        "commands", "commands.entry", "commands.flags", "commands.context", "commands.table", "commands.append", "ledger",
        "ledger.errors", "ledger.canonical", "ledger.clock", "ledger.event", "ledger.store", "ledger.sqlite", "ledger.home",
        "ledger.access", "ledger.credentials",
    }  # fmt: skip


def test_a_batch_loads_no_more(here):
    (here / "b").write_text('{"stream":"x-n/1","type":"x.n.added","data":{"a":1}}\n' * 3)
    _, modules = loaded(here, "append", "--batch", "b")
    assert among(modules, APPEND_NEVER) == []


def test_a_typed_step_loads_msgspec_and_nothing_else_that_is_slow(here):
    (here / "r.yaml").write_text(
        "models:\n- {name: a, effort: high, provider: p}\nrouting: {default: a@high}\n", encoding="utf-8"
    )
    step = ("--provider", "p", "--executor", "native", "--state", str(here / "s.json"))
    loaded(
        here, "route", "record-failure", "--reason", "quota", *step
    )  # makes the state's ledger, with its keys
    _, modules = loaded(here, "route", "record-failure", "--reason", "quota", *step)
    assert "msgspec" in modules
    assert among(modules, NEVER) == []
    _, modules = loaded(here, "route", "record-success", *step)
    assert among(modules, NEVER) == []
    select = (
        "route",
        "select",
        "--rubric",
        "r.yaml",
        "--route",
        "default",
        "--native-provider",
        "p",
        "--executors",
        "",
        "--state",
        str(here / "s.json"),
    )
    loaded(here, *select)  # parses the YAML, once
    _, modules = loaded(here, *select)
    assert among(modules, NEVER) == []


def test_every_command_in_the_table_can_be_loaded_and_shows_help_with_an_example():
    from commands.table import COMMANDS

    for name in COMMANDS:
        done = call(*name.split(), "--help")
        assert done.code == 0, (name, done.err)
        assert done.out.startswith(f"usage: gatebook {name}")
        assert "Example:\n  gatebook" in done.out or "Example:\n  " in done.out
        assert done.err == ""


def test_the_import_of_each_module_works_by_itself():
    """No import order is needed: a hook that imports one module gets it."""
    for name in (
        "ledger.event",
        "ledger.store",
        "ledger.home",
        "projections.engine",
        "projections.refusals",
        "commands.route",
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, (name, done.stderr)
