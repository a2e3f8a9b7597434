"""Every command with odd arguments: one line and an exit code of the contract, never a fault of ours.

Drawn from a fixed seed, so that a failure is the same everywhere; a longer run: raise ROUNDS.
"""

from __future__ import annotations

import os
import random
import subprocess

import pytest
from program import call

from commands.entry import load
from commands.table import COMMANDS

ROUNDS = 260
# They wait, serve, run for long, or write outside the folder.
APART = {"serve", "tour", "bench", "sync", "hooks install", "hooks uninstall", "guard stop", "guard capture"}
ODD = [
    "", "0", "1", "2", "-1", "9007199254740992", "1" * 4301, "x", "../..", "/", "/dev/null", "empty", "text", "json", "deep", "bin", "dir", "dangling",
    "missing", "@text", "@missing", "{}", "[]", "{", "null", '{"a":1}', "[1]", "NaN", "2026-08-25T12:00:00Z", "2026-13-45", "\u00e9", "e\u0301", "\udcff", "a\nb", "a\tb",
    "\x1b[2J", "a|b", "p|e", "a@b", "a@", "@", "@high", "default", "quota", "x-n/1", "run/1", "dispatch/1", "ledger", "circuits", "plan", "receipts", "sessions", "k=v", "=",
    "*", "[", "(", "SELECT 1", "note", "export", "rubric.yaml", "codex", "native", "p", "fresh", "true", "y", "execute", "read-only", "1,3", "approve all", "/etc/passwd",
    "a" * 5000, "00000000-0000-4000-8000-000000000000", "runs", "2026-12-01",
]  # fmt: skip
CODES = {0, 1, 2, 3, 4, 5, 69, 75}


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", "/bin/false")
    subprocess.run(["git", "init", "-q"], check=True)
    call("init").json()
    for n in range(3):
        call(
            "append", "--stream", "x-n/1", "--type", "x.n.a", "--data", f'{{"a":{n}}}', "--content", f"c{n}"
        ).json()
    call(
        "--ledger",
        ".gatebook",
        "route",
        "record-failure",
        "--provider",
        "p",
        "--executor",
        "e",
        "--reason",
        "quota",
        "--state",
        "s.json",
    ).json()
    for name, content in (
        ("empty", b""),
        ("text", b"hello\nworld\n"),
        ("json", b'{"a":1}'),
        ("deep", b"[" * 5000),
        ("bin", bytes(range(256))),
    ):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "rubric.yaml").write_text(
        "models:\n- {name: a, effort: high, provider: p}\nrouting: {default: a@high}\n"
    )
    (tmp_path / "dir").mkdir()
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    call("checkpoint", "--out", "note")
    call("export", "--out", "export").json()
    return tmp_path


def words_for(name, chance):
    command, words = load(name), name.split()
    for flag in command.flags:
        if flag.name == "--follow" or not (flag.required or chance.random() < 0.35):
            continue
        if flag.metavar is None:
            words.append(flag.name)
            continue
        value = chance.choice(flag.choices) if flag.choices and chance.random() < 0.8 else chance.choice(ODD)
        words += [f"{flag.name}={value}"] if chance.random() < 0.3 else [flag.name, value]
    for word in command.words:
        if not word.optional or chance.random() < 0.5:
            words.append(chance.choice(ODD))
    return words


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_argument_makes_a_command_fall_over(here, seed):
    chance = random.Random(seed)
    names = [name for name in COMMANDS if name not in APART]
    for _ in range(ROUNDS // 2):
        words = words_for(chance.choice(names), chance)
        done = call(*words, stdin=chance.choice([b"", b"{}", b"text\n", b"\xff\xfe", b"[" * 3000]))
        assert "internal error" not in done.err + done.out, (words, done.err)
        assert "Traceback" not in done.err, (words, done.err)
        assert done.code in CODES, (words, done.code, done.err)
        os.chdir(here)
