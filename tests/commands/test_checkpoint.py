"""`checkpoint`: what is signed continues what was signed; damage is found and not signed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil

import metamorphic_log
import pytest

from ledger.proofs import note as notes


def head_of(text: str) -> notes.Checkpoint:
    return notes.parse_checkpoint(notes.parse_note(text).text)


def test_a_checkpoint_verifies_under_the_printed_key_with_an_independent_implementation(cli):
    cli.notes(5)
    text = cli.ok("checkpoint")
    key = cli.ok("checkpoint", "--key").strip()
    head = metamorphic_log.checkpoint_verify(text, [key])
    assert (head.size, head.origin) == (6, key.split("+")[0])


def test_a_checkpoint_is_recorded_and_repeated_unchanged_while_nothing_happens(cli):
    cli.notes(5)
    first = cli.ok("checkpoint")
    assert cli.ok("checkpoint") == first
    assert cli.sql("SELECT max(seq) FROM events") == [(7,)]
    assert cli.sql("SELECT content FROM events WHERE type = 'ledger.checkpointed'") == [(first.encode(),)]
    cli.notes(1)
    assert head_of(cli.ok("checkpoint")).size == 8


def test_the_note_goes_to_a_file_too(cli):
    text = cli.ok("checkpoint", "--out", "kept.note")
    with open("kept.note", encoding="utf-8") as file:
        assert file.read() == text


def test_each_checkpoint_has_the_root_of_the_plain_tree(cli):
    from ledger.proofs import tree

    for count in (1, 300, 1, 255, 1, 2):
        cli.notes(count)
        head = head_of(cli.ok("checkpoint"))
        leaves = [tree.leaf_hash(row[0]) for row in cli.sql("SELECT hash FROM events ORDER BY seq")][
            : head.size
        ]
        assert head.root == tree.tree_root(
            head.size,
            lambda level, index, leaves=leaves: tree.fold_complete(
                leaves[index << level : (index + 1) << level]
            ),
        )


def tiles_of(cli) -> list[str]:
    return sorted(
        os.path.join(where, name)
        for where, _, names in os.walk(os.path.join(cli.ledger, "tiles"))
        for name in names
    )


def test_the_tiles_are_a_cache_that_may_be_deleted(cli):
    cli.notes(600)
    cli.ok("checkpoint")
    before = tiles_of(cli)
    shutil.rmtree(os.path.join(cli.ledger, "tiles"))
    cli.notes(1)
    assert head_of(cli.ok("checkpoint")).size == 603
    assert len(tiles_of(cli)) == len(before)


def test_a_damaged_tile_is_found_and_the_checkpoint_is_the_right_one(cli):
    cli.notes(600)
    cli.ok("checkpoint")
    for path in tiles_of(cli):
        with open(path, "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
    cli.notes(1)
    damaged = head_of(cli.ok("checkpoint"))
    shutil.rmtree(os.path.join(cli.ledger, "tiles"))
    assert head_of(cli.ok("checkpoint")).root == damaged.root


def test_a_rewritten_history_is_not_signed(cli):
    cli.notes(20)
    cli.ok("checkpoint")
    cli.rewrite(5, b"cli:", b"bad:")
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, "")
    assert "rewritten" in err


def test_a_rewritten_history_with_a_rewritten_checkpoint_in_it_is_not_signed(cli):
    """The memory of what was signed lies outside the ledger."""
    cli.notes(20)
    cli.ok("checkpoint")
    cli.rewrite(5, b"cli:", b"bad:")
    cli.sql(
        "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), substr(CAST(data AS TEXT), 10, 64), hex(zeroblob(32))) AS BLOB) WHERE type = 'ledger.checkpointed'"
    )
    cli.sql("DELETE FROM snapshots")
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, ""), err


def test_a_changed_event_since_the_last_checkpoint_is_not_signed(cli):
    cli.notes(5)
    cli.ok("checkpoint")
    cli.notes(5)
    cli.sql(
        "UPDATE events SET envelope = CAST(replace(CAST(envelope AS TEXT), 'cli:', 'bad:') AS BLOB) WHERE seq = 10"
    )
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, "")
    assert "event 10" in err


def test_a_missing_event_is_not_signed_over(cli):
    cli.notes(5)
    cli.sql("DELETE FROM events WHERE seq = 3")
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, "")
    assert "event 3 is missing" in err


def test_a_deleted_tail_is_not_signed(cli):
    cli.notes(20)
    cli.ok("checkpoint")
    cli.sql("DELETE FROM events WHERE seq > 10")
    code, out, _ = cli("checkpoint")
    assert code in (3, 4)
    assert out == ""


def test_another_machine_without_the_key_does_not_sign(cli, tmp_path):
    cli.home(tmp_path / "elsewhere")
    code, out, err = cli("--ledger", cli.ledger, "checkpoint")
    assert (code, out) == (4, "")
    assert "key" in err


@pytest.mark.parametrize("content", ["", "x", "log\n4\n" + "A" * 43 + "=\n\n— log AAAAAAAA\n"])
def test_a_memory_of_checkpoints_that_was_changed_is_refused(cli, tmp_path, content):
    cli.notes(3)
    cli.ok("checkpoint")
    folder = os.path.join(str(tmp_path), "state", "gatebook", "checkpoints")
    with open(os.path.join(folder, os.listdir(folder)[0]), "w", encoding="utf-8") as file:
        file.write(content)
    code, out, _ = cli("checkpoint")
    assert code in (1, 3)
    assert out == ""


def test_no_key_lies_in_the_ledger(cli, tmp_path):
    cli.notes(3)
    cli.ok("checkpoint")
    keys = os.path.join(str(tmp_path), "state", "gatebook", "keys")
    seeds = []
    for where, _, names in os.walk(keys):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                seeds.append(file.read().strip())
    assert len(seeds) == 2
    for where, _, names in os.walk(cli.ledger):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                raw = file.read()
            assert not any(seed in raw or bytes.fromhex(seed.decode()) in raw for seed in seeds)


def restore(cli, saved: str) -> None:
    """Somebody puts an older copy of the ledger back."""
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        path = os.path.join(cli.ledger, name)
        if os.path.exists(path):
            os.unlink(path)
    shutil.copy(saved, cli.database)


def test_a_restored_ledger_signs_again_only_after_the_restore_is_on_record(cli):
    cli.notes(10)
    cli.ok("checkpoint")
    cli.ok("backup", "saved.db")
    cli.notes(10)
    lost = cli.ok("checkpoint", "--out", "lost.note")
    restore(cli, "saved.db")
    code, out, _ = cli("checkpoint")
    assert code in (3, 4)
    assert out == ""
    cli.ok("resume", "--as-successor", "--reason", "the disk died")
    cli.notes(20)
    head = head_of(cli.ok("checkpoint", "--out", "new.note"))
    assert head.size > head_of(lost).size
    assert cli("prove", "--consistency", "lost.note", "new.note")[0] == 3
    assert cli("verify", "--against", "lost.note")[0] == 3


def test_after_a_restore_a_rewritten_history_is_found_as_before(cli):
    cli.notes(10)
    cli.ok("backup", "saved.db")
    cli.notes(10)
    restore(cli, "saved.db")
    cli.ok("resume", "--as-successor", "--reason", "the disk died")
    cli.notes(5)
    cli.ok("checkpoint")
    cli.rewrite(14, b"cli:", b"bad:")
    cli.sql("DELETE FROM snapshots")
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, "")
    assert "rewritten" in err


@pytest.mark.parametrize("dies_at", [0, 1], ids=["before the old key is put away", "between the two renames"])
def test_a_rotation_that_died_after_its_commit_is_finished_by_the_next_command(cli, monkeypatch, dies_at):
    """The log names the new key: were its private half left under its spare name, nobody could sign any more."""
    cli.notes(3)
    rename, calls = os.rename, []

    def dies(source, target):
        if "/keys/" in str(source):
            if len(calls) == dies_at:
                raise KeyboardInterrupt
            calls.append(source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with contextlib.suppress(KeyboardInterrupt):
            cli("authority", "rotate", "checkpoint")
    note = cli.ok("checkpoint")
    metamorphic_log.checkpoint_verify(note, [cli.ok("checkpoint", "--key").strip()])
    (folder,) = glob.glob(os.path.join(os.environ["XDG_STATE_HOME"], "gatebook", "keys", "*"))
    assert sorted(name.count(".") for name in os.listdir(folder) if name.startswith("checkpoint")) == [0, 2]


def test_a_rotated_key_signs_on_and_old_notes_still_count(cli, tmp_path):
    cli.notes(3)
    cli.ok("checkpoint", "--out", "old.note")
    old_key = cli.ok("checkpoint", "--key").strip()
    cli.ok("authority", "rotate", "checkpoint")
    cli.notes(3)
    new = cli.ok("checkpoint", "--out", "new.note")
    new_key = cli.ok("checkpoint", "--key").strip()
    assert new_key != old_key
    metamorphic_log.checkpoint_verify(new, [new_key])
    assert cli("verify", "--against", "old.note")[0] == 0
    assert cli("verify", "--against", "new.note")[0] == 0
    cli.ok("prove", "--consistency", "old.note", "new.note", "--out", "growth.proof")
    cli.ok("prove", "2", "--to", "new.note", "--out", "two.proof")
    assert cli.json("check-proof", "two.proof")["promise"] == "attested"
    cli.home(tmp_path / "stranger")
    assert cli.json("check-proof", "two.proof", "--key", new_key)["promise"] == "attested"
    assert cli.json("check-proof", "growth.proof", "--key", new_key, "--key", old_key)["ok"]
    assert cli("check-proof", "two.proof", "--key", old_key)[0] == 3


@pytest.mark.parametrize("content", [b"garbage\n", b"\xff\xfe", b""])
def test_a_damaged_memory_of_checkpoints_is_named(cli, content):
    cli.notes(2)
    cli.ok("checkpoint")
    cli.notes(2)
    folder = os.path.join(os.environ["XDG_STATE_HOME"], "gatebook", "checkpoints")
    (name,) = os.listdir(folder)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)
    code, out, err = cli("checkpoint")
    assert (code, out) == (3, "")
    assert os.path.join(folder, name) in err
