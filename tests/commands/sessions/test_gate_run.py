"""`gate run`: producers that crash, hang, flood, fork and meddle; every doubt blocks."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from commands.sessions import gate_run, program
from commands.sessions.config_guard import KNOWN_BOOTSTRAP
from commands.sessions.gate_run import run_gate
from commands.sessions.globs import all_match

APPROVAL = json.dumps({"verdict": "approve", "summary": "fine", "findings": [], "next_steps": []})
BLOCK = json.dumps(
    {
        "verdict": "needs-attention",
        "summary": "no",
        "findings": [
            {
                "severity": "high",
                "title": "t",
                "body": "b",
                "file": "a.py",
                "line_start": 1,
                "line_end": 2,
                "confidence": 0.5,
                "recommendation": "",
            }
        ],
        "next_steps": [],
    }
)


@pytest.fixture
def producer(tmp_path):
    """Make a producer from Python text; it finds APPROVAL and BLOCK as names."""

    def make(text):
        script = tmp_path / "producer.py"
        script.write_text(
            f"import os, sys, time, signal\nAPPROVAL = {APPROVAL!r}\nBLOCK = {BLOCK!r}\n{text}\n"
        )
        return f"{sys.executable} {script}"

    return make


def run(command, root, timeout=20.0):
    return run_gate(b"focus\n", command, root=str(root), timeout=timeout)


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        ("print(APPROVAL)", "APPROVE", ""),
        ("print('thinking'); print(APPROVAL)", "APPROVE", ""),
        ("import json; print(json.dumps({'result': None, 'rawOutput': APPROVAL}))", "APPROVE", ""),
        ("print(BLOCK)", "REQUEST_CHANGES", ""),
        ("print(BLOCK); sys.exit(3)", "REQUEST_CHANGES", ""),
        ("print(APPROVAL); sys.exit(3)", "REQUEST_CHANGES", ""),
        ("print(APPROVAL, flush=True); os.kill(os.getpid(), 9)", "REQUEST_CHANGES", ""),
        ("print(APPROVAL[:40])", "REQUEST_CHANGES", ""),
        ("print('not logged in'); sys.exit(1)", "REQUEST_CHANGES", ""),
        ("pass", "REQUEST_CHANGES", ""),
        ("print()", "REQUEST_CHANGES", ""),
        ("sys.exit(1)", "SKIP", "runtime-error"),
        ("print(' '); sys.exit(1)", "SKIP", "runtime-error"),
        ("os.kill(os.getpid(), 9)", "SKIP", "runtime-error"),
        ("sys.exit('Error: Not signed in')", "SKIP", "codex-unauthenticated"),
        ("sys.exit('401 Unauthorized')", "SKIP", "codex-unauthenticated"),
    ],
)
def test_the_verdict_table(producer, tmp_path, text, verdict, reason):
    result = run(producer(text), tmp_path)
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.exit_code == (1 if verdict == "REQUEST_CHANGES" else 0)
    assert (result.text.startswith("adversarial-gate: APPROVE\n")) == (verdict == "APPROVE")


def test_a_missing_producer_and_a_missing_schema_are_skips_with_a_detail(tmp_path):
    result = run("no-such-producer --json", tmp_path)
    assert result.banner.startswith(
        "adversarial-gate: SKIP reason=plugin-root-unresolved detail=no-such-producer"
    )
    (tmp_path / "plain").write_text("no program\n")
    assert run(str(tmp_path / "plain"), tmp_path).banner.startswith(
        "adversarial-gate: SKIP reason=runtime-error"
    )
    for command in ("sh --output-schema gone.json", "sh --output-schema=gone.json"):
        assert run(command, tmp_path).banner == (
            "adversarial-gate: SKIP reason=cache-schema-unresolved detail=gone.json"
        )


def test_the_focus_text_arrives_on_stdin_however_long(producer, tmp_path):
    command = producer("sys.exit(0 if len(sys.stdin.read()) == 300_000 and not print(APPROVAL) else 1)")
    assert run_gate(b"x" * 300_000, command, root=str(tmp_path)).verdict == "APPROVE"


def test_a_producer_that_does_not_read_its_focus_is_no_failure(producer, tmp_path):
    assert run_gate(b"x" * 300_000, producer("print(APPROVAL)"), root=str(tmp_path)).verdict == "APPROVE"


def test_a_hanging_producer_without_output_is_a_timeout_skip(producer, tmp_path):
    result = run(producer("time.sleep(60)"), tmp_path, 0.5)
    assert result.banner == "adversarial-gate: SKIP reason=runtime-timeout"


def test_an_approval_of_a_producer_that_then_hangs_blocks(producer, tmp_path):
    assert (
        run(producer("print(APPROVAL, flush=True); time.sleep(60)"), tmp_path, 0.7).verdict
        == "REQUEST_CHANGES"
    )


def test_a_producer_that_ignores_sigterm_is_killed_with_its_children(producer, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_GRACE", 0.3)
    pid_file = tmp_path / "pid"
    command = producer(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = os.fork()\nif child: open({str(pid_file)!r}, 'w').write(str(child))\ntime.sleep(60)"
    )
    assert run(command, tmp_path, 1.0).reason == "runtime-timeout"
    assert not _alive(int(pid_file.read_text()))


def test_a_child_that_holds_the_pipe_makes_an_approval_uncertain(producer, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_GRACE", 0.3)
    command = producer("print(APPROVAL, flush=True)\nif os.fork() == 0: time.sleep(60)")
    began = time.monotonic()
    result = run(command, tmp_path)
    assert result.verdict == "REQUEST_CHANGES"
    assert "may be cut" in result.text
    assert time.monotonic() - began < 10


def test_a_flood_is_stopped_and_blocks(producer, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_GRACE", 0.3)
    began = time.monotonic()
    result = run(producer("while True: sys.stdout.write(APPROVAL + '\\n')"), tmp_path)
    assert result.verdict == "REQUEST_CHANGES"
    assert time.monotonic() - began < 15


def test_a_flood_on_stderr_is_drained(producer, tmp_path):
    assert run(producer("sys.stderr.write('x' * 3_000_000); print(APPROVAL)"), tmp_path).verdict == "APPROVE"


def _config(tmp_path, content=b"auto_commit: true\n"):
    path = tmp_path / ".review-loop" / "config.md"
    path.parent.mkdir()
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o640)
    return path


WRITE = "os.makedirs('.review-loop', exist_ok=True); open('.review-loop/config.md', 'wb').write({!r})\n"


def test_the_known_bootstrap_is_undone_byte_for_byte(producer, tmp_path):
    path = _config(tmp_path)
    assert run(producer(WRITE.format(KNOWN_BOOTSTRAP) + "print(APPROVAL)"), tmp_path).verdict == "APPROVE"
    assert path.read_bytes() == b"auto_commit: true\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_known_bootstrap_is_deleted_where_no_file_was(producer, tmp_path):
    path = _config(tmp_path, None)
    assert run(producer(WRITE.format(KNOWN_BOOTSTRAP) + "sys.exit(1)"), tmp_path).verdict == "SKIP"
    assert not path.exists()


def test_a_deleted_config_is_restored(producer, tmp_path):
    path = _config(tmp_path)
    assert (
        run(producer("os.unlink('.review-loop/config.md'); print(APPROVAL)"), tmp_path).verdict == "APPROVE"
    )
    assert path.read_bytes() == b"auto_commit: true\n"


@pytest.mark.parametrize("before", [None, b"auto_commit: true\n"])
@pytest.mark.parametrize("end", ["print(APPROVAL)", "print(BLOCK)", "sys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_an_unexpected_config_stays_for_inspection_and_blocks(producer, tmp_path, before, end):
    path = _config(tmp_path, before)
    result = run(producer(WRITE.format(b"skip_quality_polish: true\n") + end), tmp_path)
    assert result.verdict == "REQUEST_CHANGES"
    first = result.text.split("### Issues\n")[1].splitlines()[0]
    assert first.startswith("- [CRITICAL] .review-loop/config.md:1-1")
    assert path.read_bytes() == b"skip_quality_polish: true\n"


def test_a_link_in_place_of_the_config_blocks(producer, tmp_path):
    path = _config(tmp_path)
    text = "os.unlink('.review-loop/config.md'); os.symlink('/etc/hostname', '.review-loop/config.md'); print(APPROVAL)"
    assert run(producer(text), tmp_path).verdict == "REQUEST_CHANGES"
    assert path.is_symlink()


def test_an_interrupt_kills_the_group_and_settles_the_config(producer, tmp_path):
    path = _config(tmp_path)
    pid_file = tmp_path / "pid"
    command = producer(
        WRITE.format(KNOWN_BOOTSTRAP)
        + f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    code = (
        f"from commands.sessions.gate_run import run_gate; run_gate(b'', {command!r}, root={str(tmp_path)!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not pid_file.exists() or not pid_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    child.wait(10)
    assert path.read_bytes() == b"auto_commit: true\n"
    assert not _alive(int(pid_file.read_text()))


def _alive(pid):
    for _ in range(40):
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/SKILL.md", "SKILL.md", True),
        ("**/SKILL.md", "a/b/SKILL.md", True),
        ("**/SKILL.md", "a/MYSKILL.md", False),
        ("docs/protocol/**", "docs/protocol/a/b.md", True),
        ("docs/protocol/**", "docs/protocols/a", False),
        ("*.md", "a.md", True),
        ("*.md", "a/b.md", False),
        ("a?.[ch]", "ab.c", True),
        ("a?.[!ch]", "ab.c", False),
        ("a?b", "a/b", False),
        ("a.b", "axb", False),
        ("**", "any/\nthing", True),
    ],
)
def test_glob(pattern, path, matches):
    assert all_match([path], [pattern]) == matches


def test_no_path_at_all_never_skips():
    assert not all_match([], ["**"])
    assert not all_match(["a"], [])
    assert gate_run.DEFAULT_TIMEOUT == 600
