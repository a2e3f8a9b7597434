"""Calling an executor, reviewer or quality agent: its prompt on stdin, its report on stdout, our own files left alone."""

from __future__ import annotations

import os
import re
import sys

from commands.eventlines import printable
from commands.sessions.gate_run import split_command
from commands.sessions.program import NotFound, run_program
from commands.sessions.writer import digest
from ledger.errors import Invalid, MissingExecutor, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer

ROUND_TIMEOUT = 3600.0  # seconds for one executor, reviewer or step


def report(line: str) -> None:
    """A live report line, on stderr."""
    sys.stderr.write(f"gatebook: {printable(line)}\n")
    sys.stderr.flush()


def call_agent(writer: Writer, command: str, role: str, prompt: str, timeout: float) -> bytes:
    """Run an agent's command with the prompt on stdin; its stdout. `{model}` in it is the configured model."""
    argv = fill_model(split_command(command, f"--{role}"), _model(writer, role))
    try:
        outcome = run_program(argv, data=prompt.encode(), timeout=timeout, cwd=writer.root)
    except NotFound as error:
        raise MissingExecutor(f"the {role} cannot be started: {error}") from None
    if outcome.timed_out:
        raise Unavailable(
            f"the {role} did not end within {timeout:g} s and was stopped; the session can be resumed"
        )
    if outcome.code != 0:
        tail = outcome.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Unavailable(f"the {role} ended with exit code {outcome.code}: {' '.join(tail)[:200]}")
    if outcome.cut:
        raise Unavailable(
            f"the {role}'s output may be cut; a child of it still held its pipe, or it is over 8 MiB"
        )
    try:
        outcome.stdout.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"the {role}'s report is not UTF-8 at byte {error.start}") from None
    return outcome.stdout


def fill_model(argv: list[str], model: str) -> list[str]:
    """The command with `{model}` filled in; without a model its word goes, and the option that it belongs to."""
    filled: list[str] = []
    for word in argv:
        if "{model}" not in word:
            filled.append(word)
        elif model:
            filled.append(word.replace("{model}", model))
        elif word == "{model}" and filled and filled[-1].startswith("-"):
            filled.pop()
    return filled


_CHEAP = ("static-analysis", "simplify", "test-consolidation")


def _model(writer: Writer, role: str) -> str:
    config = writer.config
    if role == "executor":
        return config.model
    if role == "reviewer":
        return config.reviewer_model or config.judgment_model
    return (config.cheap_model if role in _CHEAP else "") or config.judgment_model


_OTHER_SESSION = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_LEDGER_FILES = ("ledger.", "views.", "artifacts", "tiles", "rubric.", "proofs")


def session_files(writer: Writer) -> dict[str, str]:
    """Digest of each file that a round's program must leave alone; other sessions' own files are theirs."""
    found: dict[str, str] = {}
    for folder in (".review-loop/sessions", ".review-loop/tmp", ".gatebook"):
        top = os.path.join(writer.root, folder)
        for base, folders, names in os.walk(top):
            if folder == ".gatebook":
                folders[:] = [name for name in folders if not name.startswith(_LEDGER_FILES)]
                names = [name for name in names if not name.startswith(_LEDGER_FILES)]  # noqa: PLW2901
            for name in names:
                other = _OTHER_SESSION.search(name)
                if (other and other.group() != writer.uuid) or (
                    name.startswith(".") and name.endswith(".tmp")
                ):
                    continue
                path = os.path.join(base, name)
                found[os.path.relpath(path, writer.root)] = _file_digest(path)
    return found


def _file_digest(path: str) -> str:
    try:
        if os.path.islink(path):
            return "-> " + os.readlink(path)
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return "unreadable"


def touched(before: dict[str, str], after: dict[str, str]) -> str:
    """The first of our files that differ, for a message; empty when none does."""
    return ", ".join(sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))[:3])
