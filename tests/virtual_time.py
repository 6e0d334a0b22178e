"""An event loop whose time is a number: a wait takes no time, and ends exactly when it is due."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWait(selectors.SelectSelector):
    """Instead of waiting it moves the loop's clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self.now_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _NoWait()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """``work``'s result; ``asyncio.get_running_loop().time()`` starts at 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)
