"""Reading a ledger: log, show, state, diff, views; at any moment, at any size, in any locale."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from program import ROOT, call, finish, start

from commands.views import check
from ledger.access import create_ledger, open_ledger
from ledger.event import Draft, Origin
from projections import views
from projections.times import parse_time, print_time

ORIGIN = Origin("cli:tester", "test")
NOTE = ("append", "--stream", "x-n/1", "--type", "x.n.added")
START = 1_780_000_000_000_000


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("init").json()
    return tmp_path


def fail(reason="rate_limit", executor="native"):
    return call(
        "--ledger",
        ".gatebook",
        "route",
        "record-failure",
        "--provider",
        "p",
        "--executor",
        executor,
        "--reason",
        reason,
        "--state",
        "s.json",
    ).json()


def lines(*words):
    done = call(*words)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def seqs(*words):
    return [event["seq"] for event in lines("log", "--json", *words)]


# -- log


@pytest.fixture
def timed(tmp_path, home, monkeypatch):
    """Six events, one a second; then one whose clock had run back."""
    monkeypatch.chdir(tmp_path)
    now = [START]
    ledger, _ = create_ledger(str(tmp_path / ".gatebook"), ORIGIN, now=lambda: now[0])
    for n in range(2, 7):
        now[0] = START + (n - 1) * 1_000_000
        ledger.append(
            [
                Draft(
                    "x-n/1" if n % 2 else "x-m/1",
                    f"x.n.{'odd' if n % 2 else 'even'}",
                    b'{"n":%d}' % n,
                    correlation="c" if n == 3 else None,
                    content=b"needle" if n == 4 else None,
                )
            ],
            Origin(f"cli:u{n}", "t"),
        )
    now[0] = START - 3_600_000_000
    ledger.append([Draft("x-n/1", "x.n.late", b"{}")], ORIGIN)
    ledger.close()
    return ledger


def moment(seconds, us=0):
    return (
        print_time(START + seconds * 1_000_000).replace("Z", f".{us:06d}Z")
        if us
        else print_time(START + seconds * 1_000_000)
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7]), (["-n", "2"], [6, 7]), (["-n", "0"], []), (["-n", "99"], [1, 2, 3, 4, 5, 6, 7]), (["--reverse", "-n", "2"], [7, 6]), (["--reverse"], [7, 6, 5, 4, 3, 2, 1]),
        (["--since", "3", "--until", "4"], [3, 4]), (["--since", "9"], []), (["--until", "0"], []), (["--since", "0"], [1, 2, 3, 4, 5, 6, 7]),
        (["--stream", "x-n/1"], [3, 5, 7]), (["--stream", "x-*"], [2, 3, 4, 5, 6, 7]), (["--stream", "x-?/1", "-n", "1"], [7]), (["--type", "x.n.o*"], [3, 5]), (["--type", "x.n.odd", "--stream", "x-m/1"], []),
        (["--actor", "cli:u[2-4]"], [2, 3, 4]), (["--actor", "cli:u[!2-4]"], [5, 6]), (["--actor", "cli:u[^]2-4]"], [5, 6]), (["--type", "x.n.[!]e]*"], [3, 5, 7]),
        (["--grep", "[[]*needle"], [4]), (["--correlation", "c"], [3]), (["--grep", "needle"], [4]), (["--grep", '"n":[56]'], [5, 6]), (["--stream", "x-n/1", "--reverse", "-n", "2"], [7, 5]), (["--stream", "ledger"], [1]),
        (["--since", moment(1), "--until", moment(2)], [2, 3]), (["--since", "2026-05-28T22:26:41+02:00", "-n", "1"], [7]), (["--until", "1999-01-01T00:00:00Z"], []), (["--since", "2099-01-01T00:00:00Z"], []),
    ],
)  # fmt: skip
def test_log_gives_what_is_asked_for_oldest_first(timed, words, expected):
    """F75: an event whose own clock lies in the past stands where it was recorded."""
    assert seqs(*words) == expected


@pytest.mark.parametrize("words", [["--since", "2026-05-28T22:26:41"], ["--since", "x"], ["--until", "-1"], ["--since", "1e3"], ["-n", "-1"], ["-n", "9007199254740992"], ["--grep", "("], ["--grep", "a{99999999999}"], ["--grep", "(" * 5000 + ")" * 5000], ["--follow", "--reverse"], ["--since", "1" * 4301], ["--since", ""]])  # fmt: skip
def test_a_bad_question_is_one_line_and_exit_2(timed, words):
    """F32"""
    call("log", *words).refused(2)


@pytest.mark.slow
def test_follow_gives_every_event_once_while_others_write(here):
    """F27"""
    follower = start("log", "--follow", "--json", "--since", "2", cwd=here)
    writers = []
    one = '{"stream":"x-n/1","type":"x.n.added","data":{"a":"' + "z" * 5000 + '"}}\n'
    (here / "b").write_text(one * 40)
    for _ in range(3):
        writers += [start("append", "--batch", "b", cwd=here) for _ in range(2)]
        time.sleep(0.05)
    for writer in writers:
        assert finish(writer).code == 0
    got = []
    while len(got) < 240:
        line = follower.stdout.readline()
        assert line.endswith(b"\n")
        got.append(json.loads(line)["seq"])
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=30)
    assert got == list(range(2, 242))


def test_brackets_of_a_glob_are_the_shells(here):
    for name in ("[", "[a", "!", "a"):
        call("append", "--stream", f"x-n/{name}", "--type", "x.n.a").json()
    for glob, expected in (
        ("x-n/[", [2]),
        ("x-n/[[]", [2]),
        ("x-n/[a*", [3]),
        ("x-n/[!a]", [2, 4]),
        ("x-n/[a!]", [4, 5]),
    ):
        assert seqs("--stream", glob) == expected, glob


def test_follow_shows_nothing_from_before_the_moment_it_was_given(here, monkeypatch):
    from commands import log

    waited = []

    def wait():
        if len(waited) == 2:
            raise KeyboardInterrupt
        waited.append(call(*NOTE).json())

    monkeypatch.setattr(log, "_waiting", lambda _ledger, _context: wait)
    assert call("log", "--follow", "--since", "2099-01-01T00:00:00Z").out == ""
    waited.clear()
    assert call("log", "--follow", "--since", "5").out.count("\n") == 1


def test_text_of_others_cannot_steer_the_terminal(here):
    call(*NOTE, "--data", '{"a":"\\u001b[2J\\r\\u009b"}', "--content", "\x1b]0;title\x07\n\x9b31m").json()
    call("--actor", "cli:\u202e", "append", "--stream", "x-n/\u202e\u2028", "--type", "x.n.a").json()
    for words in (["log"], ["query", "SELECT content, data FROM events"]):
        done = call(*words)
        assert done.code == 0, done.err
        assert not any(c in done.out for c in "\x1b\x07\x9b\r\u202e\u2028"), words


# -- show


def test_show_finds_by_number_and_by_hash(here):
    call(*NOTE, "--content", "w").json()
    reply = call(*NOTE, "--causation", "2").json()
    for name in ("3", reply["hash"], reply["hash"][:8], reply["hash"][:8].upper()):
        shown = call("show", name, "--json").json()
        assert (shown["seq"], shown["causes"]) == (3, [2])
    assert call("show", "2", "--json").json()["effects"] == [3]


@pytest.mark.parametrize(
    "name", ["0", "9", "-1", "zz", "abc", "f" * 65, "9007199254740992", "1" * 4301, "", "1.0", "\u0661", "001", "0001"],
)  # fmt: skip
def test_show_of_what_is_not_there_is_one_line(here, name):
    """F32"""
    done = call("show", name)
    assert done.code in (1, 2)
    assert done.err.count("\n") == 1
    assert len(done.err) < 300 or len(name) > 300


# -- states at moments


def test_states_as_of_each_moment(here):
    """F66: at 0, 1, last - 1, last, and beyond; by number and by time."""
    for _ in range(3):
        fail()
    counts = {}
    for at in ("0", "1", "2", "3", "4", "99"):
        found = call("state", "circuits", "p|native", "--at", at, "--json").json()
        counts[at] = (found["seq"], (found["state"] or {}).get("failure_count"))
    assert [counts[at][0] for at in ("0", "1", "2", "3", "4", "99")] == [0, 1, 2, 3, 4, 4]
    assert [counts[at][1] for at in ("2", "3", "4", "99")] == [1, 2, 3, 3]
    assert counts["0"][1] is None
    events = lines("log", "--json", "--type", "circuit.*")
    for event in events:
        at = call("state", "circuits", "p|native", "--at", event["recorded_at"], "--json").json()
        assert at["seq"] == event["seq"]  # inclusive
        assert at["hash"] == event["hash"]
        assert at["fold"]
    before = parse_time(events[0]["recorded_at"]) - 1
    text = print_time(before).replace("Z", f".{before % 1_000_000:06d}Z")
    assert call("state", "circuits", "p|native", "--at", text, "--json").json()["seq"] == 1
    call("state", "circuits", "--at", "2026-12-01T00:00:00").refused(2, "zone")
    call("state", "nothing").refused(2)


def test_a_state_of_one_key_is_that_keys(here):
    """F68"""
    fail(executor="a")
    fail("quota", executor="b")
    assert call("state", "circuits", "p|b", "--json").json()["state"]["reason"] == "quota"
    both = call("state", "circuits", "--json").json()["state"]
    assert {one["reason"] for one in (both.values() if isinstance(both, dict) else both)} == {
        "quota",
        "rate_limit",
    }


def test_a_difference_names_the_fields_and_the_events_that_changed_them(here):
    fail()
    call(*NOTE).json()
    fail()
    found = call("diff", "circuits", "p|native", "--from", "2", "--to", "4", "--json").json()
    assert found["events"] == [4]
    assert {change["field"] for change in found["changes"]} >= {"failure_count"}
    assert call("diff", "circuits", "p|native", "--from", "4", "--to", "4", "--json").json()["changes"] == []
    call("diff", "circuits", "p|native", "--from", "4", "--to", "2").refused(2)


def test_a_reader_whose_clock_is_behind_reads_everything(here, monkeypatch):
    """F90: reading judges nothing by the reader's clock."""
    fail()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000_000_000)
    for words in (["log"], ["verify"], ["replay"], ["state", "circuits"], ["show", "2"]):
        assert call(*words).code == 0, words
    call(*NOTE).refused(4, "--clock-jump")
    assert call(*NOTE, "--clock-jump").code == 0


