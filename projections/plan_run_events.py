"""The events of `run/<root>-<date>` as typed data; what may follow what stands in `projections.plan_run`.

Contract page plan-runs. Digests of plans are SHA-256, all others BLAKE3, in lower-case hex.
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
from msgspec import Struct

from projections.result_keys import result_key

STATUSES = ("draft_ready", "submitted", "skipped", "error")
UNHANDED = ("skill_missing", "sub_router")
"""The rules by which an item fails before it can be handed off."""
ADOPTED = "adopted"
ALREADY_SUBMITTED = "already_submitted"
"""The reason code of a submission that was found, not made here."""
NOT_APPROVED, PAUSED, SKILL_MISSING, INTERRUPTED = "not_approved", "paused", "skill_missing", "interrupted"


_keys: dict[tuple[str, str], str] = {}  # by course and assignment: every rule over a plan's items asks again


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a plan: what the rules read of it. Ids as text."""

    index: int
    bucket: str
    course_id: str
    assignment_id: str
    skill: str

    @property
    def key(self) -> str:
        """The item's result key."""
        ids = self.course_id, self.assignment_id
        key = _keys.get(ids)
        if key is None:
            if len(_keys) > 2000:
                _keys.clear()
            key = _keys[ids] = result_key(*ids)
        return key


class Proposed(Struct, frozen=True, forbid_unknown_fields=True):
    """A plan stands in the run's folder; content: the plan as given. `runs`: BLAKE3 of the runs folder's real path."""

    runs: str
    digest: str
    snapshot: str
    items: tuple[Item, ...]


class Approved(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A person's words decided every item; content: the words. `text_digest` is BLAKE3 of nonce and words."""

    session_id: str
    decisions: dict[str, str]
    digest_before: str
    digest_after: str
    nonce: str
    text_digest: str
    expires_at: str = ""
    principal: str = ""
    signature: str = ""


class Claimed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One session holds the run; content: the path of the runs folder. `adopted`: another tool had made its marker."""

    session_id: str
    plan_digest: str
    created_at: str
    nonce: str
    adopted: bool = False


class Resumed(Struct, frozen=True, forbid_unknown_fields=True):
    """The owner came back; results must be prepared again before anything else."""

    session_id: str
    nonce: str


class Prepared(Struct, frozen=True, forbid_unknown_fields=True):
    """The approved slots are empty of older results; `keys` in plan order."""

    session_id: str
    nonce: str
    prepared_at: str
    archived: int
    keys: tuple[str, ...]


class Recovered(Struct, frozen=True, forbid_unknown_fields=True):
    """A past day's marker (BLAKE3 of its bytes in `marker`) was closed: each item is kept or deferred to the next run."""

    marker: str
    session_id: str
    nonce: str
    plan_digest: str
    kept: dict[str, str]
    deferred: tuple[str, ...]
    entries: dict[str, str]


class Released(Struct, frozen=True, forbid_unknown_fields=True):
    """The owner let the finished run go."""

    session_id: str
    nonce: str


class HandedOff(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An item goes to its skill. `slot` is BLAKE3 of a result that stood in the slot before; it is no result of this hand-off."""

    index: int
    key: str
    skill: str
    nonce: str
    attempt: int
    slot: str = ""
    receipt_id: str = ""


class Deferred(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An item was not run, or its hand-off was interrupted (then `result` and `entry` are empty). Digests are BLAKE3.

    `kept`: a valid result of before stands for the item, and `status` is what it says.
    """

    index: int
    key: str
    nonce: str
    reason: str
    result: str = ""
    entry: str = ""
    entry_before: str = ""
    kept: bool = False
    status: str = ""


class Archived(Struct, frozen=True, forbid_unknown_fields=True):
    """A result of an earlier run was moved out of an approved slot, to `result-history/<name>`."""

    key: str
    name: str
    result: str
    nonce: str


class Recorded(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A canonical result; content: its bytes. `entry`/`entry_before`: BLAKE3 of the key's text in `_processed.json`."""

    index: int
    key: str
    nonce: str
    status: str
    result: str
    entry: str
    entry_before: str = ""
    reason_code: str = ""
    rule: str = ""
    draft: str = ""
    verification: str = ""
    receipt_id: str = ""


class Reported(Struct, frozen=True, forbid_unknown_fields=True):
    """REPORT.md was written; content: its text."""

    report: str


class Delivered(Struct, frozen=True, forbid_unknown_fields=True):
    """Drafts were copied to `final_drafts/`: key -> BLAKE3."""

    drafts: dict[str, str]


class Finalized(Struct, frozen=True, forbid_unknown_fields=True):
    """Every item has a valid result and the report stands."""

    session_id: str
    nonce: str
    plan_digest: str
    report: str
    statuses: dict[str, int]


EVENTS = {
    "plan.proposed": Proposed,
    "plan.approved": Approved,
    "marker.claimed": Claimed,
    "marker.resumed": Resumed,
    "marker.prepared": Prepared,
    "marker.recovered": Recovered,
    "marker.released": Released,
    "item.handed_off": HandedOff,
    "item.deferred": Deferred,
    "result.archived": Archived,
    "result.recorded": Recorded,
    "run.reported": Reported,
    "run.delivered": Delivered,
    "run.finalized": Finalized,
}
