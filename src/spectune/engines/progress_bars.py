"""Progress bars in engine logs."""

from __future__ import annotations

import re

_BAR = re.compile(r"(?:^|[\s:])(\d{1,3})%(?:\||\s+Completed\b)")


def progress_in(line: str) -> float | None:
    """The share done, 0 to 1, that a progress bar (as of tqdm) in this line shows; ``None``: there is none."""
    found = _BAR.search(line)
    if found is None:
        return None
    percent = int(found.group(1))
    return percent / 100 if percent <= 100 else None
