"""Whether the orchestrating agent should save its intermediate results before the review: its context is nearly full.

Contract `review-sessions`, Rounds (context-persist). The agent knows what is worth keeping; we only read the
telemetry that its harness writes, and say so. Without telemetry the answer is no.
"""

from __future__ import annotations

import os

TELEMETRY = os.path.join("~", ".claude", "session-state.json")


def persist_due(threshold: int) -> bool:
    """Whether the harness says that at least `threshold` per cent of the context window are used."""
    import json

    try:
        with open(os.path.expanduser(TELEMETRY), "rb") as file:
            used = json.loads(file.read(1 << 20))["context_pct"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(used, (int, float)) and not isinstance(used, bool) and used >= threshold
