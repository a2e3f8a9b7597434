"""Erased is erased: no file of the ledger, its views, later exports or backups holds any piece of it; all proofs stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
import stories

SIZES = {"small": 200, "pages": 100_000, "artifact": 700_000}


def marked(name: str, size: int) -> tuple[str, list[bytes]]:
    """Text of about `size` characters made of marks that occur nowhere else, and the marks."""
    marks = [f"<{name}:{os.urandom(6).hex()}>" for _ in range(size // 100 + 1)]
    return "".join(mark.ljust(100, ".") for mark in marks), [mark.encode() for mark in marks]


def files_with(folder: str, marks: list[bytes], but: tuple[str, ...] = ()) -> list[str]:
    """The files below `folder` that hold any of `marks`."""
    form = re.compile(rb"<[a-z]+:[0-9a-f]{12}>")  # of `marked`: thousands are looked for in one pass
    many, others = set(filter(form.fullmatch, marks)), [mark for mark in marks if not form.fullmatch(mark)]
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            if name in but:
                continue
            with open(path, "rb") as file:
                raw = file.read()
            if not many.isdisjoint(form.findall(raw)) or any(mark in raw for mark in others):
                found.append(os.path.relpath(path, folder))
    return found


@pytest.fixture
def erased(cli):
    """A ledger with contents of every size in every place, then redacted: `marks`, `seqs`, proofs made before."""
    cli.notes(30)
    cli.marks, cli.seqs, cli.salts = [], [], []
    for name, size in SIZES.items():
        text, marks = marked(name, size)
        cli.write(f"{name}.txt", text)
        cli.seqs.append(cli.note(1, content=f"@{name}.txt"))
        cli.marks += marks
        os.unlink(f"{name}.txt")
    text, marks = marked("words", 150)
    story = stories.plan_run(cli)
    cli.seqs.append(cli.record(stories.RUN, "plan.proposed", stories.complete("plan.proposed", {}), text))
    cli.marks += marks
    cli.story = story
    cli.notes(30)
    # Everything that could copy content has run: views, full text, checkpoint, tiles, proofs.
    assert cli.json(
        "query",
        f"SELECT count(*) AS n FROM events WHERE content LIKE '%{marks[0].decode()}%'",
        "--format",
        "json",
    )
    cli.ok("checkpoint", "--out", "before.note")
    cli.proofs = {seq: cli.ok("prove", seq, "--to", "before.note") for seq in (*cli.seqs, 3)}
    cli.salts = [
        row[0] for row in cli.plain(f"SELECT salt FROM events WHERE seq IN ({','.join(map(str, cli.seqs))})")
    ]
    cli.before = set(files_with(cli.folder, cli.marks))
    cli.reply = cli.json("redact", *cli.seqs, "--reason", "asked to by the person")
    return cli


def test_the_contents_were_on_disk_before_in_all_these_places(erased):
    names = {os.path.basename(path) for path in erased.before}
    assert "ledger.db" in names or "ledger.db-wal" in names
    assert "views.db" in names
    assert any("artifacts" in path for path in erased.before)


def test_no_file_holds_any_piece_or_salt_afterwards(erased):
    assert erased.reply["redacted"] == sorted(erased.seqs)
    assert erased.reply["purged"] is True
    assert all(len(salt) == 16 for salt in erased.salts)
    assert files_with(erased.folder, erased.marks + erased.salts) == []


def test_neither_do_views_exports_and_backups_made_later(erased):
    erased.ok("query", "SELECT count(*) FROM events")
    erased.ok("export", "--out", "later.jsonl")
    erased.ok("backup", "later.db")
    erased.ok("timeline", "--html", "later.html")
    for path in ("later.jsonl", "later.db", "later.html"):
        assert os.path.getsize(path) > 1000
    assert files_with(erased.folder, erased.marks + erased.salts) == []


def test_the_chain_replay_and_the_old_checkpoint_still_hold(erased):
    assert erased.json("verify", "--json")["ok"]
    assert erased.json("verify", "--against", "before.note", "--json")["ok"]
    assert erased.json("verify", "--since-checkpoint", "before.note", "--json")["ok"]


def test_every_proof_made_before_checks_and_is_made_again_the_same(erased):
    for seq, proof in erased.proofs.items():
        erased.write("p.proof", proof)
        assert erased.json("check-proof", "p.proof")["seq"] == seq
        assert erased.ok("prove", seq, "--to", "before.note") == proof


def test_each_view_says_where_the_redaction_lies(erased):
    seq = erased.seqs[0]
    assert "redacted" in erased.ok("show", seq)
    assert "redacted" in erased.ok("log", "--since", seq, "-n", "1")
    rows = json.loads(erased.ok("query", "redactions", "--format", "json"))
    assert [row["event"] for row in rows] == sorted(erased.seqs)
    assert [
        row["redacted"]
        for row in json.loads(
            erased.ok("query", f"SELECT redacted FROM events WHERE seq = {seq}", "--format", "json")
        )
    ] == [1]
    assert "redacted" in erased.ok("trace", seq)
    assert "▒ redaction" in erased.ok("timeline", "ledger")


def test_what_was_spent_stays_spent(erased):
    """A receipt's events have no erasable part that its use hangs on: redacting words gives no authority back."""
    from ledger.access import open_ledger
    from projections.engine import state_of

    ledger = open_ledger(erased.ledger)
    state, _ = state_of(ledger, stories.RECEIPT)
    ledger.close()
    assert state.uses == {"assignment.submit_text": 1}
    assert erased("redact", erased.story["consumed"], "--reason", "r")[0] == 1


