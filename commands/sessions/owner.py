"""Who holds a lock: a process, told apart from a later one with the same number (contract `review-sessions`, Start)."""

from __future__ import annotations

import os

_SHELLS = frozenset(
    {"sh", "bash", "rbash", "zsh", "fish", "dash", "ksh", "mksh", "yash", "tcsh", "csh", "busybox", "ash", "pwsh", "nu", "elvish", "xonsh"}
)  # fmt: skip
ALIVE, DEAD, ELSEWHERE = "alive", "dead", "elsewhere"


class Owner:
    """A process on one host, boot and pid namespace; `started` is its start time as the system counts it."""

    __slots__ = ("boot", "host", "namespace", "pid", "started")

    def __init__(self, pid: int, started: str, boot: str, namespace: str, host: str) -> None:
        self.pid = pid
        self.started = started
        self.boot = boot
        self.namespace = namespace
        self.host = host

    def standing(self) -> str:
        """`alive`, `dead`, or `elsewhere` (another host or namespace: counts as alive until recovered)."""
        if self.host and self.host != os.uname().nodename:
            return ELSEWHERE
        if self.boot and self.boot != _boot():
            return DEAD
        if self.namespace and self.namespace != _namespace():
            return ELSEWHERE
        now = _start_of(self.pid)
        if now is None or (self.started and self.started != now):
            return DEAD
        return ALIVE


def owner_of(pid: int) -> Owner | None:
    """The process with this number now; None when there is none."""
    started = _start_of(pid)
    if started is None:
        return None
    return Owner(pid, started, _boot(), _namespace(), os.uname().nodename)


def nearest_agent() -> int:
    """The nearest ancestor of this process that is not a shell; the parent when there is none."""
    pid = os.getppid()
    first = pid
    for _ in range(64):
        name, parent = _name_and_parent(pid)
        if not name or pid <= 1:
            return first
        if name.lstrip("-") not in _SHELLS:
            return pid
        pid = parent
    return first


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """The name and the fields after it of /proc/PID/stat (proc(5)); the name may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def _start_of(pid: int) -> str | None:
    if os.path.isdir("/proc/self"):
        found = _stat(pid)
        if found is None or found[1][0] in ("Z", "X"):
            return None
        return found[1][19]  # field 22: ticks since boot
    return _ps(pid, "lstart")


def _name_and_parent(pid: int) -> tuple[str, int]:
    if os.path.isdir("/proc/self"):
        found = _stat(pid)
        return ("", 0) if found is None else (found[0], int(found[1][1]))
    name, parent = _ps(pid, "comm"), _ps(pid, "ppid")
    return os.path.basename(name or ""), int(parent or 0)


def _ps(pid: int, column: str) -> str | None:
    """One column of ps(1), for systems without /proc."""
    import subprocess

    done = subprocess.run(
        ["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import subprocess

        done = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False)
        return done.stdout.strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
