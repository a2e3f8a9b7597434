"""The views hold what the log says, whether they are made at once, from many events, or caught up one by one."""

import os
import sqlite3

import pytest

from ledger.access import create_ledger
from ledger.errors import Tampered, Unavailable
from ledger.event import Draft, Origin
from projections import views

ORIGIN = Origin("cli:test", "append")
# Texts and numbers beside NULL, and next to what stands for it while a row is inserted.
GIVEN = [
    {},
    {"correlation": "0", "causation": 1, "idempotency_key": "0", "content": b""},
    {"content": b"0"},
    {"content": b"zebras \x00 behind"},
    {"correlation": "c", "content": "geschätzt".encode()},
    {"causation": 1},
    {"idempotency_key": "k"},
]


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """An empty ledger."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made, _ = create_ledger(str(tmp_path / "ledger"), ORIGIN)
    yield made
    made.close()


def append(ledger, count):
    """So many events, with and without each member that may be absent; keys are used once."""
    drafts, begun = [], ledger.store.head().seq > 1
    for number in range(count):
        given = dict(GIVEN[number % len(GIVEN)])
        if number >= len(GIVEN) or begun:
            given.pop("idempotency_key", None)
        drafts.append(
            Draft(f"x-job/{number % 3}", "x.job.done", b'{"n":%d,"word":"w%d"}' % (number, number), **given)
        )
    ledger.append(drafts, ORIGIN)


def said(database):
    """Every row, with the types of the cells that may be NULL."""
    cells = "correlation, causation, idempotency_key, content"
    kinds = ", ".join(f"typeof({cell})" for cell in cells.split(", "))
    return database.execute(f"SELECT *, {kinds} FROM events ORDER BY seq").fetchall()


def found(database, word):
    """The events that full text finds for `word`."""
    return [
        row[0]
        for row in database.execute(
            "SELECT rowid FROM events_fts WHERE events_fts MATCH ? ORDER BY rowid", (word,)
        )
    ]


@pytest.fixture
def small(monkeypatch):
    """Every step that is taken for many events is taken for few."""
    for name, value in (("READ", 23), ("TEXTS", 31), ("LARGE", 50), ("FEW", 40), ("WAITING", 2)):
        monkeypatch.setattr(views, name, value)


def test_views_of_many_events_are_those_caught_up_one_by_one(ledger, small):
    for _ in range(0, 180, 9):
        append(ledger, 9)
        with views.open_views(ledger) as stepwise:
            pass
    with views.open_views(ledger) as stepwise:
        rows, zebras = said(stepwise), found(stepwise, "zebras")
    with views.locked(ledger):
        assert views.build(ledger, views.path_of(ledger)) == 181
    with views.open_views(ledger) as anew:
        assert said(anew) == rows
        assert found(anew, "zebras") == zebras != []
        assert anew.execute("SELECT seq FROM position").fetchall() == [(181,)]


def test_what_an_event_does_not_have_is_null_and_what_it_has_is_kept_as_it_is(ledger):
    append(ledger, 60)
    with views.open_views(ledger) as database:
        got = {
            row[0]: row[1:]
            for row in database.execute(
                "SELECT seq, correlation, causation, idempotency_key, content FROM events WHERE seq <= 8"
            )
        }
    assert got[2] == (None, None, None, None)
    assert got[3] == ("0", 1, "0", "")
    assert [got[seq][3] for seq in (4, 5, 6)] == ["0", "zebras \x00 behind", "geschätzt"]
    assert got[7] == (None, 1, None, None)
    assert got[8] == (None, None, "k", None)


def test_full_text_of_views_made_anew_is_one_segment_and_grows_as_sqlite_has_it(ledger, small):
    append(ledger, 120)
    with views.open_views(ledger) as database:
        assert database.execute("SELECT count(DISTINCT segid) FROM events_fts_idx").fetchall() == [(1,)]
        options = dict(database.execute("SELECT k, v FROM events_fts_config").fetchall())
        assert (options["automerge"], options["crisismerge"]) == (4, 16)
        database.execute("INSERT INTO events_fts(events_fts, rank) VALUES ('integrity-check', 1)")
    append(ledger, 1)
    with views.open_views(ledger) as database:
        assert found(database, "w0") == [2, 122]
        database.execute("INSERT INTO events_fts(events_fts, rank) VALUES ('integrity-check', 1)")


@pytest.mark.parametrize(("events", "size"), [(20, 4096), (60, 16_384)])
def test_only_views_of_many_events_have_large_pages(ledger, small, events, size):
    append(ledger, events)
    with views.open_views(ledger) as database:
        assert database.execute("PRAGMA page_size").fetchall() == [(size,)]


@pytest.mark.parametrize("column", ["stream", "type", "actor", "recorded_at", "correlation", "causation"])
def test_what_events_are_asked_for_by_is_indexed(ledger, column):
    append(ledger, 3)
    with views.open_views(ledger) as database:
        plan = database.execute(
            f"EXPLAIN QUERY PLAN SELECT seq FROM events WHERE {column} = ?", ["x"]
        ).fetchall()
        assert f"idx_events_{column} " in plan[0][3]


def test_a_log_that_cannot_be_read_to_its_end_is_damage_and_leaves_no_views(ledger, small, monkeypatch):
    append(ledger, 60)
    monkeypatch.setattr(
        views, "RANGE_SQL", "SELECT abs(-9223372036854775808) FROM events WHERE seq BETWEEN ? AND ?"
    )
    with pytest.raises(Tampered, match="integer overflow"):
        views.catch_up(ledger)
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(f"file:{views.path_of(ledger)}?mode=ro", uri=True)


def test_where_views_cannot_be_kept_it_says_what_to_ask_instead(ledger, monkeypatch):
    def full(*_):
        raise OSError(30, "Read-only file system", "views.lock")

    monkeypatch.setattr(views, "hold_views", full)
    with pytest.raises(Unavailable, match="Read-only file system.*gatebook backup"):
        views.catch_up(ledger)


@pytest.mark.parametrize("stream", ["run/1-2026-12-01", "ledger", "refusal/2026-12-01", "future/1"])
@pytest.mark.parametrize("standing", [False, True])
def test_the_views_stop_at_what_they_do_not_know(ledger, stream, standing):
    """F67: a view that skipped an event would look whole."""
    if standing:
        views.catch_up(ledger).close()
    ledger.append([Draft(stream, "run.exploded", b"{}")], ORIGIN)
    with pytest.raises(Tampered, match=r"^event \d+: unknown event type run\.exploded: upgrade"):
        views.catch_up(ledger)
    assert (views.path_of(ledger) in [entry.path for entry in os.scandir(ledger.folder)]) is standing


@pytest.mark.parametrize(("stream", "type"), [("ledger", "ledger.redacted"), ("run/1-x", "run.reported")])
def test_the_views_stop_at_a_newer_schema_version(ledger, stream, type):
    ledger.append([Draft(stream, type, b"{}", v=9)], ORIGIN)
    with pytest.raises(Tampered, match=f"event 2: {type} has schema version 9"):
        views.catch_up(ledger)
