"""The errors a user can meet, by situation; each knows its exit code (contract page `ledger`, Output).

A message is one line: what, where, and what to do. No message holds a secret's value.
"""

from __future__ import annotations


class GatebookError(Exception):
    """Any outcome that a user or agent must act on; `exit_code` is the process' exit code."""

    exit_code = 1


class Invalid(GatebookError):
    """Input that breaks a rule of form: exit 1."""


class Usage(GatebookError):
    """The call itself is off (flags, arguments, no ledger here): exit 2."""

    exit_code = 2


class Tampered(GatebookError):
    """What is stored is not what was recorded: exit 3. `verdict` is one of the named verdicts of DESIGN."""

    exit_code = 3

    def __init__(self, message: str, *, verdict: str = "content-mismatch", seq: int | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.seq = seq


class Refused(GatebookError):
    """A rule of authority or of lawful order says no: exit 4."""

    exit_code = 4


class Conflict(GatebookError):
    """Somebody else was first: expected version, idempotency key, owner: exit 5."""

    exit_code = 5


class MissingExecutor(GatebookError):
    """A program that must do the work cannot be run: exit 69 (EX_UNAVAILABLE)."""

    exit_code = 69


class Unavailable(GatebookError):
    """Provider, disk or lock cannot serve now; the same call may succeed later: exit 75 (EX_TEMPFAIL)."""

    exit_code = 75
