"""`.review-loop/sessions/<uuid>.md`: sections in a fixed order, metadata last (contract `review-sessions`, Session file).

Text that is not ours, in any section or between them, is kept byte for byte through every rewrite.
"""

from __future__ import annotations

from commands.sessions.markdown import lines_outside_fences
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ORDER = (
    "Problem Description",
    "Context",
    "Acceptance Criteria",
    "Current Phase",
    "Approved Plan",
    "Review History",
    "Files Changed",
    "Key Related Files",
    "Timing Log",
    "Session Metadata",
)
REVIEW_TARGET = "Review Target"
DRAFT_PLAN = "Draft Plan"
METADATA = "Session Metadata"

REVIEWER_APPROVED, USER_SUPPLIED, REVIEW_ONLY = "reviewer-approved", "user-supplied", "review-only"
SOURCES = (REVIEWER_APPROVED, USER_SUPPLIED, REVIEW_ONLY)
ENTRY_POINTS = ("plan", "execute-from-session", "execute-from-plan", "review-only", "review-loop")
STAGES = ("exec", "polish", "docs", "security")
USER_ABORT = "user-abort"
_FIELDS = frozenset(
    ("entry_point", "plan_source", "base_head", "base_dirty", "last_verified_head", "last_verified_dirty",
     "session_commits", "completed_stages", "delivery_blocked_by")
)  # fmt: skip
BASELINE_FIELDS = ("base_head", "base_dirty", "last_verified_head", "last_verified_dirty", "session_commits")

SENTINEL = "(none — review-only mode)\n\nScope: see `## Review Target` section below."
_INLINE_PHASE = "## Current Phase:"  # the older tool writes the phase behind it
TIMING_HEADER = "| step | began | seconds |\n|---|---|---|"


class SessionFile:
    """A parsed file: what stands before the first section, and each section's raw text, heading line included, under its title."""

    __slots__ = ("preamble", "sections")

    def __init__(self, preamble: str, sections: list[tuple[str, str]]) -> None:
        self.preamble = preamble
        self.sections = sections

    def body(self, title: str) -> str | None:
        """The text of a section without the blank lines around it; None when there is no such section."""
        place = _find(title, [name for name, _ in self.sections])
        return None if place is None else _body(self.sections[place][1])

    def render(self) -> str:
        """The file's text again."""
        return self.preamble + "".join(text for _, text in self.sections)

    def with_bodies(self, bodies: Mapping[str, str | None]) -> SessionFile:
        """The file with these sections' bodies put in; others keep their text, missing ones take their place.

        A body that is equal already leaves its section's bytes alone; None removes the section.
        """
        kept = [(n, t) for n, t in self.sections if not (n in bodies and bodies[n] is None)]
        names = [name for name, _ in kept]
        for title, body in bodies.items():
            if body is None:
                continue
            text = f"## {title}\n\n{body}\n\n" if body else f"## {title}\n\n"
            place = _find(title, names)
            if place is not None:
                if _body(kept[place][1]) != body.strip("\r\n"):
                    inline = kept[place][1].startswith(_INLINE_PHASE)
                    kept[place] = (title, f"{_INLINE_PHASE} {body}\n\n" if inline else text)
            else:
                place = _place_for(title, names)
                kept.insert(place, (title, text))
                names.insert(place, title)
        last = _find(METADATA, names)
        if last is not None:
            kept.append(kept.pop(last))
        return SessionFile(
            self.preamble, [(n, _ended(t)) for n, t in kept[:-1]] + [_last(kept[-1])] if kept else []
        )


def _body(text: str) -> str:
    """A section's text without its heading line and the blank lines around; a phase may stand in its heading."""
    heading, _, below = text.partition("\n")
    if heading.startswith(_INLINE_PHASE):
        below = f"{heading.removeprefix(_INLINE_PHASE).strip()}\n{below}"
    return below.strip("\r\n")


def _find(title: str, names: list[str]) -> int | None:
    """Where a section stands. A plan may hold such headings itself: what comes after the plan is looked for from the end."""
    if title not in names:
        return None
    if title in ORDER[ORDER.index("Approved Plan") + 1 :]:
        return len(names) - 1 - names[::-1].index(title)
    return names.index(title)


def _ended(text: str) -> str:
    """A section before another one ends with a line end, so that the next heading begins a line."""
    return text if text.endswith("\n") else text + "\n\n"


def _last(section: tuple[str, str]) -> tuple[str, str]:
    name, text = section
    return name, text if not text.endswith("\n\n") else text.rstrip("\n") + "\n"


def _place_for(title: str, names: list[str]) -> int:
    after = "Approved Plan" if title in (REVIEW_TARGET, DRAFT_PLAN) else None
    earlier = (
        ORDER[: ORDER.index(after) + 1] if after else ORDER[: ORDER.index(title)] if title in ORDER else ORDER
    )
    places = [names.index(name) for name in earlier if name in names]
    if title not in ORDER and after is None:
        return names.index(METADATA) if METADATA in names else len(names)
    return max(places) + 1 if places else 0


