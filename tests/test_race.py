"""Work that goes on until it ends or something else ends first."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from spectune.race import ends_before, racing


async def _forever() -> None:
    await asyncio.Event().wait()


async def _at_once() -> str:
    return "ended"


async def _fails() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(
    ("work", "other", "is_first"), [(_at_once, _forever, True), (_forever, _at_once, False)]
)
def test_it_says_which_of_two_ended_first(work: Any, other: Any, is_first: bool) -> None:
    assert asyncio.run(ends_before(work(), other())) is is_first


def test_what_the_work_raises_is_raised_and_what_the_other_raises_is_not() -> None:
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(ends_before(_fails(), _forever()))
    assert asyncio.run(ends_before(_forever(), _fails())) is False


@pytest.mark.parametrize("other", [_at_once, _fails])
def test_nobody_is_left_running(other: Any) -> None:
    ended = []

    async def noted(work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        finally:
            await asyncio.sleep(0)  # cleaning up takes its own turns of the loop
            ended.append("done")

    async def race() -> int:
        async with racing(noted(_forever()), noted(_forever()), other()):
            assert not ended
        return len(ended)

    assert asyncio.run(race()) == 2


def test_a_caller_that_is_cancelled_takes_both_along() -> None:
    ended = []

    async def noted() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("done")

    async def race() -> None:
        racer = asyncio.create_task(ends_before(noted(), noted()))
        while len(asyncio.all_tasks()) < 4:
            await asyncio.sleep(0)
        racer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racer

    asyncio.run(race())
    assert ended == ["done", "done"]
