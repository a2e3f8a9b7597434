"""Git as we may call it: nothing that a repository's configuration names is ever run.

A repository we look at may be hostile (contract `review-sessions`, Dirty map): fsmonitor, hooks, pagers,
external diff, textconv, filters and lazy fetches all name programs. Each is switched off for our calls through
the environment, which git also hands to the children it starts inside submodules.
"""

from __future__ import annotations

import os

from ledger.errors import Invalid, MissingExecutor, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KILL = 9  # SIGKILL, by POSIX, as `signal` would say
_IGNORED = (13, 25)  # SIGPIPE and SIGXFSZ: Python ignores them, its children shall not

DEFAULT_TIMEOUT = 120.0  # seconds; 20,000 dirty files take about two

# What we keep of an inherited GIT_*: who commits, and the user's own (not the repository's) choice of config.
_KEPT = (
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "GIT_CONFIG_GLOBAL",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)

_FIXED_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",  # refs/replace must not change what a commit says
    "GIT_GRAFT_FILE": os.devnull,  # nor grafts who its parents are
    "GIT_NO_LAZY_FETCH": "1",  # a promisor remote may be ext::program
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "LC_ALL": "C",
}

_FIXED_CONFIG = (
    ("core.fsmonitor", "false"),
    ("core.hooksPath", os.devnull),
    ("core.pager", "cat"),
    ("core.quotePath", "true"),
    ("diff.external", ""),
    ("log.showSignature", "false"),
    ("commit.gpgSign", "false"),
    ("i18n.commitEncoding", "UTF-8"),  # what we write, whatever the repository says
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)

# Configured programs that a value, not a flag, switches off: each key of such a section is blanked by name.
_OFF_VALUES = {"filter": {"required": "false"}, "hook": {"enabled": "false"}}
# For `git check-ignore`, which knows no pathspec magic, and refuses to run with this one.
PLAIN_PATHSPECS = {"GIT_LITERAL_PATHSPECS": "0"}
_NAMED_PROGRAMS = r"^(filter|hook)\..*\."


