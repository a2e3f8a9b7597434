"""`prove` and `check-proof`: files that convince a stranger, and every way to spoil one refused with its reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import metamorphic_log
import pytest

from ledger.proofs import tree


@pytest.fixture
def proved(cli):
    cli.notes(20)
    cli.ok("checkpoint", "--out", "old.note")
    cli.notes(300)
    cli.ok("checkpoint", "--out", "new.note")
    cli.ok("prove", "7", "--out", "seven.proof")
    cli.ok("prove", "--consistency", "old.note", "new.note", "--out", "growth.proof")
    return cli


def key_of(cli) -> str:
    return cli.ok("checkpoint", "--key").strip()


def text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_a_proof_checks_on_another_machine_without_the_ledger(proved, tmp_path):
    key = key_of(proved)
    proved.home(tmp_path / "stranger")
    shutil.rmtree(proved.ledger)
    found = proved.json("check-proof", "seven.proof", "--key", key)
    assert (found["ok"], found["verdict"], found["seq"], found["promise"]) == (True, "ok", 7, "attested")
    assert proved.json("check-proof", "seven.proof")["promise"] == "self-signed"
    grown = proved.json("check-proof", "growth.proof", "--key", key)
    assert (grown["old_size"], grown["size"], grown["proof"]) == (21, 322, "consistency")


def test_an_independent_implementation_checks_what_prove_prints(proved):
    key = key_of(proved)
    file = json.loads(text_of("seven.proof"))
    event_hash = proved.sql("SELECT hash FROM events WHERE seq = 7")[0][0]
    path = [bytes.fromhex(step) for step in file["path"]]
    metamorphic_log.checkpoint_verify_inclusion(file["note"], [key], 6, tree.leaf_hash(event_hash), path)
    grown = json.loads(text_of("growth.proof"))
    path = [bytes.fromhex(step) for step in grown["path"]]
    metamorphic_log.checkpoint_verify_consistency(grown["old"], grown["new"], [key], path)


def test_notes_are_named_by_file_or_by_the_size_of_a_recorded_checkpoint(proved):
    assert proved.ok("prove", "--consistency", "21", "322") == text_of("growth.proof")
    assert proved.ok("prove", "7", "--to", "old.note") == proved.ok("prove", "7", "--to", "21")
    code, _, err = proved("prove", "7", "--to", "22")
    assert code == 4
    assert "no checkpoint of 22 events" in err


def test_an_event_that_no_checkpoint_covers_is_not_proved(cli):
    cli.notes(3)
    assert cli("prove", "2")[0] == 4
    cli.ok("checkpoint", "--out", "a.note")
    cli.notes(3)
    code, _, err = cli("prove", "7")
    assert code == 4
    assert "run `gatebook checkpoint`" in err
    assert cli("prove", "7", "--to", "a.note")[0] == 4


@pytest.mark.parametrize("seq", ["0", "99", "x", "-1", "1.0", "9" * 4301, str(2**63)])
def test_an_event_that_is_not_there_is_not_proved(proved, seq):
    code, out, _ = proved("prove", seq) if seq[0] != "9" or seq != "99" else proved("prove", "9999")
    assert code in (1, 2)
    assert out == ""


@pytest.mark.parametrize(
    "arguments", [(), ("1", "2"), ("--consistency", "a"), ("--consistency", "a", "b", "--to", "c")]
)
def test_a_call_of_another_shape_is_a_usage_error(proved, arguments):
    assert proved("prove", *arguments)[0] == 2


def spoil(name: str, **members) -> str:
    from ledger.canonical import encode

    path = f"spoiled-{name}"
    with open(path, "wb") as file:
        file.write(encode(json.loads(text_of(name)) | members) + b"\n")
    return path


def refused(cli, path: str, *keys: str) -> tuple[str, str]:
    code, out, err = cli("check-proof", path, *(part for key in keys for part in ("--key", key)))
    reply = json.loads(out)
    assert code == 3
    assert reply["ok"] is False
    assert reply["reason"] in err
    return reply["verdict"], reply["reason"]


def test_each_kind_of_bad_proof_is_refused_with_its_own_reason(proved, tmp_path, capfd, monkeypatch):
    from auditing import Cli

    key = key_of(proved)
    file = json.loads(text_of("seven.proof"))
    eight = json.loads(proved.ok("prove", "8"))
    old = text_of("old.note")
    (tmp_path / "b").mkdir()
    other = Cli(tmp_path / "b", capfd, monkeypatch)
    other.ok("init")
    other.notes(330)
    other.ok("checkpoint", "--out", "new.note")
    other.ok("prove", "7", "--out", "seven.proof")
    foreign_note, foreign = text_of("new.note"), os.path.abspath("seven.proof")
    monkeypatch.chdir(tmp_path)
    reasons = {
        "forged": refused(proved, spoil("seven.proof", note=file["note"].replace("\n322\n", "\n323\n")), key),
        "unsigned": refused(proved, spoil("seven.proof", note=file["note"].split("\n\n")[0] + "\n"), key),
        "swapped": refused(
            proved, spoil("seven.proof", **{n: eight[n] for n in ("envelope", "data", "previous_hash")}), key
        ),
        "data": refused(proved, spoil("seven.proof", data=eight["data"]), key),
        "stale": refused(proved, spoil("seven.proof", note=old, path=file["path"]), key),
        "short": refused(proved, spoil("seven.proof", path=file["path"][:-1]), key),
        "cross-ledger proof": refused(proved, foreign, key),
        "cross-ledger note": refused(proved, spoil("seven.proof", note=foreign_note)),
        "shrunk": refused(
            proved, spoil("growth.proof", old=json.loads(text_of("growth.proof"))["new"], new=old), key
        ),
    }
    with open("cut.proof", "w", encoding="utf-8") as cut:
        cut.write(text_of("seven.proof")[:200])
    reasons["cut"] = refused(proved, "cut.proof", key)
    assert reasons["cut"][0] == "unreadable"
    assert reasons["shrunk"][0] == "truncated"
    assert len({reason for _, reason in reasons.values()}) == len(reasons)


def test_a_note_is_not_a_proof(proved):
    verdict, reason = refused(proved, "old.note")
    assert verdict == "unreadable"
    assert "proof file" in reason


def test_a_missing_file_and_a_bad_key_are_not_verdicts(proved):
    assert proved("check-proof", "nowhere")[0] == 1
    assert proved("check-proof", "seven.proof", "--key", "nonsense")[0] == 1


def test_a_damaged_tile_makes_no_bad_proof(proved):
    good = text_of("seven.proof")
    for where, _, names in os.walk(os.path.join(proved.ledger, "tiles")):
        for name in names:
            with open(os.path.join(where, name), "r+b") as file:
                file.write(b"\0" * 40)
    assert proved.ok("prove", "7") == good
    shutil.rmtree(os.path.join(proved.ledger, "tiles"))
    assert proved.ok("prove", "7") == good


def test_a_rewritten_event_cannot_be_proved(proved):
    proved.rewrite(7, b"cli:", b"bad:")
    code, out, err = proved("prove", "7")
    assert (code, out) == (3, "")
    assert "root" in err


def test_notes_of_a_rewritten_history_do_not_make_a_growth(proved):
    proved.rewrite(7, b"cli:", b"bad:")
    shutil.rmtree(os.path.join(proved.ledger, "tiles"))
    code, out, _ = proved("prove", "--consistency", "old.note", "new.note")
    assert (code, out) == (3, "")


def test_a_redacted_event_is_still_proved(cli):
    seq = cli.note(1, content="to be erased")
    cli.ok("checkpoint")
    before = cli.ok("prove", seq)
    cli.ok("redact", seq, "--reason", "asked to")
    assert cli.ok("prove", seq, "--to", "2") == before


def test_checking_loads_no_database(proved, tmp_path):
    code = (
        "import sys; from commands.entry import run; code = run(['check-proof', 'seven.proof', '--key', sys.argv[1]]);"
        "print(code, [m for m in ('apsw', 'sqlite3', '_sqlite3', 'sqlite_utils', 'msgspec', 'structlog') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, key_of(proved)],
        capture_output=True,
        text=True,
        check=True,
        cwd=proved.folder,
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_growth_over_a_rotated_key_is_checked_on_this_machine_and_by_the_new_key_alone(cli):
    cli.notes(3)
    cli.ok("checkpoint", "--out", "old.note")
    cli.ok("authority", "rotate", "checkpoint")
    cli.ok("checkpoint", "--out", "new.note")
    cli.ok("prove", "--consistency", "old.note", "new.note", "--out", "growth.proof")
    assert cli.json("check-proof", "growth.proof")["promise"] == "attested"
    assert cli.json("check-proof", "growth.proof", "--key", key_of(cli))["old_size"] == 4
    cli.ok("prove", "--consistency", "new.note", "new.note", "--out", "same.proof")
    assert cli.json("check-proof", "same.proof")["ok"]
