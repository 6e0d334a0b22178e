"""Words for the terminal: names of categories, prompts and tensors come from files, and a terminal obeys them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from spectune.domain.secrets import redact_text
from spectune.report.words import visible


def show(lines: Iterable[str]) -> None:
    """On standard output, each as one line, without what a terminal would obey."""
    sys.stdout.write("".join(visible(line).replace("\n", " ") + "\n" for line in lines))


def say(text: str) -> None:
    """On standard error, at once, and without credentials: an error repeats what it was given."""
    sys.stderr.write(f"{visible(redact_text(text))}\n")
    sys.stderr.flush()