class GitFailed(Invalid):
    """A git command ended badly; the message carries its first line of stderr. `code` is its exit code."""

    def __init__(self, message: str, *, code: int, stderr: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.stderr = stderr


class Git:
    """Git calls in one directory, for one batch: the list of programs to switch off is read once.

    `trusted_filters` are the filter drivers (such as `lfs`) that the user's own configuration allows to run.
    Make a new one after anything else has run in the repository: its configuration may have changed.
    """

    __slots__ = ("_environment", "_plain", "cwd", "named_filters", "timeout", "trusted_filters")

    def __init__(
        self, cwd: str, *, trusted_filters: Iterable[str] = (), timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.cwd = cwd
        self.timeout = timeout
        self.trusted_filters = frozenset(trusted_filters)
        self.named_filters: frozenset[str] = frozenset()
        self._environment: dict[bytes, bytes] | None = None
        self._plain: dict[bytes, bytes] | None = None

    def run(
        self,
        args: Sequence[str | bytes],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
        accept: Sequence[int] = (0,),
        filters: bool = True,
    ) -> bytes:
        """Stdout of `git ARGS` run in `cwd`.

        `filters` False says that this command reads no work tree file and runs no hook, so that the list of
        configured drivers is not needed for it.

        Raises `GitFailed` for an exit code outside `accept`, `Unavailable` past `timeout` seconds (the whole
        process group is killed), `MissingExecutor` without git. `env` adds variables (GIT_INDEX_FILE, ...).
        """
        environment = self._whole_environment() if filters else self._plain_environment()
        if env:
            environment = {**environment, **{os.fsencode(k): os.fsencode(v) for k, v in env.items()}}
        code, out, err = _run(args, self.cwd, environment, input, timeout or self.timeout)
        if code not in accept:
            raise GitFailed(_failure(args, self.cwd, code, err), code=code, stderr=err)
        return out

    def line(self, args: Sequence[str | bytes], *, filters: bool = True) -> str:
        """The one line that `git ARGS` prints, without its newline."""
        return os.fsdecode(self.run(args, filters=filters).removesuffix(b"\n"))

    def _plain_environment(self) -> dict[bytes, bytes]:
        if self._plain is None:
            self._plain = {**_base_environment(), **_config_variables(list(_FIXED_CONFIG))}
        return self._plain

    def _whole_environment(self) -> dict[bytes, bytes]:
        if self._environment is None:
            self._environment = self._safe_environment()
        return self._environment

    def _safe_environment(self) -> dict[bytes, bytes]:
        plain = self._plain_environment()
        config = list(_FIXED_CONFIG)
        named = _named_programs(self.cwd, plain, self.timeout)
        for inner in _populated_submodules(self.cwd, plain, self.timeout):
            named |= _named_programs(inner, plain, self.timeout)
        self.named_filters = frozenset(name for section, name in named if section == "filter")
        for section, name in sorted(named):
            if section == "filter" and name in self.trusted_filters:
                continue
            keys = (
                ("clean", "smudge", "process", "required") if section == "filter" else ("command", "enabled")
            )
            config += [(f"{section}.{name}.{key}", _OFF_VALUES[section].get(key, "")) for key in keys]
        return {**plain, **_config_variables(config)}


def run_git(
    args: Sequence[str | bytes],
    cwd: str,
    *,
    input: bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    env: dict[str, str] | None = None,
    accept: Sequence[int] = (0,),
) -> bytes:
    """One git call in `cwd`, as `Git.run`; several calls in a row are cheaper through one `Git`."""
    return Git(cwd, timeout=timeout).run(args, input=input, env=env, accept=accept)


def quote_path(path: bytes) -> str:
    r"""A path as text: itself, or git's C-style quoting (`"a\377"`) when it is not UTF-8.

    Text that begins with a double quote is therefore always a quoted path, and `unquote_path` undoes it.
    """
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return c_quote(path)
    return c_quote(path) if text.startswith('"') else text


def line_path(text: str) -> str:
    """A path of `quote_path` fit for one line of a report: quoted too when it holds control characters."""
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        return c_quote(unquote_path(text))
    return text


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def c_quote(path: bytes) -> str:
    """A path in git's C-style quotes, pure ASCII (what `--stdin-paths` and `--index-info` accept)."""
    parts = ['"']
    for byte in path:
        if byte in _ESCAPES:
            parts.append("\\" + _ESCAPES[byte])
        elif 0x20 <= byte < 0x7F:
            parts.append(chr(byte))
        else:
            parts.append(f"\\{byte:03o}")
    parts.append('"')
    return "".join(parts)


def unquote_path(text: str) -> bytes:
    """The path that `quote_path` wrote, byte for byte; `Invalid` for a broken quotation."""
    if not text.startswith('"'):
        return text.encode("utf-8", "surrogateescape")
    if len(text) < 2 or not text.endswith('"'):
        raise Invalid(f"a quoted path without its closing quote: {text}")
    letters = {v: k for k, v in _ESCAPES.items()}
    out = bytearray()
    inner = text[1:-1]
    i = 0
    while i < len(inner):
        char = inner[i]
        if char != "\\":
            out += char.encode("utf-8")
            i += 1
        elif inner[i + 1 : i + 2] in letters and inner[i + 1 : i + 2]:
            out.append(letters[inner[i + 1]])
            i += 2
        else:
            digits = inner[i + 1 : i + 4]
            if len(digits) != 3 or any(d not in "01234567" for d in digits) or int(digits, 8) > 255:
                raise Invalid(f"a broken escape in a quoted path: {text}")
            out.append(int(digits, 8))
            i += 4
    return bytes(out)


def _base_environment() -> dict[bytes, bytes]:
    kept = {
        k: v for k, v in os.environb.items() if not k.startswith(b"GIT_") or os.fsdecode(k).startswith(_KEPT)
    }
    return kept | {os.fsencode(k): os.fsencode(v) for k, v in _FIXED_ENVIRONMENT.items()}


def _config_variables(config: list[tuple[str, str]]) -> dict[bytes, bytes]:
    """GIT_CONFIG_* for these settings. Not `-c`: that splits at the first `=`, which a driver's name may hold."""
    variables = {b"GIT_CONFIG_COUNT": b"%d" % len(config)}
    for i, (key, value) in enumerate(config):
        variables[b"GIT_CONFIG_KEY_%d" % i] = os.fsencode(key)
        variables[b"GIT_CONFIG_VALUE_%d" % i] = os.fsencode(value)
    return variables


def _named_programs(cwd: str, environment: dict[bytes, bytes], timeout: float) -> set[tuple[str, str]]:
    args = ["config", "-z", "--name-only", "--get-regexp", _NAMED_PROGRAMS]
    code, out, err = _run(args, cwd, environment, None, timeout)
    if code not in (0, 1):  # 1: no such setting
        raise GitFailed(_failure(args, cwd, code, err), code=code, stderr=err)
    found = set()
    for raw in out.split(b"\0"):
        if raw:
            section, _, rest = os.fsdecode(raw).partition(".")
            found.add((section, rest.rpartition(".")[0]))
    return found


def _populated_submodules(cwd: str, environment: dict[bytes, bytes], timeout: float) -> list[str]:
    """Every checked-out submodule below `cwd`, at any depth: `git status` looks into each with its own config."""
    code, out, _ = _run(["rev-parse", "--show-toplevel"], cwd, environment, None, timeout)
    if code != 0:
        return []  # not a work tree: the caller's own command will say so
    top = os.fsdecode(out.removesuffix(b"\n"))
    code, out, err = _run(["ls-files", "--stage", "-z"], top, environment, None, timeout)
    if code != 0:
        raise GitFailed(_failure(["ls-files"], top, code, err), code=code, stderr=err)
    found = []
    for entry in out.split(b"\0"):
        if entry.startswith(b"160000 "):
            inner = os.path.join(top, os.fsdecode(entry.partition(b"\t")[2]))
            if os.path.lexists(os.path.join(inner, ".git")):
                found += [inner, *_populated_submodules(inner, environment, timeout)]
    return found


def _run(
    args: Sequence[str | bytes],
    cwd: str,
    environment: dict[bytes, bytes],
    data: bytes | None,
    timeout: float,
) -> tuple[int, bytes, bytes]:
    # `subprocess` brings threads, signals and locales: a seventh of a step's start-up, for what stands in `Child`.
    argv = [b"git", b"-C", os.fsencode(cwd), b"--no-pager", *(os.fsencode(a) for a in args)]
    if not os.path.isdir(cwd):
        raise Invalid(f"no such directory: {cwd}")
    try:
        child = Child(argv, environment, data)
    except FileNotFoundError as error:
        raise MissingExecutor("git is not installed or not in PATH") from error
    try:
        code = child.attend(timeout)
    finally:
        child.end()
    if code is None:
        raise Unavailable(f"git {_words(args)} in {cwd} did not end within {timeout:g} s")
    return code, bytes(child.out), bytes(child.err)


class Child:
    """A program in a session of its own, fed `data` while what it prints is kept: `out` and `err`."""

    def __init__(self, argv: list[bytes], environment: dict[bytes, bytes], data: bytes | None) -> None:
        """Start it.

        Raises:
            FileNotFoundError: there is no such program in PATH.
        """
        self.out, self.err = bytearray(), bytearray()
        self._data = memoryview(data or b"")
        self._code: int | None = None
        pipes = [os.pipe(), os.pipe(), os.pipe()]  # none of them is inherited but by `dup2` below
        (stdin, feed), (out, stdout), (err, stderr) = pipes
        try:
            self._pid = os.posix_spawnp(
                argv[0], argv, environment, setsid=True, setsigdef=_IGNORED,
                file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)],
            )  # fmt: skip
        except BaseException:
            for handle in (feed, out, err):
                os.close(handle)
            raise
        finally:
            for handle in (stdin, stdout, stderr):
                os.close(handle)
        os.set_blocking(feed, False)
        self._sinks = {out: self.out, err: self.err}
        self._feed = feed

    def attend(self, timeout: float) -> int | None:
        """Its exit code (negative: the signal) when it has ended and said all; None past `timeout` seconds."""
        import select
        import time

        deadline = time.monotonic() + timeout
        waiting = select.poll()
        for handle in self._sinks:
            waiting.register(handle, select.POLLIN)
        if self._write():
            waiting.register(self._feed, select.POLLOUT)
        while self._sinks:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            for handle, _ in waiting.poll(left * 1000):
                if not (self._read(handle) if handle in self._sinks else self._write()):
                    waiting.unregister(handle)
        self._until_ended(deadline - time.monotonic())
        return self._code

    def _write(self) -> bool:
        """Feed it what its pipe takes; False, and the pipe closed, when all is said or it no longer listens."""
        try:
            while self._data:
                self._data = self._data[os.write(self._feed, self._data[:65536]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            pass
        os.close(self._feed)
        self._feed = -1
        return False

    def _read(self, handle: int) -> bool:
        part = os.read(handle, 65536)
        if part:
            self._sinks[handle] += part
            return True
        del self._sinks[handle]
        os.close(handle)
        return False

    def _until_ended(self, left: float) -> None:
        """Wait for its end, which is near: it said all. Linux tells when; elsewhere it is asked again and again."""
        import select
        import time

        if self._ended(os.WNOHANG):
            return
        try:
            watch = os.pidfd_open(self._pid)
        except (AttributeError, OSError):
            deadline = time.monotonic() + left
            while not self._ended(os.WNOHANG) and time.monotonic() < deadline:
                time.sleep(0.0005)
            return
        try:
            ending = select.poll()
            ending.register(watch, select.POLLIN)
            ending.poll(max(left, 0) * 1000)
            self._ended(os.WNOHANG)
        finally:
            os.close(watch)

    def _ended(self, how: int) -> bool:
        pid, status = os.waitpid(self._pid, how)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def end(self) -> None:
        """Kill whatever of it still lives (past the deadline, or interrupted), and close its pipes."""
        if self._code is None:
            try:
                os.killpg(self._pid, _KILL)
            except (ProcessLookupError, PermissionError):  # macOS says the latter of a zombie
                pass
            self._ended(0)
        for handle in (*self._sinks, self._feed):
            if handle >= 0:
                os.close(handle)
        self._sinks.clear()
        self._feed = -1


def _words(args: Sequence[str | bytes]) -> str:
    return " ".join(os.fsdecode(a) for a in args[:3])


def _failure(args: Sequence[str | bytes], cwd: str, code: int, err: bytes) -> str:
    said = err.decode("utf-8", "backslashreplace").strip().splitlines()
    return f"git {_words(args)} in {cwd} failed with exit code {code}: {said[0] if said else 'no message'}"
