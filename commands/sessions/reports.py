"""`session check-report`: one report, judged alone (contract `review-sessions`, Rounds).

The first kind of fault that applies is given, in the contract's order; nothing is guessed at.
"""

from __future__ import annotations

import re

from commands.git import quote_path, unquote_path
from commands.sessions.markdown import code_span, heading, lines_outside_fences, sections, without_code_spans
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from commands.sessions.markdown import Section

APPROVE = "APPROVE"
REQUEST_CHANGES = "REQUEST_CHANGES"


class Judgement:
    """What a report is worth: `reason` is None when valid; `verdict` and `noop` as the contract gives them."""

    __slots__ = ("detail", "issues", "noop", "paths", "reason", "verdict")

    def __init__(
        self,
        reason: str | None = None,
        detail: str = "",
        *,
        verdict: str | None = None,
        noop: bool | None = None,
        paths: tuple[str, ...] = (),
        issues: tuple[Issue, ...] = (),
    ) -> None:
        self.reason = reason
        self.detail = detail
        self.verdict = verdict
        self.noop = noop
        self.paths = paths
        self.issues = issues

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return self.reason is None

    def document(self) -> dict[str, object]:
        """The JSON document that `session check-report` prints."""
        return {
            "valid": self.valid,
            "reason": self.reason,
            "detail": self.detail or None,
            "verdict": self.verdict,
            "noop": self.noop,
        }


class Issue:
    """One finding of a reviewer: severity, its first line, and all its lines."""

    __slots__ = ("lines", "severity", "title")

    def __init__(self, severity: str, title: str, lines: list[str]) -> None:
        self.severity = severity
        self.title = title
        self.lines = lines


def report_text(data: bytes) -> str:
    """A report's text; `Invalid` unless it is UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"the report is not UTF-8 at byte {error.start}") from None


def check_report(role: str, text: str, delta: Iterable[str] = ()) -> Judgement:
    """Judge a report of `role` (`executor` or `reviewer`); `delta` is what the round changed (executor only)."""
    if role == "reviewer":
        return check_reviewer(text)
    return check_executor(text, delta)


# --- reviewer ---------------------------------------------------------------------------------------------

# Compiled by `re` at their first use: most steps of a session need none of them.
_VERDICT_TITLE = r"(?i)VERDICT\b(.*)$"
_VERDICTS = {f"### VERDICT: {word}": word for word in (APPROVE, REQUEST_CHANGES)}
_LABELLED = r"\s*[-*+]\s+\[([^\]]*)\](?!\()(.*)$"
_ISSUE = r"- \[(CRITICAL|MINOR)\] (.*\S.*)$"
_SEVERITIES = ("CRITICAL", "MINOR")
# What reviewers write instead of one of the two; elsewhere in a report a label may be a link or a box to tick.
_OTHER_SEVERITIES = frozenset(
    {"blocker", "blocking", "critical", "error", "high", "important", "info", "low", "major", "medium", "minor", "moderate", "nit", "severe", "trivial", "warning"}
)  # fmt: skip


def check_reviewer(text: str) -> Judgement:
    """The judgement on a reviewer's report."""
    verdict_lines = [
        line.rstrip()
        for line, fenced in lines_outside_fences(text)
        if not fenced and re.match(_VERDICT_TITLE, heading(line, 3) or "")
    ]
    if not verdict_lines:
        return Judgement(
            "missing-verdict", "no line `### VERDICT: APPROVE` or `### VERDICT: REQUEST_CHANGES`"
        )
    for line in verdict_lines:
        if line not in _VERDICTS:
            return Judgement("bad-verdict", f"{line[:80]!r} is neither APPROVE nor REQUEST_CHANGES")
    if len(verdict_lines) > 1:
        return Judgement("malformed", "more than one verdict line")
    parts = sections(text)
    titles: set[str] = set()
    for part in parts:
        if part.title in titles:
            return Judgement("malformed", f"the section `### {part.title[:80]}` stands twice")
        titles.add(part.title)
    if "Strengths" not in titles:
        return Judgement("missing-strengths", "no section `### Strengths`")
    return _check_issues(_VERDICTS[verdict_lines[0]], text, parts)


def reviewer_issues(text: str) -> tuple[Issue, ...]:
    """The findings of a report that was judged valid when it was recorded, whatever the rules say by now."""
    issues: list[Issue] = []
    for part in sections(text):
        if part.title == "Issues":
            _read_issues(part, issues)
            break
    return tuple(issues)


