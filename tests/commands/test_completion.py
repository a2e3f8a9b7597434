"""What the shells themselves make of the completion scripts: each is loaded and asked."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import time

import pytest
from program import call

from commands.table import COMMANDS

# (what is typed, the last word unfinished; what must be offered; what must not)
CASES = [
    ("gatebook rou", {"route", "round"}, {"run"}),
    ("gatebook --ledger x --actor cli:a rou", {"route"}, {"--ledger"}),
    ("gatebook --log-format ", {"console", "json"}, {"append"}),
    ("gatebook --l", {"--ledger", "--log-format", "--log-level"}, {"--actor"}),
    ("gatebook route ", {"select", "validate", "record-failure", "reset"}, {"route", "append"}),
    ("gatebook route re", {"record-failure", "record-success", "reset"}, {"select"}),
    ("gatebook route record-failure --rea", {"--reason"}, {"--retry-at"}),
    ("gatebook route record-failure --reason ", {"quota", "rate_limit"}, {"--provider"}),
    ("gatebook append --stream x-n/1 --t", {"--type"}, {"--stream"}),
    ("gatebook witness init --", {"--help"}, {"--signers"}),
    ("gatebook state ", {"plan", "circuits", "stages"}, {"append"}),
    ("gatebook state plan ", set(), {"circuits"}),
    ("gatebook state -", {"--at", "--json"}, {"plan"}),
    ("gatebook query una", {"unanswered"}, {"approvals"}),
    ("gatebook schema plan.", {"plan.proposed", "plan.approved"}, {"run.finalized"}),
    ("gatebook completion ", {"bash", "zsh", "fish"}, {"append"}),
    ("gatebook hooks install ", {"codex", "claude"}, {"install"}),
    ("gatebook polish step s", {"simplify", "summary"}, {"step", "comments"}),
    ("gatebook init --", {"--signers", "--git-dir", "--help"}, {"--ledger"}),
]
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_gatebook
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh cannot be asked without a terminal: the script runs in zsh, and the builtin that takes its offers prints them.
ZSH = """
compdef() { : }
_files() { : }
compadd() { shift; for offer; do [[ $offer == $words[CURRENT]* ]] && print -r -- $offer; done }
source "$1"; shift
words=("$@"); CURRENT=$#
_gatebook
true
"""


def need(shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} on this machine")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(call("completion", shell).out)
    return folder


def words_of(typed):
    return [*shlex.split(typed), ""] if typed.endswith(" ") else shlex.split(typed)


def lines(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert done.stderr == ""
    return done.stdout.split("\n")


def offered(shell, scripts, typed):
    path = str(scripts / shell)
    if shell == "bash":
        return set(lines("bash", "--norc", "-c", BASH, "bash", path, *words_of(typed)))
    if shell == "zsh":
        return set(lines("zsh", "-fc", ZSH, "zsh", path, *words_of(typed)))
    asked = f"source {shlex.quote(path)}; complete -C {shlex.quote(typed)}"
    return {line.split("\t")[0] for line in lines("fish", "--no-config", "-c", asked)}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_the_script(shell, scripts):
    need(shell)
    lines(shell, "-n", str(scripts / shell))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "there", "absent"), CASES)
def test_the_shell_offers_what_fits(shell, scripts, typed, there, absent):
    need(shell)
    found = offered(shell, scripts, typed)
    assert there <= found
    assert not absent & found


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_where_a_value_of_any_form_belongs_file_names_are_left_to_the_shell(shell, scripts):
    need(shell)
    assert offered(shell, scripts, "gatebook append --data ") <= {""}
    assert offered(shell, scripts, "gatebook import le") <= {""}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_offered(shell, scripts):
    need(shell)
    offers = {"": offered(shell, scripts, "gatebook ")}
    for name in COMMANDS:
        first, _, second = name.partition(" ")
        assert first in offers[""], name
        if second:
            if first not in offers:
                offers[first] = offered(shell, scripts, f"gatebook {first} ")
            assert second in offers[first], name


def test_a_person_at_bash_presses_tab(scripts, tmp_path):
    """The whole way: an interactive bash on a terminal completes the line."""
    need("bash")
    terminal, inner = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "PS1": "ready> "}
    argv = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(argv, stdin=inner, stdout=inner, stderr=inner, env=environment) as shell:
        os.close(inner)
        os.write(
            terminal,
            f"gatebook() {{ echo \"ran:$*:end\"; }}; source {scripts}/bash; echo loa''ded\n".encode(),
        )
        until(terminal, b"loaded")
        os.write(terminal, b"gatebook checkp\t--o\tF\n")
        assert b"ran:checkpoint --out F:end" in until(terminal, b":end")
        shell.kill()
    os.close(terminal)


def until(terminal, mark):
    seen = b""
    end = time.monotonic() + 30
    while mark not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
    return seen


def test_another_shell_is_a_usage_error():
    call("completion", "tcsh").refused(2, "no completion for 'tcsh'")
    call("completion").refused(2, "SHELL is needed")