def parse_session(text: str) -> SessionFile:
    """Split a session file at its `## ` headings outside code fences; joining the parts gives the same text.

    A plan's own `## ` headings inside Approved Plan become sections of their own here: they stand where they
    stood, and `approved_plan` joins them again.
    """
    preamble: list[str] = []
    sections: list[tuple[str, list[str]]] = []
    raw = text.split("\n")
    for i, (line, fenced) in enumerate(lines_outside_fences(text)):
        original = raw[i] + ("\n" if i < len(raw) - 1 else "")
        if not fenced and line.startswith("## ") and line[3:].strip():
            title = "Current Phase" if line.startswith(_INLINE_PHASE) else line[3:].strip()
            sections.append((title, [original]))
        elif sections:
            sections[-1][1].append(original)
        else:
            preamble.append(original)
    return SessionFile("".join(preamble), [(name, "".join(lines)) for name, lines in sections])


def approved_plan(file: SessionFile) -> tuple[str | None, str]:
    """(Source, body) of the Approved Plan; Source None while the section is empty.

    Raises:
        Invalid: a body without one of the three Sources.
    """
    names = [name for name, _ in file.sections]
    if "Approved Plan" not in names:
        return None, ""
    start = names.index("Approved Plan")
    end = _find("Review History", names)
    if end is None or end < start:
        end = next((i for i in range(start + 1, len(names)) if names[i] in ORDER), len(names))
    while end > start + 1 and names[end - 1] in (REVIEW_TARGET, DRAFT_PLAN):
        end -= 1
    parts = [
        file.sections[start][1].partition("\n")[2],
        *(text for _, text in file.sections[start + 1 : end]),
    ]
    body = "".join(parts).strip("\r\n")
    if not body.strip():
        return None, ""
    first, _, rest = body.partition("\n")
    source = first.strip().removeprefix("- Source:").strip()
    if not first.startswith("- Source:") or source not in SOURCES:
        raise Invalid(
            f"`## Approved Plan` has a body without `- Source: {'|'.join(SOURCES)}`; add that line first"
        )
    return source, rest.strip("\n")


class Metadata:
    """The last section's fields; a baseline field that the file lacks is in `missing`, a line that is none of ours in `others`."""

    __slots__ = ("completed_stages", "delivery_blocked_by", "dirty", "entry_point", "heads", "missing", "others", "plan_source", "session_commits")  # fmt: skip

    def __init__(self) -> None:
        self.entry_point = "execute-from-session"
        self.plan_source = REVIEWER_APPROVED
        self.heads = {"base_head": "", "last_verified_head": ""}
        self.dirty: dict[str, dict[str, str]] = {"base_dirty": {}, "last_verified_dirty": {}}
        self.session_commits: list[str] = []
        self.completed_stages: list[str] = []
        self.delivery_blocked_by: str | None = None
        self.missing: list[str] = []
        self.others: list[str] = []

    def render(self) -> str:
        """The section's body."""
        import json

        def compact(value: object) -> str:
            return json.dumps(value, ensure_ascii=False)

        return "\n".join(
            [
                f"- entry_point: {self.entry_point}",
                f"- plan_source: {self.plan_source}",
                f"- base_head: {self.heads['base_head']}",
                f"- base_dirty: {compact(self.dirty['base_dirty'])}",
                f"- last_verified_head: {self.heads['last_verified_head']}",
                f"- last_verified_dirty: {compact(self.dirty['last_verified_dirty'])}",
                f"- session_commits: {compact(self.session_commits)}",
                f"- completed_stages: {compact(self.completed_stages)}",
                f"- delivery_blocked_by: {_blocked_text(self.delivery_blocked_by)}",
                *self.others,
            ]
        )


def _blocked_text(value: str | None) -> str:
    return "null" if value is None else f'"{value}"' if value == USER_ABORT else value


