"""Every option and word of every command, given what does not belong there: one line, an exit code, no fault of ours."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest
from program import Done, call

from commands import entry
from commands.table import COMMANDS

ODD = [
    "",
    "-",
    "\udcff",
    "9" * 4301,
    "9007199254740992",
    "folder",
    "bytes",
    "deep.json",
    "nowhere/at/all",
    "it's",
    "--",
]
# They stay up, take long, or ask at a terminal; their own tests try them.
NOT_TRIED = {"serve", "tour", "bench", "sync"}
USUAL = {
    "--run-dir": "runs", "--text": "all", "--report": "bytes", "--sandbox": "read-only", "--operation": "execute", "--approval": "never",
    "--cwd": ".", "--skills": "folder", "--reason": "quota", "--rubric": "bytes", "--status": "succeeded",
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    before = os.getcwd()
    os.chdir(folder)
    subprocess.run(["git", "init", "-q", "."], check=True)
    (folder / "folder").mkdir()
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "deep.json").write_text("[" * 100_000)
    call("init")
    yield folder
    os.chdir(before)


def called(argv):
    """As `call`, with a stdout that takes bytes too (`gate run` passes on what it was given)."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2)
    )
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = entry.run(argv)
    finally:
        sys.stdin = before
    return Done(code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)))


def usual(flag):
    return USUAL.get(flag.name, flag.choices[0] if flag.choices else "1" if flag.number else "x")


def calls_of(name):
    """The calls that put each odd value into each place, with something usual in the other places that need it."""
    command = entry.load(name)
    places = [*(flag for flag in command.flags if flag.metavar), *command.words]
    for place in places:
        for odd in ODD:
            options = []
            for flag in command.flags:
                if flag is place:
                    options += [f"{flag.name}={odd}"]
                elif flag.required:
                    options += [flag.name, usual(flag)]
            words = [
                odd if word is place else "x" for word in command.words if word is place or not word.optional
            ]
            yield [*name.split(), *options, "--", *words]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_TRIED])
def test_an_odd_argument_is_told_in_one_line(name, project, monkeypatch):
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", "/nonexistent/codex")
    for argv in calls_of(name):
        done = called(argv)
        told = ([item[:40] for item in argv], done.code, done.out[-300:], done.err[-300:])
        assert done.code in (0, 1, 2, 3, 4, 5, 69, 75), told
        assert "Traceback" not in done.err + done.out, told
        assert "internal error" not in done.err + done.out, told
        if done.code and not done.out:
            assert done.err.count("\n") == 1, told
    assert call("verify", "--json").json()["ok"] is True


def test_a_value_that_is_not_utf_8_is_told_as_such():
    done = call("log", "--type", "\udcff").refused(1, "is not UTF-8 text")
    json.dumps(done.err).encode()
