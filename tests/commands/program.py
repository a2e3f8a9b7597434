"""The program as a test calls it: in this process (quick), or as processes of their own (many at once)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What this process imports from, for the processes it starts.
PATH = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))


class Done:
    """One call's exit code and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def json(self):
        """The one JSON document on stdout."""
        assert self.out.count("\n") == 1, (self.code, self.out, self.err)
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> Done:
        """Assert a refusal: this exit code, nothing on stdout, one line without a traceback that holds `words`."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        assert "internal error" not in self.err
        for word in words:
            assert word in self.err, (word, self.err)
        return self


def call(*args: str, stdin: bytes = b"") -> Done:
    """Run `gatebook ARGS` in this process."""
    from commands import entry

    # As a real process has them: text over bytes, strict UTF-8 out, anything on stderr.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
    err = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="", write_through=True
    )
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = entry.run(list(args))
    finally:
        sys.stdin = before
    return Done(code, *(stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err)))


def start(*args: str, cwd=None, env=None, **more) -> subprocess.Popen:
    """Start `gatebook ARGS` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "commands", *args],
        cwd=cwd, env={**os.environ, "PYTHONPATH": PATH, **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **more,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> Done:
    """Wait for a started process."""
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out.decode(), err.decode())
