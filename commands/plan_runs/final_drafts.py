"""`final_drafts/`: copies of the drafts under stable names, a view (contract: `run deliver`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = "final_drafts"
_KEPT = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_LIMIT = 60


def final_name(key: str, draft_name: str, taken: Iterable[str]) -> str:
    """The copy's name: the item's key and the draft's own name, made safe.

    Keys are unique in a run; `taken` holds the names given before, compared without case for file systems
    that ignore it, and a clash gets eight digits of the key's digest.
    """
    own = draft_name.rpartition("/")[2]
    stem, _, extension = own.rpartition(".")
    if not stem or not 0 < len(extension) < 12:
        stem, extension = own, ""
    stem = _safe(stem).lstrip(".-") or "draft"
    base = f"{stem[: _NAME_LIMIT - len(extension)]}.{_safe(extension)}" if extension else stem[:_NAME_LIMIT]
    name = f"{key}__{base}"[-250:]
    if name.casefold() in {other.casefold() for other in taken}:
        from blake3 import blake3

        name = f"{blake3(key.encode('utf-8')).hexdigest()[:8]}__{name}"[:250]
    return name


def _safe(text: str) -> str:
    return "".join(letter if letter in _KEPT else "-" for letter in text)


def render_readme(copies: list[tuple[str, str, str]]) -> bytes:
    """README.md of the folder: each copy's name, where its source stands in the run, its digest (BLAKE3)."""
    lines = [
        "# Final drafts",
        "",
        "Copies for review. The sources stay where they are; nothing here was submitted by approving the plan.",
        "",
        *(
            f"- `{name}` from `{' '.join(source.split())}` (blake3 {digest})"
            for name, source, digest in copies
        ),
    ]
    if not copies:
        lines.append("(no draft in this run)")
    return ("\n".join(lines) + "\n").encode("utf-8")
