"""Log lines from anywhere: files as they are found, compressed, growing, or standard input.

Lines come as bytes, one pass, in memory that does not grow with the input.
What container runtimes, journals and terminals put around a line is taken off
by ``clean``, which is called only for lines that matter.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import importlib
import json
import lzma
import os
import re
import select
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from spectune.errors import BadInput

PIPE_WAIT_S = 10.0
CHUNK_BYTES = 1 << 20
LINE_LIMIT_BYTES = 1 << 18
"""The longest useful line is an engine's own list of its settings: about 20 kB."""

MAX_LINES = 20 * 10**6
"""About two minutes of work."""
MAX_EXPANSION, FREE_BYTES = 500, 16 << 20
"""Compressed data that grow by more than this, beyond the first bytes, are made to keep us busy."""

_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|(?<!\d)\d\d-\d\d \d\d:\d\d:\d\d")
_RANK = re.compile(r"\b((?:(?:DP|PP|TP|EP|ATTN_CP|MOE_DP)\d+ ?)+)(?=\])")
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.+-]+) \S+ (?P<journal>[\w.@-]+)\[\d+\]: ",
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:(?:stdout|stderr) [FP] )?",  # CRI
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \| ",
        r"(?P<pod>\[pod/[^\]]+\]) ",
        r"(?P<compose>[A-Za-z0-9][\w.-]*)\s+\| ",
        r"(?P<router>\[\d{3,6}\]) ",
        r"\d{1,3}\.\d\d\.\d{3}\.\d{3} [DIWE] ",  # llama.cpp's own clock and level
        r"\((?:[A-Za-z]\w*[: ])?[\w.:-]*(?: ?pid=\d+)(?:, ip=[\d.]+)?\) ",
    )
)
_STREAM_GROUPS = ("pod", "compose", "router", "journal")
_MAX_PREFIXES = 5


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without its wrapping; ``stream`` tells servers that share a file apart."""

    number: int
    text: str
    stream: str = ""
    rank: str | None = None
    """``DP0 TP0``, as SGLang writes it."""
    time: str | None = None
    """As it stands in the line."""


def clean(raw: bytes, *, number: int) -> LogLine:
    """The line's own text, printable, with stream, rank and time taken from what was around it."""
    text = raw.decode("utf-8", "replace")
    if text.startswith("{"):
        text = _unwrapped(text)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _CONTROL.sub("", text)
    stream = ""
    for _ in range(_MAX_PREFIXES):
        found = next((match for pattern in _PREFIXES if (match := pattern.match(text))), None)
        if found is None:
            break
        groups = found.groupdict()
        stream = stream or next((value for name in _STREAM_GROUPS if (value := groups.get(name))), "")
        text = text[found.end() :]
    time = _TIME.search(text, 0, 60) or _TIME.search(raw[:80].decode("utf-8", "replace"))
    rank = _RANK.search(text, 0, 120)
    return LogLine(
        number, text.rstrip(), stream, rank[1].strip() if rank else None, time[0] if time else None
    )


def _unwrapped(text: str) -> str:
    """The message inside a line of docker's json-file driver or a JSON logger."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(body, dict):
        for key in ("log", "message", "msg", "MESSAGE"):
            if isinstance(body.get(key), str):
                return str(body[key])
    return text


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their end, empty ones included; one longer than the limit is cut."""
    partial, count = b"", 0
    while chunk := file.read(CHUNK_BYTES):
        lines = (partial + chunk).split(b"\n")
        partial = lines.pop()[:LINE_LIMIT_BYTES]
        yield from lines
        count += len(lines)
        if count >= MAX_LINES:
            raise EOFError(f"of a log {MAX_LINES // 10**6} million lines are read")
    if partial:
        yield partial


@dataclass
class LogSource:
    """An open log; ``cut`` is set when its compressed data ended early or were damaged."""

    name: str
    _file: BinaryIO
    cut: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from raw_lines(self._file)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            self.cut = str(error) or type(error).__name__


@contextmanager
def open_log(path: Path) -> Iterator[LogSource]:
    """A log file, decompressed by what it is and not by its name; a growing one is read to its present end."""
    try:
        file = _opened(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot read: {error.strerror or error}") from error
    with file:
        yield LogSource(str(path), _decoded(file, name=str(path)))


def _opened(path: Path) -> BinaryIO:
    """A file, or a pipe that somebody writes to (``<(zcat log)``); a device has no end and is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise OSError(errno.EINVAL, "is a folder, a socket or a device, not a log")
        if stat.S_ISFIFO(mode) and not select.select([descriptor], [], [], PIPE_WAIT_S)[0]:
            raise OSError(errno.EINVAL, f"is a pipe that nobody wrote to for {PIPE_WAIT_S:g} s")
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def from_stream(file: BinaryIO, *, name: str = "standard input") -> LogSource:
    """A log from a pipe, decompressed like a file."""
    return LogSource(name, _decoded(file, name=name))


class _Rejoined:
    """A stream with its first bytes put back."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        data = self._read(size)
        self.given += len(data)
        return data

    def _read(self, size: int) -> bytes:
        if self._head:
            if size < 0:
                head, self._head = self._head, b""
                return head + self._rest.read()
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._rest.read(size)


class _InPieces:
    """A decompressor read as far as it goes: what came before damaged or missing data is not lost."""

    def __init__(self, file: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, compressed: _Rejoined) -> None:
        self._file = file
        self._compressed = compressed
        self._given = 0

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._file.read1(size))
        self._given += len(data)
        if self._given > FREE_BYTES + MAX_EXPANSION * self._compressed.given:
            raise EOFError(f"compressed data that grow more than {MAX_EXPANSION} times are read no further")
        return data


class _Transcoded:
    """UTF-16 text (PowerShell's ``>``) as UTF-8."""

    def __init__(self, source: Any, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def read(self, size: int = -1) -> bytes:
        while raw := self._source.read(size):
            if text := self._decoder.decode(raw):
                return text.encode("utf-8", "replace")
        return b""


def _decoded(file: BinaryIO, *, name: str) -> BinaryIO:
    head = file.read(6)
    rejoined = _Rejoined(head, file)
    whole = cast(BinaryIO, rejoined)
    if head.startswith(_GZIP):
        return cast(BinaryIO, _InPieces(gzip.GzipFile(fileobj=whole, mode="rb"), rejoined))
    if head.startswith(_BZIP2):
        return cast(BinaryIO, _InPieces(bz2.BZ2File(whole), rejoined))
    if head.startswith(_XZ):
        return cast(BinaryIO, _InPieces(lzma.LZMAFile(whole), rejoined))
    if head.startswith(_ZSTD):
        return _zstd(whole, name=name)
    if encoding := _UTF16.get(head[:2]):
        return cast(BinaryIO, _Transcoded(whole, encoding))
    return whole


def _zstd(file: BinaryIO, *, name: str) -> BinaryIO:
    """Python 3.14 brings zstd; before it, package ``zstandard`` is used where it is installed."""
    for module, opener in (("compression.zstd", "ZstdFile"), ("zstandard", "open")):
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        return cast(BinaryIO, getattr(found, opener)(file))
    raise BadInput(
        f"{name}: is compressed with zstd, which this Python cannot read; "
        f"try: zstd -dc {name} | spectune diagnose -   (or pip install zstandard)"
    )
