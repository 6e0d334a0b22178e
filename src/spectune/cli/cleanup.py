"""Commands that clean up behind themselves also when they are asked to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from spectune.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Raises ``Interrupted`` on SIGTERM and SIGHUP, which would end the process on the spot; ignored ones stay so."""

    def end(number: int, _: FrameType | None) -> None:
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    is_main = threading.current_thread() is threading.main_thread()
    ours = [n for n in _SIGNALS if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
