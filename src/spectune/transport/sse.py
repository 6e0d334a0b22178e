"""Server-sent events, split from a byte stream as it arrives."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.errors import TransportError

MAX_EVENT_BYTES = 16 * 1024 * 1024

_LF, _CR = b"\n\r"  # as numbers: looking for bytes in bytes goes through an exception first


class SseSplitter:
    """Turns body pieces, cut anywhere, into the payloads of their ``data:`` lines.

    Only what inference servers send: lines end with LF or CRLF; comments and
    fields other than ``data`` are dropped; several ``data`` lines of one event
    are joined by a newline. An event longer than ``MAX_EVENT_BYTES`` raises
    ``TransportError``.
    """

    __slots__ = ("_data", "_partial", "_partial_bytes")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Sequence[bytes]:
        """Payloads of the events that ``piece`` completes."""
        if _LF not in piece:
            self._keep(piece)
            return ()
        if self._partial:
            piece = b"".join((*self._partial, piece))
            self._partial.clear()
            self._partial_bytes = 0
        end = piece.rfind(b"\n\n") + 2
        if end >= 2 and piece.startswith(b"data: ") and _CR not in piece and not self._data:
            # The usual case: events of one data line each, and perhaps the beginning of another.
            payloads = piece[6 : end - 2].split(b"\n\ndata: ")
            if piece.count(b"\n", 0, end) == 2 * len(payloads):
                if end < len(piece):
                    self._keep(piece[end:])
                return payloads
        return self._feed_lines(piece)

    def end(self) -> Sequence[bytes]:
        """The payload of a last event that no blank line closed."""
        payloads = [*self.feed(b"\n")] if self._partial else []
        return [*payloads, *self._close_event()]

    def _feed_lines(self, piece: bytes) -> Sequence[bytes]:
        lines = piece.split(b"\n")
        payloads: list[bytes] = []
        rest = lines.pop()
        for raw_line in lines:
            line = raw_line.removesuffix(b"\r")
            if not line:
                payloads += self._close_event()
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        if rest:
            self._keep(rest)
        return payloads

    def _keep(self, piece: bytes) -> None:
        self._partial.append(piece)
        self._partial_bytes += len(piece)
        if self._partial_bytes + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise TransportError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")

    def _close_event(self) -> Sequence[bytes]:
        if not self._data:
            return ()
        payload = b"\n".join(self._data)
        self._data.clear()
        return (payload,)
