"""Disks that are full, read-only or out of inodes: a clear error, and the ledger as it was (F51)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
from store_contract import ORIGIN, check_chain, draft, whole

from ledger.access import create_ledger, open_found, open_ledger
from ledger.errors import GatebookError, Unavailable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Disk:
    """A small tmpfs of its own."""

    def __init__(self, folder, options):
        self.path = str(folder)
        os.makedirs(self.path, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", self.path], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a small tmpfs here: {done.stderr.splitlines()[0]}")

    def remount(self, options):
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True)

    def fill(self, room=0):
        with open(os.path.join(self.path, "filler"), "wb", buffering=0) as file:
            size = 65_536
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2
            file.truncate(file.tell() - room)

    def clear(self):
        os.unlink(os.path.join(self.path, "filler"))


@pytest.fixture
def disk(tmp_path):
    made = []

    def make(options):
        made.append(Disk(tmp_path / "disk", options))
        return made[-1]

    yield make
    for one in made:
        subprocess.run(["umount", "-l", one.path], check=False, capture_output=True)


@pytest.mark.parametrize("size", [300, 4000, 60_000, 700_000])
def test_a_full_disk_refuses_events_clearly_and_keeps_all_it_acknowledged(disk, home, size):
    full = disk("size=3m")
    ledger, _ = create_ledger(os.path.join(full.path, "l"), ORIGIN)
    told = [event.hash for event in ledger.append([draft(content=b"z" * size)], ORIGIN).events]
    full.fill(room=200_000 + 2 * size)
    failures = []
    for _ in range(400):
        try:
            told += [
                event.hash for event in ledger.append([draft(content=b"z" * size), draft()], ORIGIN).events
            ]
        except Unavailable as error:
            failures.append(str(error))
            if len(failures) > 2:
                break
    assert len(told) > 1
    assert len(failures) > 2
    assert all("full" in text or "No space" in text or "input/output" in text for text in failures)
    assert [event.hash for event in whole(ledger.store)][1:] == told
    ledger.close()
    again = open_ledger(os.path.join(full.path, "l"))  # while it is still full
    assert [event.hash for event in whole(again.store)][1:] == told
    full.clear()
    told += [event.hash for event in again.append([draft(), draft()], ORIGIN).events]
    events = whole(again.store)
    check_chain(events)
    assert [event.hash for event in events][1:] == told
    again.close()


def test_a_disk_that_fills_up_under_a_batch_keeps_nothing_of_it(disk, home):
    full = disk("size=3m")
    ledger, _ = create_ledger(os.path.join(full.path, "l"), ORIGIN)
    with pytest.raises(Unavailable):
        ledger.append([draft(content=os.urandom(400_000)) for _ in range(20)], ORIGIN)
    assert ledger.store.head().seq == 1
    ledger.append([draft()], ORIGIN)
    check_chain(whole(ledger.store))
    ledger.close()


@pytest.mark.parametrize("room", [0, 8, 24, 32, 48])
def test_a_ledger_that_does_not_fit_is_not_half_made(disk, home, room):
    full = disk("size=1m")
    full.fill(room * 1024)
    folder = os.path.join(full.path, "l")
    with pytest.raises(Unavailable):
        create_ledger(folder, ORIGIN)
    full.clear()
    ledger, _ = create_ledger(folder, ORIGIN)
    ledger.append([draft()], ORIGIN)
    check_chain(whole(ledger.store))
    ledger.close()
    open_found(folder).close()  # and this machine trusts it


@pytest.mark.parametrize("inodes", [3, 4, 5, 6, 7])
def test_a_disk_out_of_inodes_refuses_clearly_and_serves_when_there_are_more(disk, home, inodes):
    few = disk(f"size=4m,nr_inodes={inodes}")
    folder = os.path.join(few.path, "l")

    def use():
        ledger, _ = create_ledger(folder, ORIGIN)
        try:
            ledger.append([draft(content=b"z" * 600_000)], ORIGIN)
        finally:
            ledger.close()

    with pytest.raises(Unavailable):
        use()
    few.remount("nr_inodes=100")
    ledger, _ = create_ledger(folder, ORIGIN)
    ledger.append([draft(content=b"z" * 600_000)], ORIGIN)
    check_chain(whole(ledger.store))
    ledger.close()


def test_a_read_only_disk_refuses_writes_and_serves_reads(disk, home):
    shared = disk("size=4m")
    folder = os.path.join(shared.path, "l")
    ledger, _ = create_ledger(folder, ORIGIN)
    ledger.append([draft(content=b"words")], ORIGIN)
    ledger.close()
    shared.remount("ro")
    again = open_ledger(folder)
    assert whole(again.store)[1].content == b"words"
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"[Rr]ead-only"):
            again.append([draft()], ORIGIN)
    again.close()
    with pytest.raises(Unavailable):
        create_ledger(os.path.join(shared.path, "other"), ORIGIN)
    shared.remount("rw")
    writer = open_ledger(folder)
    writer.append([draft()], ORIGIN)
    check_chain(whole(writer.store))
    writer.close()


def test_a_state_folder_on_a_full_disk_costs_no_event(disk, home, monkeypatch, tmp_path, capfd):
    full = disk("size=64k")
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    ledger.close()
    monkeypatch.setenv("XDG_STATE_HOME", os.path.join(full.path, "state"))
    full.fill()
    for seq in (2, 3):
        ledger = open_ledger(str(tmp_path / "l"))
        assert ledger.append([draft()], ORIGIN).events[0].seq == seq
        ledger.close()
    assert "not remembered" in capfd.readouterr().err
    full.clear()
    ledger = open_ledger(str(tmp_path / "l"))
    assert ledger.append([draft()], ORIGIN).events[0].seq == 4
    assert ledger.memory()[0] == 4
    ledger.close()


def test_a_folder_this_user_cannot_write_refuses_clearly(tmp_path, home):
    """A process of another user, because root writes everywhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    folder = tmp_path / "l"
    ledger, _ = create_ledger(str(folder), ORIGIN)
    ledger.append([draft()], ORIGIN)
    ledger.close()
    for name in os.listdir(folder):
        os.chmod(folder / name, 0o644)
    os.chmod(folder, 0o755)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        os.chmod(parent, os.stat(parent).st_mode | 0o005)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.environ["XDG_STATE_HOME"] = "/nonexistent/state"
            outcomes = []
            for use in (
                lambda: open_ledger(str(folder)).append([draft()], ORIGIN),
                lambda: create_ledger(str(folder / "x"), ORIGIN),
            ):
                try:
                    use()
                except GatebookError as error:
                    outcomes.append(error.exit_code)
            code = 0 if outcomes == [75, 75] else 10 + sum(outcomes) % 100
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    again = open_ledger(str(folder))
    assert again.store.head().seq == 2
    again.close()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755


