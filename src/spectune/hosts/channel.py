"""Requests to one supervisor, and its news, over any pair of streams."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

from spectune.errors import EnvironmentFailed, HostUnreachable

_LIMIT_BYTES = 1 << 22


class Channel:
    """One connection. Requests that are open when it is lost raise ``HostUnreachable``."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_event: Callable[[dict[str, Any]], None],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._on_event = on_event
        self._on_close = on_close
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read(reader))
        self.lost = asyncio.Event()

    async def request(self, do: str, *, timeout_s: float = 15.0, **fields: Any) -> dict[str, Any]:
        """The supervisor's answer; raises ``HostUnreachable`` if none comes."""
        if self.lost.is_set():
            raise HostUnreachable("the connection to the supervisor is lost")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
                await self._writer.drain()
                reply = await answer
        except TimeoutError:
            raise HostUnreachable(f"the supervisor did not answer {do!r} within {timeout_s:g} s") from None
        except OSError as error:
            raise HostUnreachable(f"the connection to the supervisor is lost: {error}") from error
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            raise EnvironmentFailed(f"the supervisor refused {do!r}: {reply['error']}")
        return reply

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        except (OSError, ValueError):  # a broken connection, or a line beyond the limit
            pass
        finally:
            self.lost.set()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(HostUnreachable("the connection to the supervisor is lost"))
            self._on_close()

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._on_event(message)
            return
        answer = self._waiting.get(message.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def aclose(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
