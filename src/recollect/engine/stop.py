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
def listening(*, aloud: bool = True) -> Iterator[StopRequest]:
    """Take Ctrl-C and SIGTERM as requests to stop; only a program's main thread can."""
    request = StopRequest()

    def heed(number: int, _frame: FrameType | None) -> None:
        if request.number is not None:
            raise KeyboardInterrupt
        request.number = number
        if aloud:
            with suppress(OSError):  # nobody reads it any more: the terminal was closed, or the parent has died
                message = "\nrecollect: finishing the step and saving; once more to stop at once"
                print(message, file=sys.stderr, flush=True)

    before = {number: signal.signal(number, heed) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