# -- views


def test_views_that_are_damaged_or_gone_cost_nothing_but_time(here):
    """F56: verify still works, rebuild repairs."""
    fail()
    count = ["query", "SELECT count(*) AS n FROM events", "--format", "json"]
    assert call(*count).json() == [{"n": 2}]
    path = here / ".gatebook" / "views.db"
    whole = path.read_bytes()
    for damage in (
        b"",
        b"not a database " * 500,
        whole[: len(whole) // 2],
        whole[:4096] + b"\xff" * 4096 + whole[8192:],
    ):
        path.write_bytes(damage)
        assert call("verify").code == 0
        done = call("rebuild", "--check")
        assert done.code in (0, 3)
        assert call("rebuild").code == 0
        assert call("rebuild", "--check").code == 0
        assert call(*count).json() == [{"n": 2}]
    path.write_bytes(b"not a database " * 500)
    assert call(*count).json() == [{"n": 2}]  # caught up by themselves, too
    path.unlink()
    assert call(*count).json() == [{"n": 2}]


def test_a_changed_row_of_the_views_is_found_by_rebuild_check_and_by_replay(here):
    import sqlite3

    fail()
    call("rebuild").json()
    with sqlite3.connect(here / ".gatebook" / "views.db") as db:
        db.execute("UPDATE circuits SET failure_count = 9")
    db.close()
    done = call("rebuild", "--check")
    assert (done.code, json.loads(done.out)["verdict"]) == (3, "views-differ")
    done = call("replay", "--json")
    assert (done.code, json.loads(done.out)["verdict"]) == (3, "views-differ")
    assert call("verify").code == 0
    call("rebuild").json()
    assert call("replay").code == 0


@pytest.mark.parametrize("moment", ["fill", "_states"])
def test_views_are_compared_as_of_one_event_while_others_write(here, monkeypatch, moment):
    """They said `views-differ`, and replay exit 3, of every ledger that grew while the second ones were made."""
    fail()
    call("rebuild").json()
    step = getattr(views.Catchup, moment)

    def slow(self, *given, **named):
        if moment == "_states":
            fail()
        done = step(self, *given, **named)
        if moment == "fill":
            fail()
        return done

    monkeypatch.setattr(views.Catchup, moment, slow)
    ledger = open_ledger(str(here / ".gatebook"))
    fail()  # what stands lags
    assert check(ledger) == (3, [])
    monkeypatch.undo()
    assert ledger.store.head().seq > 3
    assert check(ledger) == (ledger.store.head().seq, [])
    ledger.close()


def rows(here):
    import sqlite3

    with sqlite3.connect(here / ".gatebook" / "views.db") as db:
        tables = [
            name
            for (name,) in db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'events_fts%' ORDER BY name"
            )
        ]
        found = {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}
    db.close()
    return found


