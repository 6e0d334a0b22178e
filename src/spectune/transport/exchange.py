"""One HTTP/1.1 connection, and one request with its answer on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from spectune.errors import TransportError
from spectune.transport.sse import SseSplitter

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 256 * 1024

_RECEIVE_BYTES = 64 * 1024
_DONE = b"[DONE]"
_DONE_GRACE_S = 1.0
_NOT_EVENTS = ("application/json", "application/problem+json", "text/html")


class ConnectionClosedEarly(TransportError):
    """The server closed the connection before the first byte of an answer."""

    was_reused = False


class Exchange:
    """What has arrived for one request; ``finished`` is set when nothing more is to come.

    With ``on_event``, a 2xx answer is split into events and not kept; any other
    body is gathered in ``body``, up to ``MAX_BODY_BYTES``.
    """

    def __init__(self, on_event: Callable[[bytes, float], bool | None] | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.sent_s = 0.0
        self.received_bytes = 0
        self.done_seen = False
        self.error: BaseException | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self._grace: asyncio.TimerHandle | None = None
        self._on_event = on_event
        self._events: SseSplitter | None = None
        self._head_complete = False
        self._message_complete = False
        self._num_own_pieces = 0
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser calls it: no Python frame per piece
        self._parser = HttpResponseParser(self)

    @property
    def is_event_stream(self) -> bool:
        return self._events is not None

    def feed(self, data: memoryview, arrived_s: float) -> None:
        """Takes one segment that arrived at ``arrived_s``."""
        self.received_bytes += len(data)
        if self._message_complete:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise TransportError("the server switches to another protocol, which nobody asked for") from None
        except HttpParserError as error:
            if not self._message_complete:
                raise TransportError(f"malformed HTTP answer: {error or type(error).__name__}") from error
            self.reusable = False
        if self._message_complete:
            del self._pieces[self._num_own_pieces :]
        if self._pieces:
            self._take_pieces(arrived_s)
        if self._message_complete:
            self._end_message(arrived_s)
        elif self.done_seen:
            self._wait_for_end()
        elif not self._head_complete and self.received_bytes > MAX_HEAD_BYTES:
            raise TransportError(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")

    def lose(self, error: BaseException | None) -> None:
        """The connection is gone; ``error`` is what the transport says, ``None`` for an orderly end."""
        if self.finished.done():
            return
        until_close = not {"content-length", "transfer-encoding"} & self.headers.keys()
        if self.done_seen:
            self.finish()
        elif self._head_complete and until_close and error is None:
            self._end_message(perf_counter())
        elif error is not None and not isinstance(error, OSError):
            self.finish(error)
        elif not self.received_bytes:
            reason = f" ({error})" if error else ""
            self.finish(ConnectionClosedEarly(f"connection closed before any answer{reason}"))
        else:
            reason = str(error) if error else "connection closed"
            self.finish(
                TransportError(f"{reason} after {self.received_bytes} bytes, before the end of the answer")
            )

    def finish(self, error: BaseException | None = None) -> None:
        if not self.finished.done():
            self.error = error
            self.finished.set_result(None)
            if self._grace is not None:
                self._grace.cancel()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:  # later ones are trailers
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self._message_complete:
            return
        self.status = self._parser.get_status_code()
        if self.status == 101:
            self.finish(TransportError("the server switches to another protocol, which nobody asked for"))
        if 100 <= self.status < 200:
            return
        self._head_complete = True
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            self.finish(TransportError(f"answer has content-encoding {encoding!r}, which was not asked for"))
        kind = self.headers.get("content-type", "").lower()
        if self._on_event is not None and 200 <= self.status < 300 and not kind.startswith(_NOT_EVENTS):
            self._events = SseSplitter()

    def on_message_complete(self) -> None:
        if self._message_complete:
            self.reusable = False  # an answer that nobody asked for
        elif 100 <= self.status < 200:
            self.headers.clear()
        else:
            self._message_complete = True
            self._num_own_pieces = len(self._pieces)
            self.reusable = self._parser.should_keep_alive()

    def _take_pieces(self, arrived_s: float) -> None:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._events is not None:
            self._deliver(self._events.feed(data), arrived_s)
            return
        self.body += data
        if len(self.body) > MAX_BODY_BYTES:
            raise TransportError(f"the answer is longer than {MAX_BODY_BYTES} bytes")

    def _deliver(self, payloads: Sequence[bytes], arrived_s: float) -> None:
        on_event = self._on_event
        if on_event is None or self.done_seen or self.finished.done():
            return
        for payload in payloads:
            if payload == _DONE:
                self.done_seen = True
                return
            if on_event(payload, arrived_s):
                self.finish()
                return

    def _wait_for_end(self) -> None:
        """The end of the body often comes in a segment of its own; without it the answer is whole too."""
        if self._grace is None:
            self._grace = asyncio.get_running_loop().call_later(_DONE_GRACE_S, self.finish)

    def _end_message(self, arrived_s: float) -> None:
        if self._events is not None:
            self._deliver(self._events.end(), arrived_s)
        self.finish()


class Connection(asyncio.BufferedProtocol):
    """One socket to the server; ``registry`` holds it for as long as it is open.

    It receives into a buffer of its own: a plain ``asyncio.Protocol`` allocates
    256 KiB for each segment, which costs more than all the rest.
    """

    def __init__(self, registry: set[Connection]) -> None:
        self._registry = registry
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._transport is None:
            exchange.lose(None)
        else:
            self._transport.write(request)

    def release(self) -> bool:
        """Parts with the exchange; true if the connection can carry another."""
        exchange, self._exchange = self._exchange, None
        return exchange is not None and exchange.error is None and exchange.reusable and self.is_open

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops' transports are no subclass of it
        self._registry.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        arrived_s = perf_counter()
        exchange = self._exchange
        if exchange is None:
            self.abort()  # bytes without a question: this connection is not to be trusted
            return
        try:
            exchange.feed(self._buffer[:nbytes], arrived_s)
        except TransportError as error:
            exchange.reusable = False
            exchange.finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        self._transport = None
        if self._exchange is not None:
            self._exchange.lose(exc)
