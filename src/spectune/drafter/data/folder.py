"""One process at a time works on a data set."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spectune.drafter.out_folder import check_out
from spectune.errors import BadInput
from spectune.store.replacing import check_lock_text, check_replaceable

_OURS = ("prompts.jsonl", "manifest.json", "parts", "journal")


@contextmanager
def lock(out: Path) -> Iterator[None]:
    """Held while the data set is written; the system releases it when the process ends, however it ends."""
    check_out("--out", out, own="plan.json")
    check_replaceable(f"--out {out}", out, names=_OURS, marks=("plan.json", "lock"))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BadInput(
                f"{out}: another spectune (pid {file.read().strip() or 'unknown'}) is writing this data set; "
                "wait for it, or give another --out"
            ) from None
        file.seek(0)
        check_lock_text(out / "lock", file.read(300))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
