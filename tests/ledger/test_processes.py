"""Real processes on one ledger: many at once, killed at random, watched while they flush."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from store_contract import ORIGIN, add, check_chain, draft, whole
from test_sqlite_store import Folder

from ledger.access import create_ledger, open_ledger
from ledger.sqlite import AHEAD

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_spec = importlib.util.spec_from_file_location(
    "appenders", os.path.join(ROOT, "tools", "soak", "appenders.py")
)
appenders = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(appenders)


@pytest.mark.slow
def test_many_processes_lose_nothing_double_nothing_and_see_no_error(tmp_path, home):
    """The whole of it is tools/soak/appenders.py: 32 processes x 200 appends."""
    report = appenders.soak(str(tmp_path / "l"), processes=12, appends=25)
    assert report["problems"] == []
    assert report["events"] == 1 + 12 * 25


@pytest.mark.slow
def test_writers_killed_at_random_lose_nothing_that_was_acknowledged(tmp_path, home):
    """F1: four writers, SIGKILL in a loop; each calls again with the key whose answer it lost."""
    report = appenders.soak(str(tmp_path / "l"), processes=4, appends=1500, kills=25)
    assert report["problems"] == []
    assert report["killed"] > 3


def test_the_soak_itself_finds_a_lost_a_doubled_and_a_changed_event(tmp_path, home):
    """A check that cannot fail proves nothing (F5)."""
    folder = str(tmp_path / "l")
    ledger, _ = create_ledger(folder, ORIGIN)
    writer = appenders.Writer(folder, 0, 2)
    (event,) = ledger.append([draft("x-w/0", idempotency_key="0-0")], ORIGIN).events
    ledger.close()
    with open(writer.log, "wb") as file:
        file.write(b"0 %d %s 5\n1 %d %s 5\n" % (event.seq, event.hash.hex().encode(), 9, b"00" * 32))
    problems = "\n".join(appenders.check(folder, [writer])["problems"])
    assert "0-1 was acknowledged as 9 and is not there" in problems
    assert "0-1 is lost" in problems
    assert "2 events, 3 expected" in problems


def test_what_one_process_acknowledged_another_reads_at_once(tmp_path, home):
    """F48"""
    create_ledger(str(tmp_path / "l"), ORIGIN)[0].close()
    here = open_ledger(str(tmp_path / "l"))
    for version in (1, 2, 3):
        done = subprocess.run(
            [sys.executable, "-m", "commands", "--ledger", str(tmp_path / "l"), "append", "--stream", "x-a/1", "--type", "x.a.b"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        reply = json.loads(done.stdout)
        assert here.store.head().hash.hex() == reply["hash"]
        assert here.store.reader().version("x-a/1") == version == reply["version"]
    here.close()


def test_a_process_killed_inside_its_transaction_leaves_nothing_of_it(tmp_path):
    place = Folder(tmp_path)
    code = f"""
import os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from store_contract import ORIGIN, add, draft
from ledger.sqlite import SQLiteStore
store = SQLiteStore({place.path!r})
add(store, draft(idempotency_key="acknowledged"))
store.guard(lambda reader, events: os.kill(os.getpid(), signal.SIGKILL), lambda event: None)
add(store, draft(idempotency_key="never"), draft(content=b"z" * 700_000))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == -9
    store = place.open()
    assert [event.idempotency_key for event in whole(store)] == ["acknowledged"]
    add(store, draft())
    check_chain(whole(store))
    store.close()


def test_an_acknowledgement_comes_after_the_flush(tmp_path, home):
    """F48, F102: seen from outside, under strace."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    create_ledger(str(tmp_path / "l"), ORIGIN)[0].close()
    trace = tmp_path / "trace"
    command = [
        sys.executable,
        "-m",
        "commands",
        "--ledger",
        str(tmp_path / "l"),
        "append",
        "--stream",
        "x-a/1",
        "--type",
        "x.a.b",
        "--data",
        '{"mark":"in the log"}',
    ]
    done = subprocess.run(
        ["strace", "-f", "-y", "-s", "200", "-e", "trace=fsync,fdatasync,write,pwrite64", "-o", str(trace), *command],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if "ptrace" in done.stderr or not trace.exists() or not trace.read_text():
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done
    lines = trace.read_text().splitlines()
    frames = re.compile(rf"pwrite64\(\d+<.*ledger\.db-wal>(?!.*, {AHEAD}, )")  # not the zeros behind them
    written = [i for i, line in enumerate(lines) if frames.search(line)]
    flushed = [
        i for i, line in enumerate(lines) if re.search(r"f(data)?sync\(\d+<.*ledger\.db-wal>\) += 0", line)
    ]
    answered = [i for i, line in enumerate(lines) if "write(1<" in line and "replayed" in line]
    assert written
    assert flushed
    assert len(answered) == 1
    assert written[-1] < flushed[-1] < answered[0]


def test_an_artifact_is_flushed_before_the_event_that_names_it(tmp_path, home):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    create_ledger(str(tmp_path / "l"), ORIGIN)[0].close()
    (tmp_path / "big").write_bytes(b"z" * 600_000)
    trace = tmp_path / "trace"
    command = [
        sys.executable,
        "-m",
        "commands",
        "--ledger",
        str(tmp_path / "l"),
        "append",
        "--stream",
        "x-a/1",
        "--type",
        "x.a.b",
        "--content",
        f"@{tmp_path / 'big'}",
    ]
    done = subprocess.run(
        ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,rename", "-o", str(trace), *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if not trace.exists() or not trace.read_text():
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done
    text = trace.read_text()
    order = [
        text.find("/artifacts/."),
        text.find("rename("),
        text.find("/artifacts>"),
        text.rfind("ledger.db-wal>"),
    ]
    assert -1 not in order
    assert order == sorted(order)


@pytest.mark.slow
def test_reading_under_four_writers_raises_no_false_alarm(tmp_path, home):
    """F16, F27: whole events, in order, each page in its own moment."""
    create_ledger(str(tmp_path / "l"), ORIGIN)[0].close()
    writers = [appenders.Writer(str(tmp_path / "l"), number, 120) for number in range(4)]
    for writer in writers:
        writer.start()
    reader, rounds = open_ledger(str(tmp_path / "l")), 0
    while any(writer.process.poll() is None for writer in writers) or rounds == 0:
        check_chain(whole(reader.store))
        rounds += 1
    for writer in writers:
        writer.wait()
    check_chain(whole(reader.store))
    assert reader.store.head().seq == 1 + 4 * 120
    reader.close()
