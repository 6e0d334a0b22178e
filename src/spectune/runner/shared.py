"""What several machines may do to one study that they share."""

from __future__ import annotations

from spectune.domain.machine import Machine
from spectune.domain.study import Study
from spectune.errors import BadInput


def check_same_kind(study: Study, here: Machine, *, place: str) -> None:
    """``BadInput`` if this machine is of another kind than the study's: speeds of both would be mixed in one figure."""
    known = study.machine
    facts = (
        ("processor", known.cpu, here.cpu),
        ("cores", known.cores, here.cores),
        ("GPUs", known.gpus, here.gpus),
    )
    for what, was, now in facts:
        if was is not None and now is not None and was != now:
            raise BadInput(
                f"{place}: its trials were measured on {known.hostname} ({what}: {_shown(was)}), and this is "
                f"{here.hostname} ({_shown(now)}); they cannot be compared in one study. Give this machine its own "
                "place with --dir, and put the two side by side with `spectune compare`"
            )


def _shown(value: str | int | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
