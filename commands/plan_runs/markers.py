"""The marker `.scan_in_progress`: a claim on a run that foreign tools respect too (contract: Marker).

Parsing, validating and making its bytes; the file itself is made, replaced and removed under the ledger's lock.
"""

from __future__ import annotations

import json

from commands.plan_runs.documents import moment_of, parse_document
from commands.plan_runs.rooted import MissingFileError, read_file
from ledger.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKER = ".scan_in_progress"
_LIMIT = 256 << 10
_HEX = frozenset("0123456789abcdef")


class Marker:
    """A well-formed marker: its fields (unknown ones kept) and the bytes it was read from."""

    __slots__ = ("fields", "raw")

    def __init__(self, fields: dict[str, Any], raw: bytes = b"") -> None:
        self.fields = fields
        self.raw = raw

    @property
    def session_id(self) -> str:
        """The owner."""
        return str(self.fields["session_id"])

    @property
    def plan_digest(self) -> str:
        """The digest of the plan that was claimed."""
        return str(self.fields["plan_digest"])

    @property
    def claim_nonce(self) -> str | None:
        """Our claim's nonce; None for a marker of another tool."""
        nonce = self.fields.get("claim_nonce")
        return nonce if isinstance(nonce, str) else None

    @property
    def prepared_keys(self) -> list[str] | None:
        """The approved items' keys that preparation stamped, or None before it."""
        if "results_prepared_at" not in self.fields:
            return None
        return list(self.fields["prepared_approved_result_keys"])


def read_marker(run_dir: str) -> Marker | None:
    """The run's marker, or None where there is none; `Refused`, the file left as it is, for a malformed one."""
    try:
        raw = read_file(run_dir, MARKER, limit=_LIMIT)
    except MissingFileError:
        return None
    except (Invalid, Refused) as error:
        raise Refused(f"{error}; the marker is kept for inspection") from None
    return parse_marker(raw, f"{run_dir}/{MARKER}")


def parse_marker(raw: bytes, where: str = MARKER) -> Marker:
    """The marker in `raw`; `Refused` naming the field that is wrong."""
    if not raw.strip():
        raise Refused(f"{where}: is empty; it is kept, look at who made it")
    try:
        fields = parse_document(raw, where)
    except (Invalid, Refused) as error:
        raise Refused(f"{error}; the marker is kept for inspection") from None
    if not isinstance(fields, dict):
        raise Refused(f"{where}: is not an object; the marker is kept for inspection")
    fault = _fault(fields)
    if fault is not None:
        raise Refused(f"{where}: {fault}; the marker is kept for inspection")
    return Marker(fields, raw)


def _fault(fields: dict[str, Any]) -> str | None:
    session = fields.get("session_id")
    if not isinstance(session, str) or not session.strip():
        return f"session_id is {session!r}, not an id"
    if not isinstance(fields.get("owner_kind"), str) or not fields["owner_kind"]:
        return f"owner_kind is {fields.get('owner_kind')!r}, not a kind of owner"
    if moment_of(fields.get("created_at")) is None:
        return f"created_at is {fields.get('created_at')!r}, not an ISO time with a zone"
    digest = fields.get("plan_digest")
    if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
        return f"plan_digest is {digest!r}, not 64 lower-case hex digits"
    return _stamp_fault(fields)


_STAMP = ("results_prepared_at", "results_archive_count", "prepared_approved_result_keys")


def _stamp_fault(fields: dict[str, Any]) -> str | None:
    present = [name for name in _STAMP if name in fields]
    if not present:
        return None
    if len(present) != len(_STAMP):
        return f"its preparation has only {', '.join(present)}"
    if moment_of(fields["results_prepared_at"]) is None:
        return f"results_prepared_at is {fields['results_prepared_at']!r}, not an ISO time with a zone"
    count = fields["results_archive_count"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return f"results_archive_count is {count!r}, not a count"
    keys = fields["prepared_approved_result_keys"]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return "prepared_approved_result_keys is not a list of keys"
    return None


def validate_execute_marker(
    marker: Any,
    plan: dict[str, Any],
    *,
    session_id: str | None = None,
    require_prepared: bool = False,
) -> Marker:
    """`marker` (fields or a `Marker`) when it fits the plan and owner, else `Refused` or, for another owner, `Conflict`.

    `require_prepared` also wants the preparation stamp with exactly the plan's approved keys, in plan order.
    """
    from commands.plan_runs.plans import plan_digest
    from ledger.errors import Conflict

    held = marker if isinstance(marker, Marker) else parse_marker(json.dumps(marker).encode("utf-8"))
    if session_id is not None and held.session_id != session_id:
        raise Conflict(
            f"the run is held by session {held.session_id} since {held.fields['created_at']}; wait for it or let it be recovered"
        )
    digest = plan_digest(plan)
    if held.plan_digest != digest:
        raise Refused(
            f"the marker holds the plan {held.plan_digest}, plan.json is {digest}; the marker is kept for inspection"
        )
    if require_prepared:
        wanted = approved_keys(plan)
        if held.prepared_keys is None:
            raise Refused("the run's results are not prepared; run `gatebook run prepare-results`")
        if held.prepared_keys != wanted:
            raise Refused(
                f"the marker prepared {_listed(held.prepared_keys)}, the plan approves {_listed(wanted)}; it is kept for inspection"
            )
    return held


def _listed(keys: list[str]) -> str:
    return ", ".join(keys) if keys else "nothing"


def is_approved(item: dict[str, Any]) -> bool:
    """Whether the item's decision lets it run: `approve` or a swap."""
    decision = item.get("user_decision")
    return decision == "approve" or (isinstance(decision, str) and decision.startswith("swap:"))


def approved_keys(plan: dict[str, Any]) -> list[str]:
    """The result keys of exactly the approved and swapped items, in plan order."""
    from projections.result_keys import result_key

    return [
        result_key(item["course_id"], item["assignment_id"]) for item in plan["items"] if is_approved(item)
    ]


def new_marker(session_id: str, created_at: str, digest: str, nonce: str) -> bytes:
    """The bytes of a fresh claim."""
    return render_marker(
        {
            "session_id": session_id,
            "owner_kind": "codex",
            "created_at": created_at,
            "plan_digest": digest,
            "claim_nonce": nonce,
        }
    )


def stamped_marker(fields: dict[str, Any], prepared_at: str, archived: int, keys: list[str]) -> bytes:
    """The bytes of the claim with its preparation; the claim's own fields are kept."""
    return render_marker(
        {
            **fields,
            "results_prepared_at": prepared_at,
            "results_archive_count": archived,
            "prepared_approved_result_keys": keys,
        }
    )


def render_marker(fields: dict[str, Any]) -> bytes:
    """A marker's bytes: one JSON object, one line a field."""
    return (json.dumps(fields, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