def _check_issues(verdict: str, text: str, parts: list[Section]) -> Judgement:
    section = next((part for part in parts if part.title == "Issues"), None)
    labelled = [m for line in (section.plain() if section else ()) if (m := re.match(_LABELLED, line))]
    for label in (match[1] for match in labelled):
        if label not in _SEVERITIES:
            return Judgement("bad-severity", f"[{label[:40]}] is neither [CRITICAL] nor [MINOR]")
    outside_fences = [line for line, fenced in lines_outside_fences(text) if not fenced]
    for label in (m[1] for line in outside_fences if (m := re.match(_LABELLED, line))):
        if label not in _SEVERITIES and label.lower() in _OTHER_SEVERITIES:
            return Judgement("bad-severity", f"[{label}] stands outside of `### Issues`, and is no severity")
    everywhere = [line for line in outside_fences if re.match(_ISSUE, line)]
    if len(everywhere) > sum(
        re.match(_ISSUE, line) is not None for line in (section.plain() if section else ())
    ):
        return Judgement("malformed-issues", "an issue stands outside of `### Issues`")
    issues: list[Issue] = []
    if section is not None:
        fault = _read_issues(section, issues)
        if fault:
            return Judgement("malformed-issues", fault)
    criticals = sum(issue.severity == "CRITICAL" for issue in issues)
    if verdict == APPROVE and criticals:
        return Judgement("verdict-issues-inconsistent", "APPROVE with a CRITICAL issue")
    if verdict == REQUEST_CHANGES and not criticals:
        return Judgement("verdict-issues-inconsistent", "REQUEST_CHANGES without a CRITICAL issue")
    for issue in issues:
        if not _has_anchor(issue):
            return Judgement("missing-anchor", f"no file is named for: {issue.title[:80]}")
    return Judgement(verdict=verdict, issues=tuple(issues))


def _read_issues(section: Section, issues: list[Issue]) -> str | None:
    """Fill `issues` from the section; the fault's text if it is neither issues nor exactly `- None.`."""
    none = False
    for line, fenced in section.lines:
        if not line.strip():
            continue
        if not fenced and line.rstrip() == "- None.":
            if none:
                return "`- None.` stands twice"
            none = True
        elif not fenced and re.match(_LABELLED, line):
            match = re.match(_ISSUE, line)
            if match is None:
                return f"{line[:80]!r} is not written `- [CRITICAL] ...` or `- [MINOR] ...`"
            issues.append(Issue(match[1], match[2].strip(), [line]))
        elif issues and (fenced or line[0] in " \t"):
            issues[-1].lines.append(line)
        else:
            return f"{line[:80]!r} is neither an issue nor `- None.`"
    if none and issues:
        return "`- None.` beside issues"
    if not none and not issues:
        return "the section is empty; write `- None.` or leave it out"
    return None


_FILE_LINE = r"(?i)(?:^|[\s(*])Files?\*{0,2}:\*{0,2}\s*(?:`+\s*([^`]+)`|([^\s`]\S*))"
_NO_FILE = frozenset({"around", "line", "lines", "n/a", "na", "none", "unknown", "various", "-", "?"})
_BARE_NAME = r"(?:Makefile|Dockerfile|Containerfile|Jenkinsfile|Gemfile|Rakefile|Procfile|Justfile|LICENSE)"
# A path holds a letter: `10.0.0.1:80` is none. Each pattern begins only where a word does: a long line costs its length.
_PATH_AND_LINE = rf"(?<![^\s:`])(?=[^\s:`]*[./])(?=[^\s:`]*[^\W\d_])[^\s:`]+:\d+|`[^`\s:]+:\d+|(?:^|[\s(\[<*\"']){_BARE_NAME}:\d+"
_PATH_WORD = (
    rf"(?:[^\s/]+/)+[^\s/]*|[^\s/()]*[^\s/().]\.[A-Za-z0-9_]{{1,10}}|\.[a-z][a-z0-9_.-]+|{_BARE_NAME}"
)
_BEGINS = r"(?:^|[\s(\[<*\"'（，、：；。「])"
_ENDS = r"(?=$|[\s()\],.;:>*#!?—\"'（），、：；。」])"
_PLAIN_PATH = (
    rf"{_BEGINS}/?(?:[\w.@-]+/)+(?:[\w.@-]*\.[A-Za-z]\w{{0,9}}|{_BARE_NAME}){_ENDS}"
    rf"|{_BEGINS}[\w.-]*\w\.(?:py|js|jsx|ts|tsx|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift|sh|sql|md|json|ya?ml|toml|html|css|vue|svelte|cfg|ini|xml|txt|rst|ipynb|scala|dart|lua|proto|gradle|mjs|cjs|scss){_ENDS}"
)
_URL = r"(?i)(?<![a-z0-9+.-])(?!file:)[a-z][a-z0-9+.-]*://[^\s)>\]`]+"