def test_a_file_that_may_not_grow_refuses_clearly_and_keeps_all_it_acknowledged(tmp_path, home):
    """What anybody can try without a disk to fill: the kernel's limit on a file's size."""
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    told = [event.hash.hex() for event in ledger.append([draft()], ORIGIN).events]
    ledger.close()
    code = f"""
import resource, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from store_contract import ORIGIN, draft
from ledger.access import open_ledger
from ledger.errors import Unavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
ledger, refused = open_ledger({str(tmp_path / "l")!r}), 0
for _ in range(60):
    try:
        print(ledger.append([draft(content=b"z" * 3000)], ORIGIN).events[0].hash.hex())
    except Unavailable:
        refused += 1
print(refused > 10)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *more, refused = done.stdout.split()
    assert refused == "True"
    assert len(more) > 3
    again = open_ledger(str(tmp_path / "l"))
    assert [event.hash.hex() for event in whole(again.store)][1:] == told + more
    again.append([draft()], ORIGIN)
    check_chain(whole(again.store))
    again.close()


def gatebook(*words):
    return subprocess.run(
        [sys.executable, "-m", "commands", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_views_that_find_no_room_are_said_and_the_ones_that_stand_stay(disk, home):
    """F56: whoever has no room must not be told that the file is damaged, nor lose it."""
    one = disk("size=2m")
    ledger, _ = create_ledger(os.path.join(one.path, "l"), ORIGIN)
    ledger.append([draft("x-a/1")], ORIGIN)
    place = ["--ledger", os.path.join(one.path, "l")]
    assert gatebook(*place, "query", "SELECT count(*) FROM events").returncode == 0
    views = os.path.join(one.path, "l", "views.db")
    size = os.path.getsize(views)
    ledger.append([draft("x-a/1", content=b"word " * 20_000)], ORIGIN)
    ledger.close()
    one.fill()
    for words in (["rebuild"], ["rebuild", "--check"], ["query", "SELECT count(*) FROM events"]):
        done = gatebook(*place, *words)
        assert done.returncode == 75, (words, done.stderr)
        assert done.stderr.count("\n") == 1
        assert "full" in done.stderr
        assert "damaged" not in done.stderr
    assert os.path.getsize(views) == size
    one.clear()
    assert gatebook(*place, "rebuild", "--check").returncode == 0


def test_the_command_says_it_in_one_line_with_exit_75(disk, home):
    full = disk("size=1m")
    folder = os.path.join(full.path, "l")
    create_ledger(folder, ORIGIN)[0].close()
    full.fill()
    with open(os.path.join(full.path, "..", "big"), "wb") as file:
        file.write(b"z" * 300_000)
    done = gatebook(
        "--ledger", folder, "append", "--stream", "x-a/1", "--type", "x.a.b", "--content", f"@{file.name}"
    )
    assert done.returncode == 75, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
