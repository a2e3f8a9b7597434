"""What `doctor` finds, whoever looked: one check, its level, what was found, and how to mend it."""

from __future__ import annotations

OK, NOTE, PROBLEM = "ok", "note", "problem"


class Finding:
    """One check: its name, `ok`, `note` or `problem`, what was found, and how to mend it."""

    __slots__ = ("found", "level", "mend", "name")

    def __init__(self, name: str, level: str, found: str, mend: str = "") -> None:
        self.name = name
        self.level = level
        self.found = found
        self.mend = mend

    def as_json(self) -> dict[str, str]:
        """For `--json`."""
        return {"check": self.name, "level": self.level, "found": self.found, "mend": self.mend}
