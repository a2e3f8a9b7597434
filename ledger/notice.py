"""What somebody must be told beside a command's answer, from wherever it is found out: a line on stderr.

Imported only where there is something to tell.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_take: Callable[[str, str], None] | None = None


def divert(take: Callable[[str, str], None] | None) -> None:
    """Give what is told from now on to `take`, as (level, text), in place of stderr; None: to stderr again."""
    global _take  # noqa: PLW0603 - a process has one stderr
    _take = take


def tell(text: str, level: str = "warning") -> None:
    """Tell `text`; `level` is `warning` where the command goes on, `error` where its answer is not the wanted one."""
    if _take is not None:
        _take(level, text)
    else:
        sys.stderr.write(f"gatebook: {'warning: ' if level == 'warning' else ''}{text}\n")
