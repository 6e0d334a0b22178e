"""Prometheus text, and the speculation counters that vLLM and llama.cpp publish in it.

The text comes from a server and is not trusted: a line that does not parse is
skipped, and a value that is NaN, infinite or beyond what can be counted is absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from spectune.domain.acceptance import AcceptanceCounts

LARGEST = 2.0**63
"""Of a counter or a gauge; larger ones overflow a sum."""

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*,?')
_END_OF_LABELS = re.compile(r"[ \t]*\}")
_POSITION = re.compile(r"[0-9]{1,4}")
_ESCAPE = re.compile(r"\\(.)")
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Sample:
    """One line of the text; ``labels`` are unescaped."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """All finite samples of one scrape, in the order of the text, by name."""

    by_name: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)

    def samples(self, name: str) -> tuple[Sample, ...]:
        return self.by_name.get(name, ())

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all samples that carry ``labels``; ``None`` if there are none."""
        values = [
            sample.value
            for sample in self.samples(name)
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]
        return math.fsum(values) if values else None

    def count(self, name: str, **labels: str) -> int | None:
        """``total`` as a whole number: counters are floats on the wire."""
        total = self.total(name, **labels)
        return None if total is None else round(total)


def parse_metrics(text: str) -> Metrics:
    """Samples of a Prometheus text (format 0.0.4 or OpenMetrics; time stamps and exemplars are not kept)."""
    by_name: dict[str, list[Sample]] = {}
    for line in text.split("\n"):
        sample = _parse_line(line)
        if sample is not None:
            by_name.setdefault(sample.name, []).append(sample)
    return Metrics({name: tuple(samples) for name, samples in by_name.items()})


def read_spec_counters(metrics: Metrics, prefix: str) -> AcceptanceCounts | None:
    """Acceptance from the ``{prefix}spec_decode_*_total`` families (``vllm:``, ``llamacpp:``).

    Summed over engines and models. ``None`` when the drafted or accepted family
    is absent: vLLM publishes none of them without speculation, llama.cpp
    publishes zeros.
    """
    family = f"{prefix}spec_decode_num_"
    drafted = metrics.count(f"{family}draft_tokens_total")
    accepted = metrics.count(f"{family}accepted_tokens_total")
    if drafted is None or accepted is None or accepted > drafted:
        return None
    return AcceptanceCounts(
        num_drafts=metrics.count(f"{family}drafts_total"),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_position=_per_position(metrics.samples(f"{family}accepted_tokens_per_pos_total")),
    )


def _per_position(samples: tuple[Sample, ...]) -> tuple[int, ...] | None:
    sums: dict[int, float] = {}
    for sample in samples:
        position = sample.labels.get("position", "")
        if not _POSITION.fullmatch(position):
            return None
        sums[int(position)] = sums.get(int(position), 0.0) + sample.value
    if not sums or sorted(sums) != list(range(len(sums))):
        return None
    return tuple(round(sums[position]) for position in range(len(sums)))


def _parse_line(line: str) -> Sample | None:
    name = _NAME.match(line)
    if name is None:
        return None
    position = name.end()
    labels = _NO_LABELS
    if line.startswith("{", position):
        labels, position = _parse_labels(line, position + 1)
        end = _END_OF_LABELS.match(line, position)
        if end is None:
            return None
        position = end.end()
    fields = line[position:].split(maxsplit=1)  # behind the value: a time stamp or an exemplar
    try:
        value = float(fields[0])
    except (IndexError, ValueError):
        return None
    return Sample(name[1], labels, value) if abs(value) < LARGEST else None


def _parse_labels(line: str, position: int) -> tuple[Mapping[str, str], int]:
    labels: dict[str, str] = {}
    while (match := _LABEL.match(line, position)) is not None:
        labels[match[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], match[2])
        position = match.end()
    return labels, position
