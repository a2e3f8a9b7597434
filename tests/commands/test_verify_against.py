"""`verify` against a checkpoint that was kept elsewhere: what no chain alone can tell."""

from __future__ import annotations

import json
import os
import shutil

import pytest


@pytest.fixture
def kept(cli):
    cli.notes(20)
    cli.ok("checkpoint", "--out", "kept.note")
    cli.notes(10)
    return cli


def verdict(cli, *flags: str) -> tuple[int, str]:
    code, out, _ = cli("verify", *flags, "--json")
    return code, json.loads(out)["verdict"]


@pytest.mark.parametrize("flag", ["--against", "--since-checkpoint"])
def test_an_untouched_ledger_is_ok(kept, flag):
    assert verdict(kept, flag, "kept.note") == (0, "ok")


@pytest.mark.parametrize("flag", ["--against", "--since-checkpoint"])
def test_a_deleted_tail_is_found(kept, flag):
    """F9"""
    kept.sql("DELETE FROM events WHERE seq > 15")
    assert verdict(kept, flag, "kept.note") == (3, "truncated")


def test_a_ledger_without_its_first_event_is_told_so(kept):
    kept.sql("DELETE FROM events WHERE seq = 1")
    code, out, err = kept("log")
    assert (code, out) == (3, "")
    assert "event 1, which names this ledger, is not there: run `gatebook verify`" in err


@pytest.mark.parametrize("flag", ["--against", "--since-checkpoint"])
def test_a_note_that_does_not_fit_leaves_the_head_named(kept, flag):
    changed = open("kept.note").read().replace("\n21\n", "\n20\n")
    with open("changed.note", "w") as file:
        file.write(changed)
    code, out, _ = kept("verify", flag, "changed.note", "--json")
    reply = json.loads(out)
    assert (code, reply["verdict"], reply["events"]) == (3, "content-mismatch", 0)
    assert (reply["after_checkpoint"], reply["head"]["seq"]) == (32, 32)
    assert reply["head"]["hash"].strip("0")


@pytest.mark.parametrize("flag", ["--against", "--since-checkpoint"])
def test_the_same_number_of_events_with_a_rewritten_suffix_is_found(kept, flag, tmp_path):
    """F11, F12: the chain is whole in itself, and this machine has no memory of the head."""
    kept.rewrite(15, b"cli:", b"bad:")
    shutil.rmtree(tmp_path / "state" / "gatebook" / "heads")
    assert verdict(kept, flag, "kept.note") == (3, "forked")


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("command", ["verify", "replay"])
def test_a_rewritten_history_cannot_carry_its_old_checkpoints_along(kept, tmp_path, tiles, command):
    kept.rewrite(15, b"cli:", b"bad:")
    shutil.rmtree(tmp_path / "state" / "gatebook" / "heads")
    if not tiles:
        shutil.rmtree(os.path.join(kept.ledger, "tiles"))
    code, out, _ = kept(command, "--json")
    reply = json.loads(out)
    assert (code, reply["verdict"], reply["events"]) == (3, "forked", 32)
    assert (reply["first_wrong"]["seq"], reply["first_wrong"]["field"]) == (22, "content")
    assert "history was rewritten" in reply["first_wrong"]["found"]


def test_a_recorded_checkpoint_that_another_key_signed_is_found(kept, tmp_path):
    from ledger.event import content_digest

    kept.rewrite(15, b"cli:", b"bad:")
    shutil.rmtree(tmp_path / "state" / "gatebook" / "heads")
    salt, content, digest = kept.sql(
        "SELECT salt, content, json_extract(CAST(envelope AS TEXT), '$.content_digest') FROM events WHERE seq = 22"
    )[0]
    forged = bytes(content).replace(b"20", b"21", 1)
    kept.sql(f"UPDATE events SET content = X'{forged.hex()}' WHERE seq = 22")
    kept.rewrite(22, digest.encode(), content_digest(salt, forged).encode())
    code, out, _ = kept("verify", "--json")
    assert code == 3
    assert json.loads(out)["first_wrong"]["seq"] == 22


def test_checkpoints_on_record_cost_an_untouched_ledger_nothing(kept):
    assert verdict(kept) == (0, "ok")
    shutil.rmtree(os.path.join(kept.ledger, "tiles"))
    assert verdict(kept) == (0, "ok")


def test_a_rewritten_history_is_found_although_the_tiles_are_gone_or_old(kept, tmp_path):
    kept.rewrite(15, b"cli:", b"bad:")
    shutil.rmtree(tmp_path / "state" / "gatebook" / "heads")
    shutil.rmtree(os.path.join(kept.ledger, "tiles"))
    assert verdict(kept, "--since-checkpoint", "kept.note") == (3, "forked")
    assert verdict(kept, "--against", "kept.note") == (3, "forked")


def test_a_changed_event_after_the_checkpoint_is_found_incrementally(kept):
    kept.sql("UPDATE events SET data = CAST('{\"n\":99}' AS BLOB) WHERE seq = 25")
    assert verdict(kept, "--since-checkpoint", "kept.note") == (3, "content-mismatch")


def test_incremental_verification_reads_only_what_came_after(kept):
    """It believes the checkpoint for what is before: a changed event there is for the whole verification to find."""
    kept.sql("UPDATE events SET data = CAST('{\"n\":99}' AS BLOB) WHERE seq = 5")
    assert verdict(kept, "--since-checkpoint", "kept.note") == (0, "ok")
    assert verdict(kept, "--against", "kept.note") == (3, "content-mismatch")


