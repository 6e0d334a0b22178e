"""What the terminal shows, as text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def as_text(shown: RenderableType, *, width: int) -> str:
    """Without colours or trailing spaces."""
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        color_system=None,
        force_terminal=False,  # whatever FORCE_COLOR says, which notebooks set
        force_jupyter=False,
    )
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
