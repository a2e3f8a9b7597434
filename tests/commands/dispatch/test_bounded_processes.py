"""Programs that hang, flood, kill their parent or leave children: each ends, bounded, with the truth about it."""

import os
import subprocess
import sys
import time

import pytest

from commands.dispatch.processes import TAIL, run_bounded


def sh(script, timeout=20, **more):
    return run_bounded(["sh", "-c", script], cwd="/", timeout=timeout, **more)


def alive(pid):
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return state != "" and not state.startswith("Z")


@pytest.mark.parametrize("code", [0, 1, 2, 75, 255])
def test_an_exit_status_is_reported_as_it_is(code):
    ended = sh(f"echo out; echo err >&2; exit {code}")
    assert (ended.code, ended.why, ended.output, ended.size) == (code, "", b"out\nerr\n", 8)


def test_a_signal_is_told_from_an_exit():
    assert sh("kill -9 $$").code == -9
    assert sh("kill -TERM $$").code == -15


@pytest.mark.parametrize("seconds", [3_000_000, 99_999_999, 10**10, 2**53 - 1])
def test_a_time_limit_of_years_is_one(seconds):
    """F32: longer than the system waits at once."""
    assert sh("echo out", timeout=seconds).output == b"out\n"


def test_stderr_can_be_left_out():
    assert sh("echo out; echo err >&2", errors_too=False).output == b"out\n"


@pytest.mark.parametrize("argv", [["/no/such/program"], ["no-such-program-here"], ["/"], ["nul\0"]])
def test_what_cannot_be_started_is_missing(argv):
    assert run_bounded(argv, cwd="/", timeout=5).why == "missing"


def test_a_directory_that_is_gone_is_missing_too():
    assert run_bounded(["true"], cwd="/no/such/directory", timeout=5).why == "missing"


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path):
    started = time.monotonic()
    ended = sh(f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; echo begun; wait", timeout=1)
    assert (ended.code, ended.why, ended.output) == (None, "timed out", b"begun\n")
    assert time.monotonic() - started < 10
    time.sleep(0.1)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_program_that_leaves_a_child_behind_ends_when_it_ends(tmp_path):
    started = time.monotonic()
    ended = sh(f"sleep 60 & echo $! > {tmp_path}/pid; echo done")
    assert (ended.code, ended.output) == (0, b"done\n")
    assert time.monotonic() - started < 10
    time.sleep(0.1)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_child_that_floods_after_the_end_does_not_keep_us():
    started = time.monotonic()
    assert sh("yes & exec true").code == 0
    assert time.monotonic() - started < 10


def test_a_flood_is_read_to_its_end_and_kept_bounded():
    ended = sh("yes | head -c 20000000; echo the end")
    assert ended.code == 0
    assert ended.size == 20_000_008
    assert len(ended.output) == TAIL
    assert ended.output.endswith(b"the end\n")


def test_an_endless_flood_ends_at_the_limit():
    ended = sh("exec yes", timeout=1)
    assert ended.why == "timed out"
    assert len(ended.output) == TAIL


@pytest.mark.parametrize(
    "script", ["kill -9 $PPID; sleep 60", "kill -9 0; sleep 60", "kill -TERM $PPID; sleep 60"]
)
def test_a_program_that_kills_its_parent_or_its_group_does_not_reach_us(script):
    started = time.monotonic()
    ended = sh(script)
    assert (ended.code, ended.why) == (None, "killed")
    assert time.monotonic() - started < 10


def test_the_wanted_text_is_found_anywhere_and_across_reads():
    assert sh("printf wanted; yes | head -c 300000", wanted="wanted").found
    assert sh("printf wan; sleep 0.3; printf ted", wanted="wanted").found
    assert not sh("printf wante; yes | head -c 100000; printf d", wanted="wanted").found
    assert sh("true", wanted="").found
    assert sh("printf é", wanted="é").found
    assert sh("printf abc", wanted="c").found


@pytest.mark.parametrize("data", [b"", b"x", b"y" * 3_000_000])
def test_stdin_is_given_whole(data):
    assert int(sh("wc -c", stdin=data).output) == len(data)


def test_stdin_that_nobody_reads_is_no_failure():
    assert sh("exec true", stdin=b"z" * 3_000_000).code == 0


def test_the_program_does_not_get_our_descriptors():
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    assert sh("ls /proc/self/fd").output.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls' own


def test_a_broken_pipe_ends_the_program_as_in_a_shell():
    assert sh("yes | head -1; echo after").output == b"y\nafter\n"


@pytest.mark.parametrize("number", [2, 9, 15])
def test_the_group_dies_with_its_caller_however_that_ends(tmp_path, number):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from commands.dispatch.processes import run_bounded;"
        "run_bounded(['sh', '-c', 'echo $$ > ' + sys.argv[2] + '; sleep 60'], cwd='/', timeout=60)"
    )
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    caller = subprocess.Popen(
        [sys.executable, "-c", code, root, str(tmp_path / "pid")], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 10
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker = int((tmp_path / "pid").read_text())
    caller.send_signal(number)
    caller.wait(10)
    deadline = time.monotonic() + 10
    while alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)
