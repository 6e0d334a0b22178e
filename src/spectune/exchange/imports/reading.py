"""Files from anywhere: bounded, and every complaint names file, place, value and what would be right."""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.errors import BadInput

MAX_FILE_BYTES = 256 * 2**20
MAX_DOCUMENTS = 100_000
MAX_FILES = 2_000
SMALLEST, LARGEST = 1e-12, 1e15
"""Of what a figure of a measurement can be; 0 apart."""

_HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class SourceFile:
    """One file, read whole."""

    path: Path
    text: str
    sha256: str

    @property
    def name(self) -> str:
        return well_formed(self.path.name)


def read_source(path: Path) -> SourceFile:
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    if not path.is_file():
        raise BadInput(f"{path}: is not a file")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise BadInput(f"{path}: {size} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    return SourceFile(path, text, hashlib.sha256(data).hexdigest())


def json_documents(source: SourceFile) -> list[Any]:
    """One document, or one per line. NaN becomes ``None``: a tool's "no data"."""
    try:
        return [loads(source.text)]
    except ValueError as error:
        whole = error
    except RecursionError as error:
        raise BadInput(f"{source.path}: is nested too deeply") from error
    found: list[Any] = []
    for number, line in enumerate(source.text.splitlines(), start=1):
        if not line.strip():
            continue
        if len(found) == MAX_DOCUMENTS:
            raise BadInput(f"{source.path}: more than {MAX_DOCUMENTS} lines")
        try:
            found.append(loads(line))
        except (ValueError, RecursionError) as error:
            if not found:
                raise BadInput(f"{source.path}: is neither JSON ({whole}) nor JSON lines") from error
            raise BadInput(f"{source.path}: line {number}: not JSON: {error}") from error
    if not found:
        raise BadInput(f"{source.path}: is empty")
    return found


def loads(text: str) -> Any:
    """One JSON document, with every text in it as UTF-8 can hold it. ``ValueError``, ``RecursionError``."""
    document = json.loads(
        text, parse_constant=lambda name: None if name == "NaN" else float(name.replace("Infinity", "inf"))
    )
    return whole_texts(document) if _HALF_OF_A_PAIR.search(text) else document


def whole_texts(value: Any) -> Any:
    """Without lone surrogates, in names of fields too."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list):
        return [whole_texts(item) for item in value]
    if isinstance(value, dict):
        return {whole_texts(name): whole_texts(item) for name, item in value.items()}
    return value


def well_formed(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become question marks: of files, and of arguments that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Fields:
    """One JSON object with its place, for complaints."""

    values: Mapping[str, Any]
    place: str

    @classmethod
    def of(cls, value: Any, place: str) -> Fields:
        if not isinstance(value, dict):
            raise BadInput(f"{place}: must be an object, got {shown(value)}")
        return cls(value, place)

    def _wrong(self, name: str, wanted: str) -> BadInput:
        return BadInput(f"{self.place}: {name}: must be {wanted}, got {shown(self.values.get(name))}")

    def number(
        self, name: str, *, minimum: float = 0.0, above: bool = False, infinite: bool = False
    ) -> float | None:
        """``None`` where it is missing or null; ``above``: the minimum itself is wrong."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, str) and infinite and value in ("inf", "Infinity"):
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf if value > 0 else -math.inf
        if math.isnan(found):
            return None
        if found < minimum or (above and found == minimum):
            raise self._wrong(name, f"a number {'above' if above else 'of at least'} {minimum:g}")
        if (math.isinf(found) and infinite and value == found) or found == 0:
            return found
        if not SMALLEST <= abs(found) <= LARGEST:
            raise self._wrong(name, f"0, or between {SMALLEST:g} and {LARGEST:g}")
        return found

    def positive(self, name: str) -> float | None:
        """``None`` also for 0, which tools write where they have no data."""
        value = self.number(name)
        return value or None

    def whole(self, name: str, *, minimum: int = 0) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(name, f"a whole number of at least {minimum}")
        if value > LARGEST:
            raise self._wrong(name, f"a whole number up to {LARGEST:g}")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def required(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise BadInput(f"{self.place}: {name}: is missing")
        return value

    def objects(self, name: str) -> list[Fields]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return [Fields.of(item, f"{self.place}: {name}[{i}]") for i, item in enumerate(value)]

    def object(self, name: str) -> Fields:
        """Empty where it is missing."""
        value = self.values.get(name)
        return Fields.of({} if value is None else value, f"{self.place}: {name}")

    def sequence(self, name: str, *, length: int | None = None) -> list[Any] | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        if length is not None and len(value) != length:
            raise BadInput(f"{self.place}: {name}: has {len(value)} items, expected {length}")
        return value

    def numbers(self, name: str, *, length: int | None = None) -> list[float | None] | None:
        """Of at least 0; an item may be null."""
        values = self.sequence(name, length=length)
        if values is None:
            return None
        return [Fields({name: v}, self.place).number_at(name, i) for i, v in enumerate(values)]

    def number_at(self, name: str, index: int) -> float | None:
        try:
            return self.number(name)
        except BadInput as error:
            raise BadInput(str(error).replace(f"{name}:", f"{name}[{index}]:", 1)) from None


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 2, 60, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no number of more than 4,300 digits
            return f"a number of {x.bit_length()} bits"


def shown(value: Any) -> str:
    """For complaints: short, whatever it is; a YAML file of a kilobyte can hold a list of a billion."""
    text = _Shown().repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def numbered(documents: Sequence[Any], source: SourceFile) -> Iterator[Fields]:
    """Each document as an object; its line is named where there are several."""
    for number, document in enumerate(documents, start=1):
        place = str(source.path) if len(documents) == 1 else f"{source.path}: result {number}"
        yield Fields.of(document, place)