def _has_anchor(issue: Issue) -> bool:
    """`File: path`, `path:line`, or a path somewhere in the issue, backticked or plainly one; not in a URL."""
    for line in (re.sub(_URL, "", line) for line in issue.lines):
        named = re.search(_FILE_LINE, line)
        if named and (named[1] or named[2]).strip().rstrip(".,;").lower() not in _NO_FILE:
            return True
        if re.search(_PATH_AND_LINE, line) or re.search(_PLAIN_PATH, line):
            return True
        place = line.find("`")
        while place >= 0:
            span = code_span(line, place)
            if span and _is_path(re.sub(r"[:#]L?\d+(?:-L?\d+)?$", "", span[0])):
                return True
            place = line.find("`", span[1] if span else place + 1)
    return False


def _is_path(text: str) -> bool:
    return re.fullmatch(_PATH_WORD, text) is not None and text.lower() not in _NO_FILE


# --- executor ---------------------------------------------------------------------------------------------

_CHANGES = "Changes Made"
_FILES = ("Files Modified / Created / Deleted", "Files Modified / Created")
_DEVIATIONS = "Deviations from Plan"
_NOTES = "Notes for Reviewer"
_NONE = r"(?:[-*+]\s+)?None\.?$"
_NO_DEVIATION = r"(?i)(?:[-*+]\s+)?(?:None|No deviations?)\.?$"
_SAYS_NOOP = (
    r"(?is)\bno[- ]?op\b|\bno\s+(?!(?:other|further|additional|more|longer)\b)(?:\w+\s+){0,2}(?:changes?|modifications?|edits?|updates?|action|work|files?)\b|\bno code\b|\bnone\b|\bunchanged\b"
    r"|\b(?:not|n't)\s+(?:chang|modif|edit|touch)\w*\s+any|\bwithout\s+(?:\w+\s+){0,2}(?:changes?|edits?)\b"
    r"|\bnothing\b.{0,40}?\b(?:chang\w*|modif\w*|edit\w*|do|needed|required)\b"
    r"|\balready\s+(?:\w+\s+)?(?:satisf|implement|done|present|in place|fixed|exist|correct|complete|handled)"
)
# A colon inside `a.py:12`, `10:30`, `std::sort` or a URL stands before no reason.
_BEFORE_REASON = r"—|(?<!:):(?![\d:]|//)"
_NAMES_NOOP = r"(?i)\bno[- ]?op\b"
_BULLET = r"(?:[-*+]|\d{1,3}[.)])\s+"
_EMPHASIS = r"[*_]{1,3}(?=`)"
_KIND_LABEL = r"(?i)(?:\*\*)?(?:Modified|Created|Deleted|Added|Removed|Renamed|New)(?:\*\*)?:?(?:\*\*)?\s*"
_BETWEEN_PATHS = r"\s*(?:,|and|&|->|→|=>)\s*(?=`)"


def check_executor(text: str, delta: Iterable[str] = ()) -> Judgement:
    """The judgement on an executor's report against the round's own delta (paths as `quote_path` gives them)."""
    parts = _parts(text)
    fault = _missing_section(text, parts)
    if fault:
        return Judgement("missing-section", fault, noop=False)
    lines = parts[_FILES[0]].plain()
    says_none = len(lines) == 1 and re.match(_NONE, _indented(lines[0])[1]) is not None
    says_noop = says_none and re.search(_SAYS_NOOP, _prose(parts[_CHANGES])) is not None
    paths, fault = ((), None) if says_none else _claimed_paths(lines)
    if fault:
        return Judgement("missing-paths", fault, noop=False)
    if says_none and not says_noop:
        return Judgement("missing-paths", "changes are claimed, but no files are named", noop=False)
    if says_noop and not re.search(_NAMES_NOOP, _prose(parts[_NOTES])):
        return Judgement(
            "missing-paths", "a no-op must be named as one in `### Notes for Reviewer`", noop=True
        )
    changed = {_same_form(path) for path in delta}
    for path in paths:
        if path not in changed:
            return Judgement("claim-not-in-delta", f"{path} did not change in this round", noop=says_noop)
    for path in sorted(changed.difference(paths)):
        return Judgement(
            "unlisted-change", f"{path} changed in this round, but is not listed", noop=says_noop
        )
    fault = _unexplained(parts[_DEVIATIONS])
    if fault:
        return Judgement("unexplained-deviation", fault, noop=says_noop)
    return Judgement(noop=says_noop, paths=tuple(paths))


