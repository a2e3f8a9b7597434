"""`.review-loop/config.md` around a gate run: a producer may not leave its own gate settings behind.

Contract `review-sessions`, Gate: the known bootstrap of `codex exec` is undone, anything else stays for
inspection and blocks.
"""

from __future__ import annotations

import os
import stat

CONFIG_PATH = os.path.join(".review-loop", "config.md")

# What `codex exec` writes into a work tree when its sandbox starts: it would lower the next gate.
KNOWN_BOOTSTRAP = b"codex_reviewer_backend: codex\nskip_quality_polish: true\n"


class ConfigGuard:
    """The state of the config file before a run; `settle` undoes the known change, or says what is wrong."""

    __slots__ = ("before", "path")

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, CONFIG_PATH)
        self.before = _state(self.path)

    def settle(self) -> str | None:
        """None once the file is byte for byte as before; else one line that says what was found."""
        try:
            now = _state(self.path)
            if now == self.before:
                return None
            if now[0] == "file" and now[1] == KNOWN_BOOTSTRAP:
                self._restore()
            elif now[0] == "absent" and self.before[0] == "file":
                self._restore()  # deleted: nothing is there that could be worth inspecting
            else:
                return f"{CONFIG_PATH} was changed in an unexpected way; it was left in place for inspection"
            if _state(self.path) != self.before:
                return f"{CONFIG_PATH} could not be brought back to what it was"
        except OSError as error:
            return f"{CONFIG_PATH} cannot be proven restored: {error.strerror}"
        return None

    def _restore(self) -> None:
        kind, content, mode = self.before
        if kind == "absent":
            os.unlink(self.path)
            return
        if kind != "file":
            return  # the comparison after this reports it
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        temporary = f"{self.path}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)


def _state(path: str) -> tuple[str, bytes, int]:
    """What stands at the path: kind, content (a link's target), permission bits."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "absent", b"", 0
    if stat.S_ISLNK(found.st_mode):
        return "link", os.fsencode(os.readlink(path)), 0
    if not stat.S_ISREG(found.st_mode):
        return "other", b"", found.st_mode
    with open(path, "rb") as file:
        return "file", file.read(), stat.S_IMODE(found.st_mode)
