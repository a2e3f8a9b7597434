"""The drift check as a pure decision (contract `review-sessions`, Drift check)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXTERNAL_HEAD = "external-head"
CHANGED = "content-or-deletion-changed"
NEWLY_DIRTY = "newly-dirty"
REVERTED = "reverted-externally"
CONFIG_CHANGED = "config-changed"
MISSING_BASELINE = "missing-baseline"

REASONS = (EXTERNAL_HEAD, CHANGED, NEWLY_DIRTY, REVERTED, CONFIG_CHANGED, MISSING_BASELINE)


class Drift:
    """One reason why the tree is not the one last verified, and the paths or commits that show it."""

    __slots__ = ("details", "reason")

    def __init__(self, reason: str, details: Sequence[str]) -> None:
        self.reason = reason
        self.details = tuple(details)

    def text(self, limit: int = 10) -> str:
        """The reason and a short detail, for a person."""
        shown = [f"  {detail}" for detail in self.details[:limit]]
        if len(self.details) > limit:
            shown.append(f"  and {len(self.details) - limit} more")
        return "\n".join([f"drift: {self.reason}", *shown])


def check_drift(
    *,
    verified_head: str,
    verified_dirty: Mapping[str, str],
    head: str,
    dirty: Mapping[str, str],
    commits: Sequence[str] | None,
    session_commits: Sequence[str],
) -> Drift | None:
    """The first reason in the contract's order, or None when the tree is the one last verified.

    `commits` are those since `verified_head`, None when `head` does not descend from it.
    """
    if head != verified_head:
        if commits is None:
            return Drift(EXTERNAL_HEAD, [f"HEAD is {head}, not a descendant of {verified_head}"])
        foreign = [commit for commit in commits if commit not in session_commits]
        if foreign:
            return Drift(EXTERNAL_HEAD, [f"commit {commit} is not of this session" for commit in foreign])
    both = dirty.keys() & verified_dirty.keys()
    if changed := sorted(p for p in both if dirty[p] != verified_dirty[p]):
        return Drift(CHANGED, [f"{p}: {verified_dirty[p][:12]} -> {dirty[p][:12]}" for p in changed])
    if new := sorted(dirty.keys() - both):
        return Drift(NEWLY_DIRTY, [f"{p}: {dirty[p][:12]}" for p in new])
    gone = sorted(verified_dirty.keys() - both)
    if gone and head == verified_head:
        return Drift(REVERTED, [f"{p}: was {verified_dirty[p][:12]}" for p in gone])
    return None
