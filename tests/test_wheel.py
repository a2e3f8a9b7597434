"""What a user installs: the wheel is built, put into a fresh environment, and used from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
pytestmark = pytest.mark.xdist_group("wheel")


def run(*argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, **more)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by the tools of this environment: no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", str(folder), ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The script of a fresh environment that holds the wheel; its dependencies come from the running one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    )
    # A path line in a .pth file brings the packages that lie there, but not the .pth of our own editable install.
    packages = sysconfig.get_paths()["purelib"]
    inside = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
    with open(os.path.join(inside, "dependencies.pth"), "w") as file:
        file.write(packages + "\n")
    return str(folder / "bin" / "gatebook")


@pytest.fixture
def gatebook(installed, home, tmp_path):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}

    def call(*words):
        return run(installed, *words, cwd=tmp_path, env=environment).stdout

    return call


def test_the_wheel_holds_the_three_packages_their_types_and_the_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("gatebook-")} == {"ledger", "projections", "commands"}
    assert {f"{package}/py.typed" for package in ("ledger", "projections", "commands")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    on_disk = {
        os.path.relpath(os.path.join(folder, name), ROOT)
        for package in ("ledger", "projections", "commands")
        for folder, _, files in os.walk(os.path.join(ROOT, package))
        for name in files
        if not name.endswith(".pyc")
    }
    assert on_disk == {name for name in names if not name.startswith("gatebook-")}


def test_the_installed_program_keeps_a_ledger(gatebook, tmp_path):
    assert gatebook("--version").startswith("gatebook 0.1.0 (log format 1)")
    made = json.loads(gatebook("init"))
    assert made["created"] is True
    event = json.loads(gatebook("append", "--stream", "x-n/1", "--type", "x.n.added", "--data", '{"a":1}'))
    assert event["seq"] == 2
    found = json.loads(gatebook("verify", "--json"))
    assert (found["ok"], found["events"], found["head"]["hash"]) == (True, 2, event["hash"])
    state = str(tmp_path / "health.json")
    gatebook(
        "route", "record-failure", "--provider", "p", "--executor", "e", "--reason", "quota", "--state", state
    )
    assert json.loads(gatebook("replay", "--json"))["ok"] is True


def test_the_script_runs_the_wheels_code_and_does_not_import_re(installed, home, tmp_path):
    python = os.path.join(os.path.dirname(installed), "python")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    more = {"cwd": tmp_path, "env": environment}
    where = run(python, "-c", "import commands; print(commands.__file__)", **more).stdout
    assert where.startswith(os.path.dirname(os.path.dirname(installed)))
    with open(installed) as file:
        assert file.readline().startswith(f"#!{os.path.dirname(installed)}/python")
    run(installed, "init", **more)
    done = run(
        python, "-X", "importtime", installed, "append", "--stream", "x-n/1", "--type", "x.n.added", **more
    )
    modules = {line.split("|")[2].strip() for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "ledger.sqlite" in modules
    assert not {"re", "argparse", "msgspec", "structlog", "importlib.metadata"} & modules
