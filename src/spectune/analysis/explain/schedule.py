"""The best draft length at each concurrency, in the engines' own words.

vLLM 0.32: ``num_speculative_tokens_per_batch_size`` in ``--speculative-config``,
a list of ``[first, last, tokens]`` with inclusive batch sizes from 1, 0 for
off; gaps and the tail carry the last value on, and ``num_speculative_tokens``
caps them all. SGLang 0.5.23: the file of ``--speculative-adaptive-config``,
``{"batch size": {"candidate_steps": [...]}}``; a batch uses the largest key
not above it, and only chains of EAGLE and EAGLE3 adapt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spectune.analysis.explain.measured import MeasuredRow, told_apart
from spectune.analysis.explain.records import Schedule
from spectune.domain.arm import Arm, FlagValue
from spectune.models.arm_shape import shape_of

SGLANG_CONFIG_FILE = "adaptive.json"
_VLLM_KEY = "speculative."
"""Of the flags of an arm, those that are keys of ``--speculative-config``."""
_SGLANG_METHODS = frozenset({"eagle", "eagle3"})


def best_lengths(rows: Sequence[MeasuredRow], *, margin: float = 0.0) -> dict[int, MeasuredRow]:
    """The fastest measured chain, or plain decoding, by concurrency.

    Speculation must beat plain decoding by ``margin`` to be chosen.
    """
    found: dict[int, MeasuredRow] = {}
    for concurrency in sorted({row.concurrency for row in rows}):
        here = [r for r in rows if r.concurrency == concurrency and shape_of(r.arm).topk == 1]
        plain = max((r for r in here if r.is_baseline), key=lambda r: r.tok_per_s, default=None)
        chains = [r for r in here if not r.is_baseline and r.depth]
        best = max(chains, key=lambda r: r.tok_per_s, default=None)
        if best is not None and (plain is None or best.tok_per_s > plain.tok_per_s * (1 + margin)):
            found[concurrency] = best
        elif plain is not None:
            found[concurrency] = plain
    return found


def one_family(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Baselines and the chains of the method and drafter that hold the fastest chain of all."""
    chains = [r for r in rows if not r.is_baseline and shape_of(r.arm).topk == 1 and r.depth]
    if not chains:
        return [r for r in rows if r.is_baseline]
    lead = max(chains, key=lambda r: r.tok_per_s).arm
    rest = lead.model_copy(update={"name": "", "knobs": _bare(lead)})

    def alike(arm: Arm) -> bool:
        return arm.model_copy(update={"name": "", "knobs": _bare(arm)}) == rest

    return [r for r in rows if r.is_baseline or (r in chains and alike(r.arm))]


def _bare(arm: Arm) -> Any:
    return arm.knobs.model_copy(update={"num_steps": None, "num_draft_tokens": None, "topk": None})


def schedule(rows: Sequence[MeasuredRow], *, margin: float = 0.0) -> Schedule | None:
    """From at least two concurrencies with chains; ``None`` otherwise."""
    family = one_family(rows)
    chosen = best_lengths(family, margin=margin)
    speculating = [row for row in chosen.values() if not row.is_baseline]
    if len(chosen) < 2 or all(row.is_baseline for row in family):
        return None
    best = {c: 0 if row.is_baseline else shape_of(row.arm).tokens for c, row in chosen.items()}
    arm = speculating[0].arm if speculating else None
    notes = [
        "concurrency stands for the running batch; between measured points the smaller one's value holds"
    ]
    near = [f"{names} at c={c}" for c, row in chosen.items() if (names := _near(row, family, margin))]
    if near:
        notes.append(f"as fast as the ones above, as far as these figures tell: {', '.join(near)}")
    vllm = sglang = None
    flags: tuple[str, ...] = ()
    if arm is not None:
        vllm = vllm_speculative_config(best, arm)
        notes.append(
            "vLLM: keys of the study's own --speculative-config that its arms do not name (prompt_lookup_max of ngram, "
            "the engine's flags) belong in this one too"
        )
        notes.append(
            "vLLM: a schedule changes the verification length at run time, so its older model runner falls back "
            "from full to piecewise graphs; it is ignored with data parallelism"
        )
        if arm.knobs.method in _SGLANG_METHODS:
            sglang, flags = sglang_adaptive_config(best), sglang_adaptive_flags(best)
            notes.append("SGLang: one candidate per batch size, so nothing is left to its own adaptation")
    return Schedule(
        best_by_concurrency={str(c): k for c, k in best.items()},
        off_above_concurrency=_off_above(best),
        vllm_speculative_config=vllm,
        sglang_adaptive_config=sglang,
        sglang_flags=flags,
        notes=tuple(notes),
    )


def _near(best: MeasuredRow, rows: Sequence[MeasuredRow], margin: float) -> str:
    """Other lengths that are not told apart from the best at its concurrency; 0 is plain decoding."""
    others = [r for r in rows if r.concurrency == best.concurrency and r is not best]
    near = {
        0 if r.is_baseline else shape_of(r.arm).tokens
        for r in others
        if not told_apart(best, r, margin=margin)
    }
    return " and ".join(map(str, sorted(near)))


def _off_above(best: Mapping[int, int]) -> int | None:
    """The largest concurrency with speculation, if it is off at every larger one measured."""
    on = [c for c, k in best.items() if k > 0]
    off = [c for c, k in best.items() if k == 0]
    if not on or not off or min((c for c in off), default=0) < max(on):
        return None
    return max(on)


def vllm_ranges(best: Mapping[int, int]) -> list[list[int]]:
    """``[first, last, tokens]`` from batch size 1 on; a measured value holds from its concurrency to the next."""
    points = sorted(best)
    ranges: list[list[int]] = []
    for index, concurrency in enumerate(points):
        first = 1 if index == 0 else concurrency
        last = points[index + 1] - 1 if index + 1 < len(points) else concurrency
        if ranges and ranges[-1][2] == best[concurrency]:
            ranges[-1][1] = last
        else:
            ranges.append([first, last, best[concurrency]])
    return ranges


def vllm_speculative_config(best: Mapping[int, int], arm: Arm) -> dict[str, Any]:
    """The value of ``--speculative-config``."""
    config: dict[str, Any] = {"method": arm.knobs.method}
    if arm.knobs.drafter is not None:
        config["model"] = arm.knobs.drafter
    for name, value in arm.flags.items():
        if name.startswith(_VLLM_KEY):
            config[name.removeprefix(_VLLM_KEY)] = _json_or_text(value)
    config["num_speculative_tokens"] = max(best.values())
    config["num_speculative_tokens_per_batch_size"] = vllm_ranges(best)
    return config


def _json_or_text(value: FlagValue) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def sglang_adaptive_config(best: Mapping[int, int]) -> dict[str, Any]:
    """The content of the file of ``--speculative-adaptive-config``."""
    points = sorted(best)
    return {
        str(1 if index == 0 else concurrency): {"candidate_steps": [best[concurrency]]}
        for index, concurrency in enumerate(points)
    }


def sglang_adaptive_flags(best: Mapping[int, int]) -> tuple[str, ...]:
    """Its start value must be one of the candidates."""
    steps = next((best[c] for c in sorted(best) if best[c] > 0), 0)
    return (
        "--speculative-adaptive",
        "--speculative-adaptive-config",
        SGLANG_CONFIG_FILE,
        "--speculative-num-steps",
        str(steps),
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        str(steps + 1),
    )


def vllm_flag(config: Mapping[str, Any]) -> str:
    """One argument, as JSON without spaces."""
    return json.dumps(config, separators=(",", ":"))
