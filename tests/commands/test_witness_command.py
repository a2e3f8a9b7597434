"""`witness` on the command line: two parties, by files only."""

from __future__ import annotations

import os
import shutil

import pytest

from ledger.proofs import note as notes


@pytest.fixture
def watched(cli):
    cli.notes(10)
    cli.ok("checkpoint", "--out", "old.note")
    cli.key = cli.json("witness", "init", "w")["key"]
    cli.write("old.cosigned", cli.ok("witness", "cosign", "old.note", "--dir", "w"))
    cli.notes(10)
    cli.ok("checkpoint", "--out", "new.note")
    return cli


def grown(cli) -> None:
    cli.ok("prove", "--consistency", "w/memory", "new.note", "--out", "growth.proof")


def test_growth_is_cosigned_and_makes_a_proof_witnessed(watched, tmp_path):
    grown(watched)
    cosigned = watched.ok("witness", "cosign", "new.note", "--dir", "w", "--proof", "growth.proof")
    key = notes.parse_verifier_key(watched.key)
    assert any(line.by(key) for line in notes.parse_note(cosigned).signatures)
    watched.write("new.cosigned", cosigned)
    watched.ok("prove", "5", "--to", "new.cosigned", "--out", "five.proof")
    assert watched.json("check-proof", "five.proof", "--key", watched.key)["promise"] == "witnessed"
    assert watched.json("check-proof", "five.proof")["promise"] == "attested"
    os.makedirs(tmp_path / "config" / "gatebook")
    watched.write("config/gatebook/witnesses", f"# who I trust\n\n{watched.key}\n")
    assert watched.json("check-proof", "five.proof")["promise"] == "witnessed"


def test_a_line_of_the_witnesses_file_that_is_no_key_is_named(watched, tmp_path):
    watched.ok("prove", "5", "--out", "five.proof")
    os.makedirs(tmp_path / "config" / "gatebook")
    log_key = watched.ok("checkpoint", "--key").strip()
    for line, reason in (("nonsense", "verifier key"), (log_key, "log's key")):
        watched.write("config/gatebook/witnesses", f"{watched.key}\n{line}\n")
        _, out, _ = watched("check-proof", "five.proof")
        assert "line 2" in out
        assert reason in out


def test_growth_without_a_proof_is_refused_with_the_call_that_makes_it(watched):
    code, out, err = watched("witness", "cosign", "new.note", "--dir", "w")
    assert (code, out) == (4, "")
    assert "gatebook prove --consistency w/memory" in err


def test_a_shrunk_log_is_refused(watched):
    grown(watched)
    watched.ok("witness", "cosign", "new.note", "--dir", "w", "--proof", "growth.proof")
    code, out, err = watched("witness", "cosign", "old.note", "--dir", "w")
    assert (code, out) == (3, "")
    assert "shrank" in err


def test_a_rewritten_history_signed_by_the_ledgers_own_key_is_refused(watched, tmp_path):
    """The owner of the key rewrites history and forgets what was signed: the witness remembers."""
    watched.rewrite(5, b"cli:", b"bad:")
    watched.sql("DELETE FROM events WHERE seq > 11", "DELETE FROM snapshots")
    for where, _, names in os.walk(tmp_path / "state" / "gatebook"):
        for name in names:
            if os.path.basename(where) in ("heads", "checkpoints"):
                os.unlink(os.path.join(where, name))
    watched.ok("checkpoint", "--out", "forked.note")
    assert watched("witness", "cosign", "forked.note", "--dir", "w")[0] == 3
    watched.notes(10)
    watched.ok("checkpoint", "--out", "forked2.note")
    watched.ok("prove", "--consistency", "forked.note", "forked2.note", "--out", "fork.proof")
    code, out, err = watched("witness", "cosign", "forked2.note", "--dir", "w", "--proof", "fork.proof")
    assert (code, out) == (3, "")
    assert "forked" in err
    assert watched("prove", "--consistency", "w/memory", "forked2.note")[0] == 3


def test_another_ledger_is_refused(watched, tmp_path, capfd, monkeypatch):
    from auditing import Cli

    (tmp_path / "b").mkdir()
    other = Cli(tmp_path / "b", capfd, monkeypatch)
    other.ok("init")
    other.ok("checkpoint", "--out", "b.note")
    code, out, err = other("witness", "cosign", "b.note", "--dir", str(tmp_path / "w"))
    assert (code, out) == (4, "")
    assert "another ledger" in err


def test_a_stranger_must_give_the_ledgers_key_once(watched, tmp_path):
    key = watched.ok("checkpoint", "--key").strip()
    watched.home(tmp_path / "stranger")
    watched.ok("witness", "init", "v")
    shutil.move(watched.ledger, tmp_path / "elsewhere.gatebook")
    code, _, err = watched("witness", "cosign", "old.note", "--dir", "v")
    assert code == 4
    assert "--key" in err
    watched.ok("witness", "cosign", "old.note", "--dir", "v", "--key", key)
    watched.ok("witness", "cosign", "old.note", "--dir", "v")


