"""What came back from an executor, typed: the only thing that routing decides by (contract page dispatch)."""

from __future__ import annotations

SUCCEEDED = "succeeded"
AVAILABILITY = "availability_failure"
MISSING = "missing_executor"
FAILED = "failed"
EXIT_CODES = {SUCCEEDED: 0, AVAILABILITY: 75, MISSING: 69, FAILED: 1}


class Returned:
    """One executor's result. `reason` and `retry_at` (us) belong to an availability failure alone.

    `healthy`: the endpoint answered, whatever it answered, so a circuit of its may close. `why` is our own
    word for a failure, never a provider's text. `report` is the final text; `usage` what it says it used.
    `ending` is `status`, or how an executor that did not end by itself was stopped.
    """

    __slots__ = ("ending", "healthy", "reason", "report", "retry_at", "status", "usage", "why")

    def __init__(
        self,
        status: str,
        *,
        healthy: bool = False,
        reason: str | None = None,
        report: str = "",
        retry_at: int | None = None,
        usage: str = "",
        why: str = "",
        ending: str = "",
    ) -> None:
        self.status = status
        self.ending = ending or status
        self.healthy = healthy
        self.reason = reason
        self.report = report
        self.retry_at = retry_at
        self.usage = usage
        self.why = why

    @property
    def exit_code(self) -> int:
        """The exit code that says the same."""
        return EXIT_CODES[self.status]

    def reply(self) -> dict[str, object]:
        """The compact JSON of the adapter: a status, for an outage its reason and, when known, its end."""
        answer: dict[str, object] = {"status": self.status}
        if self.reason is not None:
            answer["reason"] = self.reason
        if self.retry_at is not None:
            from projections.times import print_time

            answer["retry_at"] = print_time(self.retry_at)
        return answer


def failed(why: str, *, healthy: bool = False, ending: str = "") -> Returned:
    """A failure that changes no provider."""
    return Returned(FAILED, why=why, healthy=healthy, ending=ending)
