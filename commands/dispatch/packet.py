"""The HandoffPacket: all that a worker is told, and the same as a prompt; nothing of our environment is in it."""

from __future__ import annotations

from commands.dispatch.ceiling import READ_ONLY
from commands.dispatch.request import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from commands.dispatch.request import Request
    from commands.dispatch.rubric import Row

RETURN_SHAPE: dict[str, Any] = {
    "status": "accepted|failed|blocked|abandoned",
    "route": {
        "requested": "",
        "actual_model": "",
        "effort": "",
        "provider": "",
        "executor": "",
        "resolution": "",
        "attempted": [],
        "fallback_reason": "",
    },
    "artifacts": {"files": [], "report": ""},
    "evidence": {"fixed_target": [], "checks": [], "outcome": "proven|unproven"},
    "telemetry": {"attempts": 0, "elapsed": 0, "verification_failures": 0, "token_or_quota_usage": ""},
    "shelby": {"project_id": "", "run_id": "", "checkpoint_ids": []},
    "blockers": [],
}


def packet_of(
    request: Request,
    row: Row,
    *,
    sandbox: str,
    approved: Mapping[str, int],
    proof: str = "",
    recalled: str = "",
) -> dict[str, Any]:
    """The packet for one candidate; optional fields stand only when they hold something.

    `approved`: the seq of each recorded approval, by what it approves; the request itself may still say null.
    """
    authority, verification = request.authority, request.verification
    packet: dict[str, Any] = {"outcome": request.outcome}
    state = "\n\n".join(text for text in (request.context.state or "", recalled) if text.strip())
    optional = (
        ("current_state", state),
        ("relevant_files", list(request.context.files)),
        ("constraints", listed(request.constraints)),
        ("unresolved_blockers", listed(request.blockers)),
    )
    packet |= {name: value for name, value in optional if value}
    seam = verification.seam
    packet["verification_seam"] = {
        "seam": seam if isinstance(seam, str) else list(seam),
        "expected": {"exit": verification.expected.exit, "contains": verification.expected.contains},
        "fixed_target": listed(verification.fixed_target),
    }
    if proof:
        packet["current_proof"] = proof
    packet["authority"] = {
        "working_directory": authority.working_directory,
        "allowed_paths": [] if sandbox == READ_ONLY else list(authority.allowed_paths),
        "tools": list(authority.tools),
        "approvals": [
            {"what": item.what, "approval_seq": approved.get(item.what)} for item in authority.approvals
        ],
        "sandbox": sandbox,
    }
    packet["expected_return_shape"] = RETURN_SHAPE
    return packet | {"model": row.name, "effort": row.effort, "context_mode": request.context.mode}


_TITLES = (
    ("outcome", "Outcome"),
    ("current_state", "Current state"),
    ("relevant_files", "Relevant files"),
    ("constraints", "Constraints"),
    ("unresolved_blockers", "Unresolved blockers"),
    ("verification_seam", "Verification seam"),
    ("current_proof", "Current proof"),
    ("authority", "Authority"),
    ("expected_return_shape", "Return"),
)
_RULES = (
    "Stay inside the working directory and the allowed paths; with no allowed path, write nothing. Do not commit, push, "
    "deploy, or change git or global configuration unless a listed tool or approval grants it. Go through to the end "
    "without waiting for anybody; what needs an approval that is not listed stays undone and is named as a blocker. "
    "Your report is a claim: the verification seam is run again by others."
)


def prompt_of(packet: dict[str, Any]) -> str:
    """The packet as text for an agent that takes a prompt."""
    import json

    parts = []
    for name, title in _TITLES:
        if name not in packet:
            continue
        value = packet[name]
        if isinstance(value, list):
            text = "\n".join(f"- {item}" for item in value)
        else:
            text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        parts.append(f"# {title}\n\n{text}")
    return "\n\n".join([*parts, f"# Rules\n\n{_RULES}"]) + "\n"
