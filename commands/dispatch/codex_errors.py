"""The App Server's typed errors as availability reasons (contract pages dispatch and codex-app-server); pure."""

from __future__ import annotations

from projections.times import DAY, SECOND

_BY_NAME = {
    "usageLimitExceeded": "quota",
    "rateLimitExceeded": "rate_limit",
    "unauthorized": "authentication",
    "serverOverloaded": "provider_unavailable",
    "internalServerError": "provider_unavailable",
}
_CONNECTION = (
    "httpConnectionFailed",
    "responseStreamConnectionFailed",
    "responseStreamDisconnected",
    "responseTooManyFailedAttempts",
)
# What the generated schema must know, or a failure could not be told from an outage.
NEEDED_ERRORS = (
    "usageLimitExceeded",
    "unauthorized",
    "serverOverloaded",
    "internalServerError",
    *_CONNECTION,
)


def availability_reason(error: object) -> str | None:
    """The reason that `turn.error` of a failed `turn/completed` names, None for every other failure."""
    info = error.get("codexErrorInfo") if isinstance(error, dict) else None
    if isinstance(info, str):
        return "provider_unavailable" if info in _CONNECTION else _BY_NAME.get(info)
    if not isinstance(info, dict):
        return None
    for name in _CONNECTION:
        if name in info:
            return _reason_of_status(info[name])
    return None


def _reason_of_status(details: object) -> str | None:
    status = details.get("httpStatusCode") if isinstance(details, dict) else None
    if status is None:
        return "provider_unavailable"
    if type(status) is not int:
        return None
    if status in (401, 403):
        return "authentication"
    if status == 429:
        return "rate_limit"
    return "provider_unavailable" if 500 <= status <= 599 else None


def quota_reset(limits: object) -> int | None:
    """When the used-up window of `account/rateLimits/updated` opens again, in microseconds; None when it is not said."""
    if not isinstance(limits, dict):
        return None
    windows = [window for name in ("primary", "secondary") if isinstance(window := limits.get(name), dict)]
    spent = [window for window in windows if _number(window.get("usedPercent")) >= 100]
    resets = [_number(window.get("resetsAt")) for window in spent or windows[:1]]
    latest = max(resets, default=0)
    # Past the year 2300 it is no time of a quota but a mistake, or milliseconds.
    return int(latest) * SECOND if 0 < latest < 120_000 * DAY // SECOND else None


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
