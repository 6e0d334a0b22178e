"""Words for the terminal: names of categories, prompts and tensors come from files, and a terminal obeys them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer

from spectune.analysis.words import INVISIBLE, visible
from spectune.domain.secrets import redact_text


def show(lines: Iterable[str]) -> None:
    """On standard output, each as one line, without what a terminal would obey."""
    sys.stdout.write("".join(visible(line).replace("\n", " ") + "\n" for line in lines))


def show_json(text: str) -> None:
    """A JSON document on standard output; what a terminal would obey stands in it as JSON's own escapes."""
    sys.stdout.write(INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def show_document(text: str) -> None:
    """A script or a table on standard output: as it is for a file or a pipe, without control marks for a terminal."""
    shown = visible(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown)
    if shown != text and shown != text.replace("\r\n", "\n"):
        say("characters that a terminal would obey are not shown here; a file has them: -o FILE")


def say(text: str) -> None:
    """On standard error, at once, and without credentials: an error repeats what it was given."""
    sys.stderr.write(f"{visible(redact_text(text))}\n")
    sys.stderr.flush()


@contextmanager
def said_if_slow(text: str, *, after_s: float = 2.0) -> Iterator[None]:
    """Says what is being done, where it takes so long that somebody may wonder."""
    timer = Timer(after_s, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