def test_the_ledger_itself_or_a_proofs_genesis_names_the_key_at_first_sight(watched, tmp_path):
    grown(watched)
    watched.home(tmp_path / "stranger")
    for name, more in (("v", ("--ledger", watched.ledger)), ("u", ())):
        watched.ok("witness", "init", name)
        proof = () if more else ("--proof", "growth.proof")
        note = "old.note" if more else "new.note"
        watched.ok(*more, "witness", "cosign", note, "--dir", name, *proof)
        forged = watched.write(
            "forged.note", open("new.note", encoding="utf-8").read().replace("\n22\n", "\n23\n")
        )
        assert watched("witness", "cosign", forged, "--dir", name)[0] == 3


def test_a_proof_of_other_growth_or_of_an_event_is_refused(watched):
    grown(watched)
    watched.notes(1)
    watched.ok("checkpoint", "--out", "newer.note")
    code, _, err = watched("witness", "cosign", "newer.note", "--dir", "w", "--proof", "growth.proof")
    assert code == 1
    assert "another checkpoint" in err
    watched.ok("prove", "5", "--out", "five.proof")
    code, _, err = watched("witness", "cosign", "newer.note", "--dir", "w", "--proof", "five.proof")
    assert code == 1
    assert "inclusion" in err


def test_a_second_init_and_a_missing_witness_say_so(watched):
    assert watched("witness", "init", "w")[0] == 5
    assert watched("witness", "cosign", "old.note", "--dir", "nowhere")[0] == 2
    assert watched("witness", "init", "v", "--name", "a b")[0] == 1


@pytest.mark.parametrize("text", ["", "x", "a\n1\nAAAA\n\n— a AAAAAAAAAAAA\n"])
def test_a_malformed_note_is_refused(watched, text):
    watched.write("bad.note", text)
    assert watched("witness", "cosign", "bad.note", "--dir", "w")[0] == 1


@pytest.mark.parametrize("name", ["memory", "log-key"])
@pytest.mark.parametrize("content", [b"", b"garbage\n", b"\xff\xfe"])
def test_a_witness_whose_memory_is_damaged_says_so_and_signs_nothing(watched, name, content):
    grown(watched)
    with open(f"w/{name}", "wb") as file:
        file.write(content)
    code, out, err = watched("witness", "cosign", "new.note", "--dir", "w", "--proof", "growth.proof")
    assert (code, out) == (1, "")
    assert "the memory of this witness is damaged" in err


def rotated(cli, number: int) -> None:
    """Rotate the ledger's key, and make note, proof of growth and proof of the change under that number."""
    seq = cli.json("authority", "rotate", "checkpoint")["seq"]
    cli.ok("checkpoint", "--out", f"{number}.note")
    cli.ok("prove", "--consistency", "w/memory", f"{number}.note", "--out", f"{number}.growth")
    cli.ok("prove", str(seq), "--to", f"{number}.note", "--out", f"{number}.rotated")


def cosign(cli, number: int, *more: str):
    return cli("witness", "cosign", f"{number}.note", "--dir", "w", "--proof", f"{number}.growth", *more)


def test_a_witness_follows_a_new_key_that_the_old_one_signed(watched):
    rotated(watched, 1)
    code, out, err = cosign(watched, 1)
    assert (code, out) == (4, "")
    assert "known key" in err
    code, out, _ = cosign(watched, 1, "--rotated", "1.rotated")
    assert code == 0
    assert any(line.by(notes.parse_verifier_key(watched.key)) for line in notes.parse_note(out).signatures)
    watched.notes(3)
    watched.ok("checkpoint", "--out", "2.note")
    watched.ok("prove", "--consistency", "w/memory", "2.note", "--out", "2.growth")
    assert cosign(watched, 2)[0] == 0, "the new key is the one that it knows from now on"


def test_two_changes_are_followed_in_their_order_only(watched):
    rotated(watched, 1)
    rotated(watched, 2)
    assert cosign(watched, 2, "--rotated", "2.rotated")[0] == 4
    assert cosign(watched, 2, "--rotated", "2.rotated", "--rotated", "1.rotated")[0] == 4
    assert cosign(watched, 2, "--rotated", "1.rotated", "--rotated", "2.rotated")[0] == 0


def test_a_proof_of_another_event_or_another_key_makes_no_witness_follow(watched):
    rotated(watched, 1)
    watched.ok("prove", "3", "--to", "1.note", "--out", "three.proof")
    code, _, err = cosign(watched, 1, "--rotated", "three.proof")
    assert code == 1
    assert "no proof of a key.changed event" in err
    seq = watched.json("authority", "rotate", "receipt")["seq"]
    watched.ok("checkpoint", "--out", "later.note")
    watched.ok("prove", str(seq), "--to", "later.note", "--out", "receipt.rotated")
    assert cosign(watched, 1, "--rotated", "receipt.rotated")[0] == 4
    with open("1.rotated", encoding="utf-8") as file:
        proof = file.read()
    at = proof.index("signature") + 14
    watched.write("forged.rotated", proof[:at] + ("1" if proof[at] != "1" else "2") + proof[at + 1 :])
    assert cosign(watched, 1, "--rotated", "forged.rotated")[0] in (3, 4)