def test_redacting_again_changes_nothing(erased):
    head = erased.json("verify", "--json")["head"]
    again = erased.json("redact", erased.seqs[0], "--reason", "asked again")
    assert (again["redacted"], again["already"]) == ([], [erased.seqs[0]])
    assert erased.json("verify", "--json")["head"] == head


def test_what_is_gone_without_a_record_is_redacted_on_record(cli):
    """Others, to whom the content is not lost, erase it by the record; until then it was nobody's redaction."""
    import apsw

    seq = cli.json("append", "--stream", "x-notes/1", "--type", "x.note", "--content", "a name")["seq"]
    connection = apsw.Connection(os.path.join(cli.ledger, "ledger.db"))
    connection.execute("UPDATE events SET content = NULL, salt = NULL WHERE seq = ?", (seq,))
    connection.close()
    assert cli("verify")[0] == 3
    asked = cli.json("redact", seq, "--reason", "r")
    assert (asked["seq"], asked["redacted"], asked["already"]) == (seq + 1, [seq], [])
    cli.ok("verify")


def test_its_idempotency_key_does_not_bring_the_content_back(cli):
    call = (
        "append",
        "--stream",
        "x-notes/1",
        "--type",
        "x.note",
        "--content",
        "a name",
        "--idempotency-key",
        "k",
    )
    seq = cli.json(*call)["seq"]
    cli.ok("redact", seq, "--reason", "r")
    assert cli(*call)[0] == 5