def parse_metadata(body: str | None) -> Metadata:
    """The fields of `## Session Metadata`; lists may be JSON or bare words, `#` comments after them are dropped.

    Raises:
        Invalid: a value outside its set, broken JSON. Missing fields, and those without a value, take the contract's defaults.
    """
    metadata = Metadata()
    held: dict[str, list[str]] = {}
    field: list[str] = []
    indent = 0
    for line in (body or "").split("\n"):
        key, colon, value = line.strip().removeprefix("-").strip().partition(":")
        if colon and key in _FIELDS and key not in held:
            field = held[key] = [value.strip()]
            indent = _indent(line)
        elif field and _goes_on(field, line, indent):
            field.append(line)
        elif line.strip():
            metadata.others.append(line.rstrip("\r"))
    values = {key: "\n".join(lines).strip() for key, lines in held.items()}
    found = {key: value for key, value in values.items() if _first(value) not in ("", "null")}
    metadata.missing = [name for name in BASELINE_FIELDS if name not in found]
    metadata.entry_point = _one_of(found, "entry_point", ENTRY_POINTS, metadata.entry_point)
    metadata.plan_source = _one_of(found, "plan_source", SOURCES, metadata.plan_source)
    for name in metadata.heads:
        if name in found:
            metadata.heads[name] = _head(name, found[name])
    for name in metadata.dirty:
        if name in found:
            metadata.dirty[name] = _map(name, found[name])
    metadata.session_commits = _words(found.get("session_commits", "[]"), "session_commits")
    metadata.completed_stages = _words(found.get("completed_stages", "[]"), "completed_stages")
    for stage in metadata.completed_stages:
        if stage not in STAGES:
            raise Invalid(f"completed_stages: {stage[:40]!r} is none of {', '.join(STAGES)}")
    blocked = _first(found.get("delivery_blocked_by", "null")).strip('"`')
    if blocked not in ("null", "", *STAGES, USER_ABORT):
        raise Invalid(
            f"delivery_blocked_by: {blocked[:40]!r} is none of {', '.join(STAGES)}, {USER_ABORT}, null"
        )
    metadata.delivery_blocked_by = None if blocked in ("null", "") else blocked
    return metadata


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _goes_on(field: list[str], line: str, indent: int) -> bool:
    """Whether a field's value, the lines read so far, goes on in this line.

    That is a list or object that is not closed yet, or not begun; and what is indented below a field without a
    value belongs to it, and is judged with it. Only a line that could close an object is worth a look at the whole.
    """
    import json

    begun = next(filter(None, field), "").lstrip()
    if not begun:
        return line.strip().startswith(("[", "{")) or (line.strip() != "" and _indent(line) > indent)
    if begun.startswith("["):
        return "]" not in field[-1]
    if not begun.startswith("{"):
        return field[0] == "" and line.strip() != "" and _indent(line) > indent
    if "}" not in field[-1]:
        return True
    try:
        json.JSONDecoder().raw_decode("\n".join(field).strip())
    except ValueError:
        return True
    return False


def _first(value: str) -> str:
    """A one-line value without a comment after it."""
    return value.partition("\n")[0].partition(" #")[0].strip()


def _one_of(found: dict[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = found.get(name, default).partition(" #")[0].strip().strip('"`')
    if value not in allowed:
        raise Invalid(f"{name}: {value[:40]!r} is none of {', '.join(allowed)}")
    return value


def _head(name: str, value: str) -> str:
    from commands.sessions.tree import UNBORN

    value = value.partition(" #")[0].strip().strip('"`')
    if value != UNBORN and (len(value) not in (40, 64) or value.strip("0123456789abcdef")):
        raise Invalid(f"{name}: {value[:80]!r} is not a commit id")
    return value


def _map(name: str, value: str) -> dict[str, str]:
    import json

    try:
        parsed, _ = json.JSONDecoder().raw_decode(value)
    except ValueError as error:
        raise Invalid(f"{name} is not a JSON object: {error}") from None
    if not isinstance(parsed, dict) or not all(isinstance(v, str) for v in parsed.values()):
        raise Invalid(f"{name} is not a JSON object of paths and blob ids")
    return parsed


def _words(value: str, name: str) -> list[str]:
    import json

    inner, closed, after = value.partition("]")
    if not value.startswith("[") or not closed or after.partition("\n")[0].strip()[:1] not in ("", "#"):
        raise Invalid(f"{name} is not a list in brackets")
    value = inner + closed
    try:
        items = json.loads(value)
    except ValueError:
        items = [part.strip().strip("\"'`") for part in value[1:-1].split(",") if part.strip()]
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise Invalid(f"{name} is not a list of words")
    return items


def new_session(
    *, source: str, title: str, description: str, plan: str, files_changed: str, metadata: Metadata
) -> SessionFile:
    """The file of a new session, with the initial texts of the contract (plan and review-only modes)."""
    if source == REVIEW_ONLY:
        target = description or "The whole current working tree."
        bodies = {
            "Problem Description": description or "Review-only pass over current working tree.",
            "Context": f"Scope: {target}",
            "Acceptance Criteria": "Reviewer returns APPROVE with no CRITICAL issues for the target scope.",
            "Current Phase": "execution",
            "Approved Plan": f"- Source: {source}\n\n{SENTINEL}",
            REVIEW_TARGET: target,
            "Files Changed": files_changed,
            "Key Related Files": target if description else "",
        }
    else:
        context = "User-supplied plan; no planning-phase context captured."
        bodies = {
            "Problem Description": f"{title}\n\n{description}" if description else title,
            "Context": f"{context}\n\n{description}" if description else context,
            "Acceptance Criteria": "Implementation matches the user-supplied plan in ## Approved Plan.",
            "Current Phase": "execution",
            "Approved Plan": f"- Source: {source}\n\n{plan}",
            "Files Changed": "",
            "Key Related Files": "",
        }
    bodies |= {"Review History": "", "Timing Log": TIMING_HEADER, METADATA: metadata.render()}
    empty = SessionFile("", [])
    return empty.with_bodies(
        {name: bodies[name] for name in (*ORDER[:5], REVIEW_TARGET, *ORDER[5:]) if name in bodies}
    )
