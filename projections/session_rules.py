"""The fixed sets and numbers of a review session (contract `review-sessions`)."""

from __future__ import annotations

STAGES = ("exec", "polish", "docs", "security")
USER_ABORT = "user-abort"
PEOPLE = ("flag", "person")  # how a user answers a question
STOP_POINTS = ("exec-round", "before-polish", "before-docs", "before-security", "before-delivery", "delivery")
SOURCES = ("reviewer-approved", "user-supplied", "review-only")
ENTRY_POINTS = ("plan", "execute-from-session", "execute-from-plan", "review-only", "review-loop")

# The whole sequence of 3.5 and of 3.6, in order.
STEPS = {
    "polish": ("static-analysis", "code-review", "simplify", "test-consolidation", "summary"),
    "docs": ("project-docs", "comments"),
}
# How often a step may write, over all replays of the session's convergence.
CAPS = {
    "static-analysis": 2,
    "code-review": 3,
    "simplify": 1,
    "test-consolidation": 2,
    "summary": 0,
    "project-docs": 1,
    "comments": 1,
    "security": 1,
}
STUCK_AFTER = 3  # rounds in a row with the same CRITICAL
FAST_REPLAY_STEPS = ("simplify", "project-docs", "comments")

OUTCOMES = ("started", "clean", "written", "reverted", "skipped", "discarded", "unresolved")
# Why the adversarial gate was skipped.
GATE_SKIPS = (
    "plugin-root-unresolved",
    "cache-schema-unresolved",
    "codex-unauthenticated",
    "runtime-error",
    "runtime-timeout",
    "skipped-by-config",
)
DRIFT_REASONS = (
    "external-head",
    "content-or-deletion-changed",
    "newly-dirty",
    "reverted-externally",
    "config-changed",
    "missing-baseline",
)


def missing_stage(stages: dict[str, str], fingerprint: str) -> str | None:
    """The first stage that does not stand for this tree; None when delivery is open."""
    return next((stage for stage in STAGES if stages.get(stage) != fingerprint), None)