def test_views_made_anew_are_the_same_as_those_caught_up_step_by_step(here):
    """F72"""
    for n in range(3):
        fail()
        call(*NOTE, "--content", f"words {n}").json()
        assert call("query", "SELECT 1").code == 0
    stepwise = rows(here)
    call("rebuild").json()
    assert rows(here) == stepwise
    once = (here / ".gatebook" / "views.db").read_bytes()
    call("rebuild").json()
    assert (here / ".gatebook" / "views.db").read_bytes() == once


def test_a_rebuild_after_a_redaction_holds_nothing_of_it(here):
    """F64"""
    call(*NOTE, "--content", "an unforgettable sentence").json()
    call(*NOTE, "--content", "another").json()
    call("query", "SELECT 1")
    assert call("redact", "2", "--reason", "asked to").code == 0
    call("rebuild").json()
    assert call("rebuild", "--check").code == 0
    assert call("replay").code == 0
    for root, _, files in os.walk(here / ".gatebook"):
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                assert b"unforgettable" not in file.read(), name
    found = call(
        "query",
        "SELECT seq, content, redacted FROM events WHERE seq IN (2, 3) ORDER BY seq",
        "--format",
        "json",
    ).json()
    assert found == [
        {"seq": 2, "content": None, "redacted": 1},
        {"seq": 3, "content": "another", "redacted": 0},
    ]


