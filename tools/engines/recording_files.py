"""The files of a recording, without what belongs to the machine they were made on."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 200_000


class Scrubber:
    """Replaces what belongs to this machine; refuses text that still holds a path of it."""

    def __init__(self, names: dict[str, Path | str]) -> None:
        self.host_name = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])")
        self.addresses = own_addresses()
        roots = {Path(value).parts[1] for value in names.values()} | {"home", "tmp"}
        self.leftover = re.compile(rf"/(?:{'|'.join(sorted(roots))})/[^\s\"']*")
        needles: dict[str, str] = {}
        for name, value in names.items():
            needles[str(value)] = name
            if isinstance(value, Path):
                needles[str(value.resolve())] = name
        self.needles = sorted(needles.items(), key=lambda pair: -len(pair[0]))

    def __call__(self, text: str, *, where: str) -> str:
        for needle, name in self.needles:
            text = text.replace(needle, name)
        text = self.host_name.sub("HOST_NAME", text)
        for address in self.addresses:
            text = text.replace(address, "HOST_ADDRESS")
        found = self.leftover.search(text)
        if found:
            raise SystemExit(f"{where}: a path of this machine is left: {found.group(0)!r}")
        return text


def own_addresses() -> set[str]:
    """This machine's addresses other than loopback; no packet is sent to find out."""
    found = set()
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
        found.add(str(probe.getsockname()[0]))
    with contextlib.suppress(OSError):
        found.update(socket.gethostbyname_ex(socket.gethostname())[2])
    return {address for address in found if not address.startswith(("127.", "0."))}


class Recording:
    """The files of one method."""

    def __init__(self, folder: Path, scrub: Scrubber) -> None:
        self.folder = folder
        self.scrub = scrub
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()

    def text(self, name: str, text: str) -> None:
        clean = self.scrub(text, where=name).encode()
        if len(clean) > MAX_FILE_BYTES:
            raise SystemExit(f"{name}: {len(clean)} bytes, more than {MAX_FILE_BYTES}: trim it")
        (self.folder / name).write_bytes(clean)

    def json(self, name: str, body: Any) -> None:
        self.text(name, json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    def reply(self, name: str, status: int, body: str, trim: Callable[[str, Any], Any]) -> None:
        """A JSON body as it is; anything else as ``{"status", "text"}``."""
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        if status == 200 and isinstance(parsed, dict | list):
            self.json(name, trim(name, parsed))
        else:
            self.json(name, {"status": status, "text": body})

    def wire(self, name: str, wire: bytes) -> None:
        if self.scrub(wire.decode(), where=name) != wire.decode():
            raise SystemExit(f"{name}: holds something of this machine, and its framing cannot be edited")
        (self.folder / name).write_bytes(wire)