def test_a_reader_that_is_in_the_way_is_said_and_the_same_call_finishes(cli):
    text, marks = marked("held", 100_000)
    cli.write("held.txt", text)
    seq = cli.note(1, content="@held.txt")
    os.unlink("held.txt")
    code = (
        "import sys, sqlite3; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN');"
        "c.execute('SELECT count(*) FROM events').fetchone(); print('reading', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, cli.database], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout.readline() == "reading\n"
    status, out, _ = cli("redact", seq, "--reason", "r")
    assert (status, json.loads(out)["purged"]) == (75, False)
    reader.stdin.close()
    reader.wait()
    reader.stdout.close()
    assert cli.json("redact", seq, "--reason", "r")["purged"] is True
    assert files_with(cli.folder, marks) == []


def killed_while(condition, *command):
    """Run a command as a process and kill it as soon as `condition` holds."""
    process = subprocess.Popen([sys.executable, "-m", "commands", *command], stdout=subprocess.DEVNULL)
    while process.poll() is None and not condition():
        time.sleep(0.001)
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_views_whose_maker_was_killed_hold_nothing_of_what_is_erased_later(cli, options):
    text, marks = marked("half", 400_000)
    line = json.dumps({"stream": "x-notes/1", "type": "x.note", "content": text}) + "\n"
    cli.write("many.jsonl", line * 60)
    last = cli.json("append", "--batch", "many.jsonl")["events"][-1]["seq"]
    cli.ok("rebuild")
    os.unlink("many.jsonl")
    half = f"{cli.ledger}/views.db{'.check' if options else ''}.new"
    killed_while(
        lambda: os.path.exists(half) and os.path.getsize(half) > 4_000_000,
        "--ledger",
        cli.ledger,
        "rebuild",
        *options,
    )
    assert os.path.basename(half) in map(os.path.basename, files_with(cli.ledger, marks))
    assert cli.json("redact", *range(last - 59, last + 1), "--reason", "r")["purged"] is True
    assert files_with(cli.folder, marks) == []


def test_an_artifact_whose_writer_was_killed_goes_with_what_is_erased(cli):
    """It, and the file that was to become it, are named by no event; those of other events stay."""
    text, marks = marked("whole", 700_000)
    cli.write("whole.txt", text)
    seq, other = cli.note(1, content="@whole.txt"), cli.note(1, content="@whole.txt")
    os.unlink("whole.txt")
    (kept,) = (name for name in os.listdir(f"{cli.ledger}/artifacts") if name in cli.ok("show", other))
    for name in ("1" * 64, f".{'1' * 64}.99.99.tmp"):
        cli.write(f"{cli.ledger}/artifacts/{name}", text)
    cli.ok("redact", seq, "--reason", "r")
    assert os.listdir(f"{cli.ledger}/artifacts") == [kept]
    assert cli("verify")[0] == 0


def test_a_folder_among_the_artifacts_keeps_no_erasure_from_being_finished(cli):
    text, marks = marked("beside", 700_000)
    cli.write("whole.txt", text)
    seq = cli.note(1, content="@whole.txt")
    os.unlink("whole.txt")
    os.mkdir(f"{cli.ledger}/artifacts/mine")
    assert cli.json("redact", seq, "--reason", "r")["purged"] is True
    assert files_with(cli.folder, marks) == []
    assert os.listdir(f"{cli.ledger}/artifacts") == ["mine"]


def test_a_journal_that_a_reader_removes_first_is_removed(tmp_path, monkeypatch):
    from ledger.leftovers import remove_database

    (tmp_path / "views.db").write_bytes(b"x")
    monkeypatch.setattr(os.path, "lexists", lambda _path: True)
    remove_database(str(tmp_path / "views.db"))
    assert os.listdir(tmp_path) == []


def test_more_events_than_one_record_can_name_are_erased_in_one_piece(cli, monkeypatch):
    from commands import redact

    monkeypatch.setattr(redact, "AT_ONCE", 2)
    for _ in range(5):
        cli.ok("append", "--stream", "x-n/1", "--type", "x.n.a", "--content", "gone")
    reply = json.loads(cli.ok("redact", "2", "3", "4", "5", "6", "--reason", "asked to"))
    assert (reply["seq"], reply["redacted"]) == (7, [2, 3, 4, 5, 6])
    records = [json.loads(line) for line in cli.ok("log", "--type", "ledger.redacted", "--json").splitlines()]
    assert [record["data"]["events"] for record in records] == [[2, 3], [4, 5], [6]]
    assert {record["content"] for record in records} == {"asked to"}
    assert json.loads(cli.ok("replay", "--json"))["ok"]


def test_a_record_of_the_most_events_fits_into_its_data():
    from commands.redact import AT_ONCE
    from ledger.canonical import MAX_SAFE, encode
    from ledger.event import MAX_DATA

    assert len(encode({"events": [MAX_SAFE] * AT_ONCE})) <= MAX_DATA
