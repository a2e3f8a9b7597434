"""A progress bar on a terminal, for long work only; nothing at all elsewhere."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress, TaskID


class Bar:
    """Shows `label` with a rate once the work has taken over half a second; call it as `bar(done, of)`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._wanted = sys.stderr.isatty()

    def __call__(self, done: int, of: int) -> None:
        """`done` of `of` events are through."""
        if not self._wanted or (self._bar is None and time.monotonic() - self._began < 0.5):
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=of)
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=of)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def callback(self) -> Callable[[int, int], None] | None:
        """Itself where there is a terminal, else None: long loops then need not stop to report."""
        return self if self._wanted else None
