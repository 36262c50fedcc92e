"""Being asked to stop: the step under way is finished and saved first. A second request stops at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from recollect.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """The signal that asked for a stop, once there was one."""

    number: int | None = None

    def check(self) -> None:
        """To be called where everything is saved."""
        if self.number is not None:
            raise StoppedError(self.number)


@contextmanager
def catch_signals(*, announce: bool = True) -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into requests to stop; only the main thread of a program can."""
    request = StopRequest()

    def handle(number: int, _frame: FrameType | None) -> None:
        if request.number is not None:
            raise KeyboardInterrupt
        request.number = number
        if announce:
            with suppress(OSError):  # the terminal was closed, or the parent process has ended
                message = "\nrecollect: Saving… press Ctrl-C again to quit without saving."
                print(message, file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
