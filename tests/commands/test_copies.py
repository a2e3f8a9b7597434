"""Export, import, backup, resume, trust: copies of a ledger, and which of them goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat

import pytest
from program import ROOT, call

from ledger.access import create_ledger, open_ledger
from ledger.errors import Unavailable
from ledger.event import Draft, Origin

ORIGIN = Origin("cli:tester", "test")
NOTE = ("append", "--stream", "x-n/1", "--type", "x.n.added")


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    """A project whose ledger has every shape of event."""
    monkeypatch.chdir(tmp_path)
    call("init").json()
    ledger = open_ledger(str(tmp_path))
    ledger.append(
        [
            Draft("x-n/1", "x.n.added", b'{"n":1}', content=b"words"), Draft("x-n/\u00fc", "x.n.added", '{"\u00fc":[1e-7,10000000000000000]}'.encode(), content=b"\x00\xff binary"),
            Draft("x-n/1", "x.n.added", b"{}", content=b"", correlation="c", causation=2, idempotency_key="k"), Draft("x-n/1", "x.n.added", b"{}", content=b"z" * 600_000),
            Draft("x-n/1", "x.n.added", ('{"a":' * 63 + "{}" + "}" * 63).encode()), Draft("x-n/1", "x.n.added", b"{}", content=b"erase me"),
        ],
        ORIGIN,
    )  # fmt: skip
    ledger.close()
    assert call("redact", "7", "--reason", "asked to").code == 0
    return tmp_path


def head(folder):
    ledger = open_ledger(str(folder))
    found = ledger.store.head()
    ledger.close()
    return found.seq, found.hash.hex()


def exported(here):
    done = call("export", "--out", "l.jsonl").json()
    assert done["events"] == 8
    return (here / "l.jsonl").read_bytes()


def test_an_import_of_an_export_is_the_same_ledger_read_only(here):
    exported(here)
    reply = call("import", "l.jsonl", "--to", "a").json()
    assert (reply["events"], reply["head"]["hash"]) == (8, head(here)[1])
    assert head(here / "a") == head(here)
    original, archive = open_ledger(str(here)), open_ledger(str(here / "a"))
    for one, two in zip(original.store.read(), archive.store.read(), strict=True):
        assert (one.envelope, one.data, one.salt, one.hash) == (two.envelope, two.data, two.salt, two.hash)
        assert original.store.artifact(one) == archive.store.artifact(two)
    original.close()
    archive.close()
    assert call("--ledger", "a", "verify").code == 0
    call("--ledger", "a", *NOTE).refused(4, "read-only", "resume --as-successor")
    call("--ledger", "a", "export", "--out", "again.jsonl").json()
    assert (here / "again.jsonl").read_bytes() == (here / "l.jsonl").read_bytes()
    assert stat.S_IMODE(os.stat("l.jsonl").st_mode) == 0o600


LINES = 9  # the header and eight events


@pytest.mark.parametrize("number", [1, 2, 5, LINES])
@pytest.mark.parametrize(
    "bad",
    [
        b"{", b"", b"null", b"[]", b"{}", b'{"envelope":{},"data":{},"hash":""}', b"\xff", b'{"a":1,"a":1}', b"not json at all", b'{"envelope":{"seq":2},"data":[],"hash":"00"}',
        b'{"gatebook":"export","format":2,"ledger_id":"","events":1,"head":{"seq":1,"hash":""}}', b"[" * 100_000,
    ],
    ids=lambda bad: repr(bad[:30]),
)  # fmt: skip
def test_a_bad_line_in_an_import_is_named_and_nothing_is_written(here, number, bad):
    """F26"""
    lines = exported(here).splitlines(keepends=True)
    lines[number - 1] = bad + b"\n"
    (here / "bad.jsonl").write_bytes(b"".join(lines))
    before = sorted(os.listdir(here))
    done = call("import", "bad.jsonl", "--to", "a").refused(1, f"line {number}")
    assert len(done.err) < 400
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:-1], lambda lines: lines[:3] + lines[4:], lambda lines: [*lines, lines[-1]], lambda lines: lines[:1], lambda lines: [], lambda lines: [lines[0], *lines[2:], lines[1]],
        lambda lines: [*lines[:-1], lines[-1][:-1]], lambda lines: [*lines[:-1], lines[-1][:50]],
        lambda lines: [*lines[:2], lines[2].replace(b'"words"', b'"wards"'), *lines[3:]], lambda lines: [*lines[:2], lines[2].replace(b'"n":1', b'"n":2'), *lines[3:]],
        lambda lines: [lines[0].replace(b'"events":8', b'"events":7'), *lines[1:]], lambda lines: [lines[0].replace(b'"hash":"', b'"hash":"00'), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace(b'"actor":"cli:tester"', b'"actor":"cli:somebody"'), *lines[3:]],
    ],
)  # fmt: skip
def test_an_export_that_is_not_whole_or_not_as_it_was_makes_no_archive(here, damage):
    lines = exported(here).splitlines(keepends=True)
    (here / "bad.jsonl").write_bytes(b"".join(damage(lines)))
    before = sorted(os.listdir(here))
    done = call("import", "bad.jsonl", "--to", "a")
    assert done.code in (1, 3), done.err
    assert done.err.count("\n") == 1
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize("content", [b"\0" * 600_000, b'"' * 600_000, "\u00fc\n".encode() * 200_000])
def test_a_large_text_never_makes_a_line_that_no_import_takes(here, content):
    """64 MiB of control characters would be six times as long as JSON text, and over the limit of a line."""
    ledger = open_ledger(str(here))
    ledger.append([Draft("x-n/1", "x.n.added", content=content)], ORIGIN)
    ledger.close()
    call("export", "--out", "l.jsonl").json()
    assert len((here / "l.jsonl").read_bytes().splitlines()[-1]) < len(content) * 3 // 2
    call("import", "l.jsonl", "--to", "a").json()
    assert head(here / "a") == head(here)


def test_an_import_never_replaces_anything(here):
    exported(here)
    (here / "a").mkdir()
    call("import", "l.jsonl", "--to", "a").refused(5)
    call("export", "--out", "l.jsonl").refused(5)
    call("import", "missing.jsonl", "--to", "b").refused(1)


def test_what_was_redacted_is_in_no_export_and_no_backup(here):
    assert b"erase me" not in exported(here)
    call("backup", "b.db").json()
    assert b"erase me" not in (here / "b.db").read_bytes()


def test_an_archive_whose_resume_fails_stays_read_only(here, monkeypatch):
    """On the machine that made it too, and at whatever moment it fails."""
    call("export", "--out", "e.jsonl")
    call("import", "e.jsonl", "--to", "copy")

    def fail(*_args, **_more):
        raise Unavailable("no room")

    with monkeypatch.context() as patch:
        patch.setattr("projections.engine.submit", fail)
        assert call("--ledger", "copy", "resume", "--as-successor", "--reason", "moved").code == 75
    assert open_ledger("copy").archive
    call("--ledger", "copy", "append", "--stream", "x-n/1", "--type", "x.n.added").refused(4, "read-only")


def test_an_archive_goes_on_only_as_a_successor_and_what_was_open_is_void(here):
    exported(here)
    call("import", "l.jsonl", "--to", "a").json()
    call("--ledger", "a", "resume", "--reason", "r").refused(2, "--as-successor")
    call("--ledger", "a", "resume", "--as-successor").refused(2, "--reason")
    reply = call("--ledger", "a", "resume", "--as-successor", "--reason", "moved").json()
    assert reply["seq"] == 9
    assert call("--ledger", "a", *NOTE).json()["seq"] == 10
    assert call("--ledger", "a", "verify").code == 0
    assert call("--ledger", "a", "replay").code == 0


def test_a_history_that_links_and_was_never_lawful_stays_an_archive(here):
    """Whoever writes a file can link events well; a successor would be bound to what they say."""
    ledger = open_ledger(str(here))
    ledger.append([Draft("receipt/r1", "receipt.revoked", b"{}")], ORIGIN)
    ledger.close()
    call("export", "--out", "l.jsonl").json()
    call("import", "l.jsonl", "--to", "a").json()
    assert call("--ledger", "a", "verify").code == 0
    refused = call("--ledger", "a", "resume", "--as-successor", "--reason", "moved")
    refused.refused(3, "not-lawful, event 9", "`gatebook replay`")
    call("--ledger", "a", *NOTE).refused(4, "read-only")


def test_a_ledger_that_is_whole_has_nothing_to_resume(here):
    call("resume", "--as-successor", "--reason", "r").refused(4, "nothing to resume")
    assert head(here)[0] == 8


def test_a_restored_backup_refuses_writes_until_it_is_resumed(here):
    call("backup", "b.db").json()
    assert stat.S_IMODE(os.stat("b.db").st_mode) == 0o600
    call(*NOTE).json()
    folder = here / ".gatebook"
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        if (folder / name).exists():
            os.unlink(folder / name)
    shutil.copy("b.db", folder / "ledger.db")
    for _ in range(2):
        call(*NOTE).refused(4, "truncated")
    call("trust").refused(4, "truncated")
    done = call("verify", "--json")
    assert (done.code, json.loads(done.out)["verdict"]) == (3, "truncated")
    reply = call("resume", "--as-successor", "--reason", "disk died").json()
    assert reply["lost"]["seq"] == 9
    assert call(*NOTE).json()["seq"] == 10
    assert call("verify").code == 0


def test_a_backup_is_consistent_while_others_write(here):
    """F16: four writers go on; the copy verifies, and so does the live file, each time."""
    spec = importlib.util.spec_from_file_location(
        "appenders", os.path.join(ROOT, "tools", "soak", "appenders.py")
    )
    appenders = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(appenders)
    writers = [appenders.Writer(str(here / ".gatebook"), number, 100) for number in range(4)]
    for writer in writers:
        writer.start()
    rounds = 0
    while rounds < 2 or any(writer.process.poll() is None for writer in writers):
        reply = call("backup", f"b{rounds}.db").json()
        assert reply["head"]["seq"] >= 8
        found = json.loads(call("verify", "--json").out)
        assert found["ok"], found
        rounds += 1
        if rounds > 40:
            break
    for writer in writers:
        writer.wait()
        assert writer.errors == []
    assert head(here)[0] == 8 + 400


def test_a_backup_never_replaces_a_file_and_needs_its_folder(here):
    (here / "b.db").write_text("mine")
    call("backup", "b.db").refused(5)
    assert (here / "b.db").read_text() == "mine"
    done = call("backup", "nowhere/b.db")
    assert done.code == 75
    assert done.err.count("\n") == 1


# -- a ledger of an earlier release


GOLDEN = os.path.join(os.path.dirname(__file__), "..", "ledger", "golden")


@pytest.mark.parametrize("name", sorted(os.listdir(GOLDEN)))
def test_a_golden_ledger_of_each_release_opens_verifies_and_takes_writes(tmp_path, home, name):
    """F73, F17: made once by that release and never again; hashes unchanged."""
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as file:
        stated = json.loads(file.readline())
    call("import", os.path.join(GOLDEN, name), "--to", str(tmp_path / "a")).json()
    assert head(tmp_path / "a") == (stated["head"]["seq"], stated["head"]["hash"])
    found = json.loads(call("--ledger", str(tmp_path / "a"), "replay", "--json").out)
    assert found["ok"], found
    assert call("--ledger", str(tmp_path / "a"), "rebuild", "--check").code == 0
    call("--ledger", str(tmp_path / "a"), "resume", "--as-successor", "--reason", "r").json()
    assert call("--ledger", str(tmp_path / "a"), *NOTE).code == 0


def test_ledgers_do_not_know_each_others_trust(here, tmp_path):
    other, _ = create_ledger(str(tmp_path / "other" / ".gatebook"), ORIGIN)
    other.close()
    assert other.id != json.loads((here / "home" / "state" / "gatebook" / "ledgers.json").read_text()).keys()
    shutil.rmtree(here / ".gatebook")
    shutil.copytree(other.folder, here / ".gatebook")
    call(*NOTE).refused(4, "gatebook trust")
    call("trust").json()
    assert call(*NOTE).json()["seq"] == 2
