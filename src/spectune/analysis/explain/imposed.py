"""What steps cost where acceptance was imposed: known before any drafter is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spectune.analysis.explain.measured import MeasuredRow
from spectune.analysis.explain.records import ImposedCost
from spectune.analysis.explain.rows import required_lengths, step_parts
from spectune.analysis.explain.step import step_of
from spectune.domain.interval import Interval
from spectune.models.arm_shape import id_of, known_depth
from spectune.models.observation import Observation
from spectune.models.speed import SpeedModel


def imposed_costs(imposed: Sequence[Observation], model: SpeedModel) -> tuple[ImposedCost, ...]:
    """One for each arm and concurrency, over its launches; speeds enter as costs and are shown nowhere."""
    groups: dict[tuple[str, int], list[Observation]] = {}
    for o in imposed:
        groups.setdefault((id_of(o.arm), o.concurrency), []).append(o)
    found = []
    for (_, concurrency), launches in groups.items():
        baseline = model.baseline_tok_per_s(concurrency)
        lengths = [o.acceptance_length for o in launches if o.acceptance_length is not None]
        if baseline is None or len(lengths) < len(launches):
            continue
        length = _mean(lengths)
        speed = _mean([baseline * o.speedup if o.speedup else o.tok_per_s for o in launches])
        seen = replace(launches[0], tok_per_s=speed, speedup=speed / baseline, length=length)
        kept = Interval(value=length, low=None, high=None, n=len(launches), unit="tokens/step")
        row = MeasuredRow(seen.arm.name, seen, kept, depth=known_depth(seen.arm))
        step = step_of(row, model)
        assert step is not None  # its length is known
        found.append(
            ImposedCost(
                arm=row.name,
                arm_id=id_of(seen.arm),
                concurrency=concurrency,
                acceptance_length=length,
                step_cost_s=step.s,
                step_cost_ratio=step.ratio,
                num_launches=len(launches),
                parts=step_parts(step, model),
                required=required_lengths(step),
            )
        )
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
