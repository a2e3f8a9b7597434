"""`gate adapt`: one adversarial review's output becomes APPROVE, REQUEST_CHANGES or malformed.

The schema, the envelope and the printed lines are fixed by contract `review-sessions`, Gate (3.4).
"""

from __future__ import annotations

from commands.sessions.last_object import last_object
from commands.sessions.strict_json import Malformed, WrittenFloat, WrittenInt, decode_text, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MODES = ("plugin-json", "raw")
APPROVE = "adversarial-gate: APPROVE"
REQUEST_CHANGES = "adversarial-gate: REQUEST_CHANGES"

_VERDICT_KEYS = ("verdict", "summary", "findings", "next_steps")
_FINDING_KEYS = (
    "severity",
    "title",
    "body",
    "file",
    "line_start",
    "line_end",
    "confidence",
    "recommendation",
)
_TAGS = {"critical": "CRITICAL", "high": "CRITICAL", "medium": "MINOR", "low": "MINOR"}


def adapt(data: bytes, mode: str = "plugin-json") -> tuple[int, str]:
    """Exit code (0 approve, 1 request changes) and the text to print for a producer's output.

    Raises `Malformed` (exit 2) with the reason; then nothing is printed on stdout.
    """
    text = decode_text(data)
    verdict = last_object(text) if mode == "raw" else _from_envelope(loads(text))
    _check_verdict(verdict)
    return _render(verdict)


def _from_envelope(value: object) -> dict[str, object]:
    """The verdict inside a companion's envelope: its raw text is believed over its own parsed `result`."""
    if not isinstance(value, dict):
        _malformed("the output is not a JSON object")
    if "result" not in value:
        return value  # a bare schema object
    said = _optional_text(value.get("parseError"), "parseError")
    if said:
        _malformed(f"the companion reports a parseError: {said[:200]}")
    raw = _optional_text(value.get("rawOutput"), "rawOutput")
    if not raw:
        codex = value.get("codex")
        if codex is not None and not isinstance(codex, dict):
            _malformed("codex is not an object")
        raw = _optional_text((codex or {}).get("stdout"), "codex.stdout")
    if raw:
        return last_object(raw)
    result = value["result"]
    if not isinstance(result, dict):
        _malformed("result is not an object")
    return result


def _optional_text(value: object, name: str) -> str:
    """Text of more than white space, or ''."""
    if value is None:
        return ""
    if not isinstance(value, str):
        _malformed(f"{name} is neither text nor null")
    return value if value.strip() else ""


def _check_verdict(verdict: dict[str, object]) -> None:
    _check_keys(verdict, _VERDICT_KEYS, "the verdict")
    if verdict["verdict"] not in ("approve", "needs-attention"):
        _malformed("verdict is neither approve nor needs-attention")
    _check_text(verdict["summary"], "summary")
    steps = verdict["next_steps"]
    if not isinstance(steps, list):
        _malformed("next_steps is not a list")
    for i, step in enumerate(steps):
        _check_text(step, f"next_steps[{i}]")
    findings = verdict["findings"]
    if not isinstance(findings, list):
        _malformed("findings is not a list")
    for i, finding in enumerate(findings):
        _check_finding(finding, f"findings[{i}]")


def _check_finding(finding: object, where: str) -> None:
    if not isinstance(finding, dict):
        _malformed(f"{where} is not an object")
    _check_keys(finding, _FINDING_KEYS, where)
    if not isinstance(finding["severity"], str) or finding["severity"] not in _TAGS:
        _malformed(f"{where}.severity is none of {', '.join(_TAGS)}")
    for key in ("title", "body", "file"):
        _check_text(finding[key], f"{where}.{key}")
    if not isinstance(finding["recommendation"], str):
        _malformed(f"{where}.recommendation is not text")
    lines = []
    for key in ("line_start", "line_end"):
        line = finding[key]
        if not isinstance(line, WrittenInt) or line < 1:
            _malformed(f"{where}.{key} is not an integer of 1 or more")
        lines.append(line)
    if lines[0] > lines[1]:
        _malformed(f"{where}: line_start is after line_end")
    confidence = finding["confidence"]
    if not isinstance(confidence, (WrittenInt, WrittenFloat)) or not _is_share(confidence):
        _malformed(f"{where}.confidence is not a number from 0 to 1")


def _is_share(number: WrittenInt | WrittenFloat) -> bool:
    """Whether the number as written lies in 0 to 1; a float at an edge may be the rounding of one outside."""
    if 0 < number < 1:
        return True
    if number == 0:
        # Below zero only with a minus and a digit; an exponent without end is too much for Decimal.
        mantissa = number.text.lower().partition("e")[0]
        return not mantissa.startswith("-") or not mantissa.strip("-0.")
    from decimal import Decimal

    return number == 1 and Decimal(number.text) <= 1


def _check_keys(value: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key not in value:
            _malformed(f"{where} has no {key}")
    for key in value:
        if key not in keys:
            _malformed(f"{where} has an unexpected key {key[:80]!r}")


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        _malformed(f"{where} is not text, or empty")


def _malformed(reason: str) -> NoReturn:
    raise Malformed(reason)


def _render(verdict: dict[str, object]) -> tuple[int, str]:
    findings = verdict["findings"]
    assert isinstance(findings, list)
    blocking = [f for f in findings if f["severity"] in ("critical", "high")]
    advisory = [f for f in findings if f["severity"] in ("medium", "low")]
    if blocking:
        lines = [REQUEST_CHANGES, "", "### Issues"]
        for finding in blocking:
            lines.append(_line(finding, f" (confidence={finding['confidence'].text})"))
            lines += _recommendation(finding)
    else:
        lines = [APPROVE, "", f"Summary: {_one_line(verdict['summary'])}"]
    if advisory:
        lines += ["", "### Advisory (non-blocking)"]
        for finding in advisory:
            lines.append(_line(finding, ""))
            lines += _recommendation(finding)
    return (1 if blocking else 0), "\n".join(lines) + "\n"


def _line(finding: dict[str, object], confidence: str) -> str:
    tag = _TAGS[str(finding["severity"])]
    place = f"{_one_line(finding['file'])}:{finding['line_start']}-{finding['line_end']}"
    return f"- [{tag}] {place}{confidence} — {_one_line(finding['title'])}: {_one_line(finding['body'])}"


def _recommendation(finding: dict[str, object]) -> list[str]:
    said = _one_line(finding["recommendation"])
    return [f"  Recommendation: {said}"] if said else []


def _one_line(value: object) -> str:
    """Text on one line: a finding must not be able to write a line, or a verdict, of its own, or steer a terminal."""
    line = " ".join(part.strip() for part in str(value).strip().splitlines() if part.strip())
    return line if line.isprintable() else "".join(c for c in line if c == "\t" or not _is_control(c))


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char < "\xa0"
