"""The HarnessResult: every field always there, empty when unknown (contract page dispatch)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from projections.dispatch import State

EXIT_CODES = {"accepted": 0, "failed": 1, "blocked": 4, "abandoned": 1}
_NOT_DISPATCHED = ("missing_executor", "not_started")


class Evidence:
    """What is known of an attempt's return and of its verification; all empty before them."""

    __slots__ = ("checks", "files", "fixed_target", "project", "report", "usage")

    def __init__(self) -> None:
        self.files: list[str] = []
        self.report = ""
        self.usage = ""
        self.checks: list[dict[str, Any]] = []
        self.fixed_target: list[dict[str, str]] = []
        self.project = ""


def result_of(
    status: str,
    blockers: Sequence[str],
    *,
    requested: str = "",
    state: State | None = None,
    evidence: Evidence | None = None,
    elapsed: float = 0,
) -> dict[str, Any]:
    """The complete result of a request in `state` (None: it was never opened). `elapsed` in seconds."""
    known = evidence or Evidence()
    attempts = [] if state is None else [a for a in state.attempts if a.status not in _NOT_DISPATCHED]
    last = attempts[-1] if attempts else None
    model, _, effort = last.candidate.rpartition("@") if last else ("", "", "")
    return {
        "status": status,
        "route": {
            "requested": requested,
            "actual_model": model,
            "effort": effort,
            "provider": last.provider if last else "",
            "executor": last.executor if last else "",
            "resolution": state.resolution if state else "",
            "attempted": list(dict.fromkeys(attempt.candidate for attempt in attempts)),
            "fallback_reason": state.fallback_reason if state else "",
        },
        "artifacts": {"files": known.files, "report": known.report},
        "evidence": {
            "fixed_target": known.fixed_target,
            "checks": known.checks,
            "outcome": "proven" if state is not None and state.proven else "unproven",
        },
        "telemetry": {
            "attempts": len(attempts),
            "elapsed": round(elapsed, 3),
            "verification_failures": state.failures if state else 0,
            "token_or_quota_usage": known.usage,
        },
        "shelby": {"project_id": known.project, "run_id": "", "checkpoint_ids": []},
        "blockers": list(blockers),
    }