def _parts(text: str) -> dict[str, Section]:
    """The sections by title. One that stands twice counts whole: what the second claims is judged like the first."""
    parts: dict[str, Section] = {}
    for part in sections(text):
        title = _FILES[0] if part.title in _FILES else part.title
        if title in parts:
            parts[title].lines += part.lines
        else:
            parts[title] = part
    return parts


def _missing_section(text: str, parts: dict[str, Section]) -> str | None:
    titles = [heading(line, 2) or "" for line, fenced in lines_outside_fences(text) if not fenced]
    if not any(t.startswith("Implementation Complete:") and t.partition(":")[2].strip() for t in titles):
        return "no heading `## Implementation Complete: ...`"
    for title in (_CHANGES, _FILES[0], _DEVIATIONS, _NOTES):
        if title not in parts:
            return f"no section `### {title}`"
    return None


def _prose(section: Section) -> str:
    return "\n".join(section.plain())


def _claimed_paths(lines: list[str]) -> tuple[tuple[str, ...], str | None]:
    """The backticked paths, each with a reason; or what is wrong. A list below a path's bullet tells more about that path."""
    paths: list[str] = []
    above: int | None = None  # how far the last path's bullet is indented
    for line in lines:
        indent, text = _indented(line)
        bullet = re.match(_BULLET, text)
        body = text[bullet.end() :] if bullet else line
        if bullet is None and not body.startswith("`"):
            continue  # a label, a continuation, prose between
        if bullet and above is not None and indent > above + 1:
            continue
        label = re.match(_KIND_LABEL, body)
        if bullet and label and label.end() == len(body) > 0:
            above = None
            continue  # `- Modified:` over a list of its own
        above = indent if bullet else above
        place = label.end() if label else 0
        emphasis = re.compile(_EMPHASIS).match(body, place)
        place = emphasis.end() if emphasis else place
        found: list[str] = []
        while (span := code_span(body, place)) is not None:
            found.append(span[0])
            place = span[1]
            between = re.compile(_BETWEEN_PATHS).match(body, place)
            if between is None:
                break
            place = between.end()
        if not found:
            return (), f"{line[:80]!r} has no backticked path"
        if not re.search(r"\w", body[place:]):
            return (), f"`{found[0][:80]}` has no reason behind it"
        for path in found:
            try:
                paths.append(_same_form(path))
            except Invalid as error:
                return (), str(error)
    if not paths:
        return (), "no backticked path; write `None` for a round without changes"
    return tuple(paths), None


def _indented(line: str) -> tuple[int, str]:
    """How far a line is indented, in columns, and its text."""
    text = line.lstrip(" \t")
    return len(line[: len(line) - len(text)].expandtabs(4)), text


def _same_form(path: str) -> str:
    """A path as `quote_path` writes it, without a leading `./`."""
    return quote_path(unquote_path(path).removeprefix(b"./"))


def _unexplained(section: Section) -> str | None:
    lines = section.plain()
    deviations: list[list[str]] = []  # each by its lines
    above: int | None = None  # how far the last deviation's bullet is indented
    for line in lines:
        indent, text = _indented(line)
        bullet = re.match(_BULLET, text)
        below = indent > 0 if bullet is None else above is not None and indent > above + 1
        if deviations and (below or not (bullet or re.match(_BULLET, deviations[-1][0]))):
            deviations[-1].append(text)
        else:
            deviations.append([text])
        above = indent if bullet and not below else above
    for deviation in map(" ".join, deviations):
        if not re.match(_NO_DEVIATION, deviation) and not _has_reason(without_code_spans(deviation)):
            return f"no reason after `—` or `:` for: {deviation[:80]}"
    return None


def _has_reason(text: str) -> bool:
    """Whether words, or code, stand behind the first `—` or `:` that may stand before a reason."""
    before = re.search(_BEFORE_REASON, text)
    return before is not None and re.compile(r"\w|``").search(text, before.end()) is not None
