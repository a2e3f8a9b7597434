"""SIGTERM and SIGHUP as exceptions, so that what a command holds (a child, a lock, a file) is given back."""

from __future__ import annotations

import signal
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Interrupted(KeyboardInterrupt):
    """A signal asked us to stop; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP raise `Interrupted` once; what follows is left alone."""

    def raise_once(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # the clean-up itself is not interrupted
        raise Interrupted(number)

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, raise_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