@pytest.mark.parametrize("sql", ["DELETE FROM events", "UPDATE events SET data = 1", "DROP TABLE events", "ATTACH '/tmp/x' AS y", "PRAGMA query_only=OFF", "CREATE TABLE x (a)", "SELECT 1; DELETE FROM events", "VACUUM", "SELECT load_extension('x')", "", "SELECT", "INSERT INTO position VALUES (1,2,3,4)", "SELECT writefile('/tmp/brk-x', 'x')", "SELECT * FROM nowhere"])  # fmt: skip
def test_a_query_only_reads(here, sql):
    done = call("query", sql)
    assert done.code in (1, 2), (done.out, done.err)
    assert done.err.count("\n") == 1
    assert "internal error" not in done.err
    assert call("query", "SELECT count(*) AS n FROM events", "--format", "json").json() == [{"n": 1}]


# -- cost, by what is done rather than by how long it takes


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """30,000 events, 20,000 of them in one stream."""
    root = tmp_path_factory.mktemp("large")
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(root / "state")
    ledger, _ = create_ledger(str(root / "l"), ORIGIN)
    for n in range(0, 30_000, 1000):
        ledger.append(
            [
                Draft("x-n/1" if i % 3 else f"x-m/{i % 50}", "x.n.added", b'{"n":%d}' % (n + i))
                for i in range(1000)
            ],
            ORIGIN,
        )
    ledger.close()
    os.environ["XDG_STATE_HOME"] = before
    return root


@pytest.fixture
def big(large, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(large / "state"))
    return str(large / "l")


def steps(folder, work):
    """How many virtual machine steps SQLite takes on a handle's connection for `work(ledger)`."""
    ledger = open_ledger(folder)
    count = [0]

    def tick():
        count[0] += 1
        return False

    ledger.store._connection.set_progress_handler(tick, 1)
    work(ledger)
    ledger.store._connection.set_progress_handler(None)
    ledger.close()
    return count[0]


def test_an_append_steps_over_as_few_rows_in_a_large_ledger_as_in_a_small_one(
    big, tmp_path, home, monkeypatch
):
    """F57, F41"""
    small, _ = create_ledger(str(tmp_path / "small"), ORIGIN)
    small.append([Draft("x-n/1", "x.n.added")], ORIGIN)
    small.close()

    def append(ledger):
        ledger.append([Draft("x-n/1", "x.n.added", idempotency_key=f"k{time.time_ns()}")], ORIGIN)

    few = steps(str(tmp_path / "small"), append)
    monkeypatch.setenv("XDG_STATE_HOME", os.path.join(os.path.dirname(big), "state"))
    assert steps(big, append) <= few * 1.3 + 20


def test_reading_the_end_of_the_log_steps_over_few_rows(big):
    """F61: log -n 50 and show at any size."""
    from commands.log import Filter, _last

    def last(ledger):
        args = type("A", (), {"stream": None, "type": None, "actor": None, "correlation": None, "grep": None})
        assert len(_last(ledger, Filter(args), 1, ledger.store.head().seq, 50)) == 50

    assert steps(big, last) < 40_000
    done = call("--ledger", big, "log", "-n", "50")
    assert done.out.count("\n") == 50


