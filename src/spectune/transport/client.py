"""The HTTP client: HTTP/1.1 on asyncio, built to add little to what it measures.

One segment of a streamed answer costs one callback, one pass of a C parser and
one call of ``on_event``. Its time stamp is taken before anything else is done
with it. Redirects are never followed and proxy variables are not read: the
numbers belong to the address that was given.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

from spectune.errors import TransportError
from spectune.transport.exchange import Connection, ConnectionClosedEarly, Exchange
from spectune.transport.url import BaseUrl, check_api_key, parse_base_url

OnEvent = Callable[[bytes, float], bool | None]
"""Called with a ``data:`` payload and its arrival time; a true answer ends the stream."""

_EXCERPT_BYTES = 500


class BadStatus(TransportError):
    """The server answered, with a status other than 2xx; ``status`` is that."""

    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Response:
    """A whole answer, whatever its status; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON; raises ``TransportError`` if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise TransportError(f"answer with status {self.status} is not JSON: {error}") from error


@dataclass(frozen=True)
class StreamEnd:
    """How a stream that ended well ran; times are of ``time.perf_counter``."""

    sent_s: float
    done_seen: bool
    """``data: [DONE]`` came."""
    received_bytes: int


class HttpClient:
    """Connections to one server, kept alive and reused; for one event loop.

    ``api_key`` is sent as a bearer token and appears in no error and no repr.
    Every failure raises ``TransportError``; a request that was cancelled or
    timed out closes its connection.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._url: BaseUrl = parse_base_url(base_url)
        self._api_key = check_api_key(api_key)
        self._connect_timeout_s = connect_timeout_s
        self._ssl = (ssl_context or ssl.create_default_context()) if self._url.is_https else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    def __repr__(self) -> str:
        return f"HttpClient({self.base_url!r})"

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def base_url(self) -> str:
        return self._url.text

    async def aclose(self) -> None:
        """Closes every connection; requests in flight fail."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports report the loss

    def redact(self, text: str) -> str:
        """``text`` without the API key, for words that came from the server."""
        return text.replace(self._api_key, "[api key]") if self._api_key else text

    async def request(
        self, method: str, path: str, body: object | None = None, *, timeout_s: float = 30.0
    ) -> Response:
        """The answer to one request, with any status; ``body`` is sent as JSON."""
        exchange = await self._perform(method, path, body, on_event=None, timeout_s=timeout_s)
        return Response(exchange.status, exchange.headers, bytes(exchange.body))

    async def stream(self, path: str, body: object, on_event: OnEvent, *, timeout_s: float) -> StreamEnd:
        """Posts ``body`` and calls ``on_event`` for each event but ``[DONE]``, inside the loop's callback.

        A status other than 2xx raises ``BadStatus`` with the head of its body;
        a body that is no event stream or ends early raises ``TransportError``.
        """
        exchange = await self._perform("POST", path, body, on_event=on_event, timeout_s=timeout_s)
        what = f"POST {self._url.text}{path}"
        if not 200 <= exchange.status < 300:
            raise BadStatus(
                f"{what}: HTTP {exchange.status}: {self._excerpt(exchange)}", status=exchange.status
            )
        if not exchange.is_event_stream:
            kind = exchange.headers.get("content-type", "")
            raise TransportError(
                f"{what}: answer is {kind!r}, not an event stream: {self._excerpt(exchange)}"
            )
        return StreamEnd(exchange.sent_s, exchange.done_seen, exchange.received_bytes)

    def _excerpt(self, exchange: Exchange) -> str:
        text = self.redact(exchange.body.decode("utf-8", "replace"))
        return text.encode()[:_EXCERPT_BYTES].decode("utf-8", "ignore")

    async def _perform(
        self, method: str, path: str, body: object | None, *, on_event: OnEvent | None, timeout_s: float
    ) -> Exchange:
        what = f"{method} {self._url.text}{path}"
        request = self._url.request_bytes(method, path, body, api_key=self._api_key)
        exchange = Exchange(on_event)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await self._once(request, exchange, fresh=False)
                except ConnectionClosedEarly as early:
                    if not early.was_reused:
                        raise
                    exchange = Exchange(on_event)
                    await self._once(request, exchange, fresh=True)
        except TimeoutError:
            got = f"{exchange.received_bytes} bytes received"
            raise TransportError(f"{what}: no complete answer within {timeout_s:g} s ({got})") from None
        except TransportError as error:
            raise TransportError(f"{what}: {self.redact(str(error))}") from error.__cause__
        return exchange

    async def _once(self, request: bytes, exchange: Exchange, *, fresh: bool) -> None:
        connection = None if fresh else self._take_idle()
        was_reused = connection is not None
        if connection is None:
            connection = await self._connect()
        try:
            exchange.sent_s = perf_counter()
            connection.send(request, exchange)
            await exchange.finished
        finally:
            if connection.release():
                self._idle.append(connection)
            else:
                connection.abort()
        if exchange.error is not None:
            if isinstance(exchange.error, ConnectionClosedEarly):
                exchange.error.was_reused = was_reused
            raise exchange.error

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        url = self._url
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._all), url.host, url.port, ssl=self._ssl
                )
        except TimeoutError:
            raise TransportError(f"no connection within {self._connect_timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise TransportError(f"cannot connect: {error.strerror or error}") from error
        return connection