def test_incremental_verification_says_how_few_it_read(kept):
    found = kept.json("verify", "--since-checkpoint", "kept.note", "--json")
    assert (found["events"], found["after_checkpoint"]) == (11, 11)


@pytest.mark.parametrize("flag", ["--against", "--since-checkpoint"])
def test_notes_that_are_not_this_ledgers_are_refused_each_with_its_reason(
    kept, flag, tmp_path, capfd, monkeypatch
):
    from auditing import Cli

    with open("kept.note", encoding="utf-8") as file:
        good = file.read()
    (tmp_path / "b").mkdir()
    other = Cli(tmp_path / "b", capfd, monkeypatch)
    other.ok("init")
    foreign = other.ok("checkpoint")
    monkeypatch.chdir(tmp_path)
    kept.home(tmp_path)
    reasons = {}
    for name, text in {
        "forged": good.replace("\n21\n", "\n22\n"),
        "cut": good[:-20],
        "unsigned": good.split("\n\n")[0] + "\n",
        "foreign": foreign,
        "stranger": good.replace("— ", "— somebody-else-"),
    }.items():
        kept.write("bad.note", text)
        code, _, err = kept("verify", flag, "bad.note")
        assert code in (1, 3, 4), name
        reasons[name] = err or kept("verify", flag, "bad.note")[1]
    assert len(set(reasons.values())) == len(reasons)
    assert kept("verify", flag, "nowhere.note")[0] == 1


def test_a_witnessed_checkpoint_says_so(kept, tmp_path):
    key = kept.json("witness", "init", "w")["key"]
    kept.write("kept.cosigned", kept.ok("witness", "cosign", "kept.note", "--dir", "w"))
    assert "attested up to event 21" in kept.ok("verify", "--against", "kept.cosigned")
    os.makedirs(tmp_path / "config" / "gatebook", exist_ok=True)
    kept.write("config/gatebook/witnesses", f"{key}\n")
    assert "witnessed up to event 21" in kept.ok("verify", "--against", "kept.cosigned")


def test_what_a_forged_event_says_cannot_steer_the_terminal(kept):
    kept.rewrite(15, b'"stream":"x-notes/1"', '"stream":"x-\x9b2J/1"'.encode())
    for command in ("verify", "replay"):
        code, out, _ = kept(command)
        assert code == 3
        assert "\x9b" not in out, out
        assert "\\x9b" in out


def test_an_erasure_without_a_record_is_found_incrementally(kept):
    seq = kept.note(1, content="words")
    assert verdict(kept, "--since-checkpoint", "kept.note") == (0, "ok")
    kept.sql(f"UPDATE events SET content = NULL, salt = NULL WHERE seq = {seq}")
    code, out, _ = kept("verify", "--since-checkpoint", "kept.note", "--json")
    reply = json.loads(out)
    assert (code, reply["verdict"]) == (3, "content-mismatch")
    assert (reply["first_wrong"]["seq"], reply["first_wrong"]["field"]) == (seq, "content")


def test_a_replay_up_to_a_moment_before_a_redaction_is_no_false_alarm(kept):
    seq = kept.note(1, content="words")
    kept.ok("redact", str(seq), "--reason", "r")
    assert kept.json("replay", "--to", str(seq), "--json")["ok"]
    assert kept.json("verify", "--since-checkpoint", "kept.note", "--json")["ok"]
    kept.note(2)
    kept.sql("UPDATE events SET data = CAST('[' AS BLOB) WHERE type = 'ledger.redacted'")
    code, out, _ = kept("replay", "--to", str(seq), "--json")
    assert (code, json.loads(out)["first_wrong"]["seq"]) == (3, seq)


def test_a_checkpoint_whose_note_was_redacted_leaves_the_one_before(kept):
    """Its events stay attested, in `verify` and in `log`."""
    kept.ok("checkpoint")
    last = json.loads(kept.ok("log", "-n", "1", "--json"))
    assert last["type"] == "ledger.checkpointed"
    kept.ok("redact", str(last["seq"]), "--reason", "test")
    assert json.loads(kept.ok("verify", "--json"))["after_checkpoint"] == last["seq"] + 1 - 21
    assert "attested up to event 21" in kept.ok("verify")
    promises = [json.loads(line)["promise"] for line in kept.ok("log", "--json").splitlines()]
    assert promises == ["attested"] * 21 + ["recorded"] * (last["seq"] + 1 - 21)


def test_an_artifact_that_is_redacted_while_it_is_verified_is_no_false_alarm(cli):
    from ledger.access import open_ledger
    from ledger.event import ZERO_HASH
    from ledger.walk import Walk

    cli.write("big", "word " * 150_000)
    cli.ok("append", "--stream", "x-notes/1", "--type", "x.note", "--content", "@big")
    ledger = open_ledger(cli.ledger)
    before = ledger.store.reader().event(2)
    cli.ok("redact", "2", "--reason", "r")
    walk = Walk(ledger.store, 1, ZERO_HASH)
    walk._content(2, before.content_digest, before.salt, None)  # as a snapshot from before still has it
    assert walk.erased == {2}
    walk.check_erasures()
    ledger.close()


def test_an_artifact_that_is_gone_without_a_redaction_is_found(cli):
    cli.write("big", "word " * 150_000)
    cli.ok("append", "--stream", "x-notes/1", "--type", "x.note", "--content", "@big")
    shutil.rmtree(os.path.join(cli.ledger, "artifacts"))
    assert verdict(cli) == (3, "content-mismatch")