def test_a_state_and_an_old_moment_step_over_few_rows_in_a_large_ledger(big):
    """F58: a projection reads its own streams; a time is found by halving."""
    from commands.moments import until
    from commands.state import snapshot

    def look(ledger):
        reader = ledger.store.reader()
        snapshot(ledger, "circuits", None, until(reader, reader.event(15_000).recorded_at, "--at"))

    assert steps(big, look) < 5_000
    assert call("--ledger", big, "doctor", "--json").code in (0, 1, 3)


def test_verifying_and_exporting_hold_no_more_memory_for_a_large_ledger(big, tmp_path, home, monkeypatch):
    """F59: a process of its own each, by the kernel's account of its largest size."""
    small, _ = create_ledger(str(tmp_path / "small"), ORIGIN)
    small.append([Draft("x-n/1", "x.n.added", b'{"n":1}')], ORIGIN)
    small.close()
    code = "import resource,sys; from commands.entry import run; code = run(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"

    def peak(folder, state, *words):
        done = subprocess.run(
            [sys.executable, "-c", code, "--ledger", folder, *words],
            cwd=ROOT,
            env={**os.environ, "XDG_STATE_HOME": state},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stderr.split()[-1])

    state = os.path.join(os.path.dirname(big), "state")
    for words in (["verify", "--jobs", "1"], ["export"]):
        few = peak(str(tmp_path / "small"), os.environ["XDG_STATE_HOME"], *words)
        assert peak(big, state, *words) < few + 20_000, words  # KiB; the large one whole would be 50,000 more


# -- locales, hash seeds, file names


@pytest.mark.parametrize("env", [{"LC_ALL": "C", "PYTHONHASHSEED": "1"}, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}, {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "3", "TZ": "Asia/Kathmandu"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "TZ": "America/St_Johns"}])  # fmt: skip
def test_digests_times_and_states_are_the_same_in_every_locale_and_zone(here, env):
    """F85"""
    fail()
    call(*NOTE, "--data", '{"I":"\u0131","\u0130":"i"}').json()
    for words in (["log", "--json"], ["state", "circuits", "--json"], ["verify", "--json"], ["export"]):
        ours = call(*words) if words != ["export"] else finish(start(*words, cwd=here))
        theirs = finish(start(*words, cwd=here, env=env))
        assert theirs.code == 0, theirs.err
        assert [json.loads(line) for line in theirs.out.splitlines()] == [
            json.loads(line) for line in ours.out.splitlines()
        ]


@pytest.mark.parametrize(
    "name",
    [
        b"with space",
        b"it's",
        b"what?mode=ro",
        b"a#b%20c",
        b"\xff\xfe",
        "\u4e16 \u00fc".encode(),
        b"-x",
        b"n" * 255,
    ],
)
def test_every_command_works_under_any_directory_name(tmp_path, home, monkeypatch, name):
    """F55"""
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    assert call("init").json()["created"]
    fail()
    call(*NOTE, "--content", "w").json()
    for words in (
        ["log"],
        ["show", "2"],
        ["verify"],
        ["replay"],
        ["state", "circuits"],
        ["query", "SELECT 1"],
        ["rebuild", "--check"],
        ["redact", "3", "--reason", "r"],
        ["backup", "b.db"],
        ["export", "--out", "e"],
        ["import", "e", "--to", "a"],
        ["doctor"],
    ):
        done = call(*words)
        assert "internal error" not in done.err, (words, done.err)
        assert done.code == 0 or words == ["doctor"], (words, done.out, done.err)


def test_a_key_that_others_can_read_is_mended_as_doctor_says(here):
    home = os.path.join(
        os.environ["XDG_STATE_HOME"], "gatebook", "keys", call("doctor", "--json").json()["ledger_id"]
    )
    os.chmod(os.path.join(home, "receipt"), 0o644)
    found = call("doctor", "--json")
    assert found.code == 1
    checks = json.loads(found.out)["checks"]
    (mend,) = [check["mend"] for check in checks if check["check"] == "keys" and check["level"] == "problem"]
    chmod, rotate = mend.split("; ")
    assert (chmod, rotate) == (f"chmod 600 {home}/receipt", "gatebook authority rotate receipt")
    os.chmod(chmod.split()[-1], 0o600)
    assert call(*rotate.split()[1:]).code == 0
    assert call("doctor").code == 0


def test_the_names_of_projections_and_the_head_a_state_stands_on(here):
    assert "circuits" in call("state", "--json").json()
    state = call("state", "plan", "--json").json()
    assert f"as of event {state['seq']} {state['hash'][:16]}…" in call("state", "plan").out


def test_a_bench_of_no_events_is_a_usage_error(here):
    call("bench", "--events", "0").refused(2, "--events")
