"""Path patterns of the configuration: `**` crosses directories, `*` and `?` do not, `[...]` is one character."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence


def all_match(paths: Iterable[str], patterns: Sequence[str]) -> bool:
    """Whether there is at least one path, and each matches one of the patterns."""
    compiled = [compile_glob(pattern) for pattern in patterns]
    listed = list(paths)
    return bool(listed) and all(any(p.fullmatch(path) for p in compiled) for path in listed)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression over a whole path with `/` between its parts."""
    import re

    out = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if pattern.startswith("**/", i) and (i == 0 or pattern[i - 1] == "/"):
            out.append("(?:[^/]+/)*")
            i += 3
        elif pattern.startswith("**", i):
            out.append(".*")
            i += 2
        elif char == "*":
            out.append("[^/]*")
            i += 1
        elif char == "?":
            out.append("[^/]")
            i += 1
        elif char == "[" and (end := pattern.find("]", i + 2)) > 0:
            inner = pattern[i + 1 : end]
            negated = inner[:1] in ("!", "^")
            out.append(
                f"(?!/)[{'^' if negated else ''}{re.escape(inner[negated:]).replace(chr(92) + '-', '-')}]"
            )
            i = end + 1
        else:
            out.append(re.escape(char))
            i += 1
    return re.compile("".join(out), re.DOTALL)
