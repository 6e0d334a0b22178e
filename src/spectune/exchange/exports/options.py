"""What an export needs beside the study, and what it can be; imports nothing that takes time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from spectune.errors import BadInput

Rows = Literal["arms", "trials", "prompts", "requests"]
DEFAULT_PORT = 8000
TIME = re.compile(r"(\d{1,4}-)?\d{1,4}(:\d{2}){0,2}", re.ASCII)
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,300}")
HOST = re.compile(r"[A-Za-z0-9._:][A-Za-z0-9._:-]{0,254}")
_PROGRAM = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")


@dataclass(frozen=True)
class ExportOptions:
    """What the forms need beside the study. ``BadInput`` for a value that no form can hold."""

    arm: str | None = None
    """Name or id; the best one where ``None``, every arm for tables."""
    rows: Rows = "arms"
    host: str | None = None
    port: int = DEFAULT_PORT
    image: str | None = None
    program: str | None = None
    time_limit: str = "1-00:00:00"

    def __post_init__(self) -> None:
        if self.rows not in get_args(Rows):
            raise BadInput(f"rows: must be one of {', '.join(get_args(Rows))}, got {self.rows!r}")
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 1 <= self.port <= 65535:
            raise BadInput(f"port: must be a port from 1 to 65535, got {self.port!r}")
        if self.host is not None and not HOST.fullmatch(self.host):
            raise BadInput(f"host: must be an address, got {self.host!r}")
        if self.image is not None and not IMAGE.fullmatch(self.image):
            raise BadInput(f"image: must be an image such as vllm/vllm-openai:v0.32.0, got {self.image!r}")
        if self.program is not None and not _PROGRAM.fullmatch(self.program):
            raise BadInput(f"program: must be the name or the path of a program, got {self.program!r}")
        if not TIME.fullmatch(self.time_limit):
            raise BadInput(f"time_limit: must be minutes, [HH:]MM:SS or D-HH:MM:SS, got {self.time_limit!r}")
