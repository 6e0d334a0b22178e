"""Whether a draft's configuration can be used and its tensors are those it describes; one check for every command."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.checkpoints.config_faults import config_faults
from spectune.checkpoints.facts import CheckpointFacts
from spectune.errors import BadInput
from spectune.preflight.draft.eagle3_parts import (
    missing_parts,
    num_decoder_layers,
    unannounced_biases,
    wrong_shapes,
)
from spectune.preflight.draft.vocabulary_map import vocabulary_contradictions


def check_draft(facts: CheckpointFacts, *, target: CheckpointFacts) -> None:
    """Raises ``BadInput`` with everything that is wrong; reads headers and configuration only."""
    check_config(facts)
    absent = missing_parts(facts)
    problems = [f"lacks {', '.join(absent)}: not a whole EAGLE-3 draft"] if absent else []
    problems += [
        f"{info.file}: {name} is {list(info.shape)}, config.json asks for {wanted}"
        for name, info, wanted in wrong_shapes(facts)
    ]
    layers = num_decoder_layers(facts)
    if layers > 1:
        problems.append(f"holds {layers} decoder layers: an EAGLE-3 draft of one is understood here")
    problems += vocabulary_contradictions(facts, target)
    if None not in (facts.vocab_size, target.vocab_size) and facts.vocab_size != target.vocab_size:
        problems.append(
            f"config.json: vocab_size is {facts.vocab_size}, expected {target.vocab_size} as of {target.source}"
        )
    problems += [
        f"config.json: {key} is not true, and the draft has {', '.join(names)}, which engines then drop; write "
        f'"{key}": true if it was trained with them'
        for key, names in unannounced_biases(facts).items()
    ]
    raise_all(facts, problems)


def check_config(facts: CheckpointFacts) -> None:
    """Raises ``BadInput`` with every value of ``config.json`` from which no layer can be built."""
    raise_all(facts, config_faults(facts.config) if facts.kind != "gguf" else ())


def raise_all(facts: CheckpointFacts, problems: Sequence[str]) -> None:
    if len(problems) == 1:
        raise BadInput(f"{facts.source}: {problems[0]}")
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise BadInput(f"{facts.source}: {len(problems)} problems{listed}")
