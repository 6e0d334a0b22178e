"""From which layers of the target does the draft take its states, and will the engine read the same ones?

Two conventions are in use: an id names the *input* of a layer (the engines'
default, 2, N/2, N-3) or the *output* of a layer (most trainers: 1, N/2-1, N-4).
Both name the same states if each is read as it was written.
"""

from __future__ import annotations

from spectune.checkpoints.config import LAYERS_KEY, trained_layers
from spectune.checkpoints.facts import AuxLayers, CheckpointFacts
from spectune.domain.findings import Finding, Severity
from spectune.engines.registry import title_of
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify
from spectune.preflight.draft.layer_reading import (
    default_inputs,
    read_inputs,
    read_place,
    uses_first_runner,
)
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

OUT_OF_RANGE = finding_kind("draft-layer-out-of-range")
ORDER = finding_kind("draft-layer-order")
CONVENTION = finding_kind("draft-layer-convention")
GUESSED = finding_kind("draft-layers-guessed")
NOT_ATTENTION = finding_kind("draft-layer-not-attention")


def _pair(situation: Situation) -> tuple[CheckpointFacts, CheckpointFacts] | None:
    draft, target = situation.draft, situation.target
    if draft is None or target is None or situation.knobs.method != "eagle3":
        return None
    if identify(draft, target=target).family != "eagle3":
        return None
    return draft, target


def ids_exist(situation: Situation) -> Judgement:
    """Every id is a layer of the target, once, in order."""
    pair = _pair(situation)
    if pair is None or pair[0].aux_layers is None:
        return FINE
    draft, target = pair
    written = read_place(situation.engine, draft)
    assert written is not None
    place = (f"{draft.source}: configuration", f"{written.where}: {list(written.ids)}")
    findings = []
    if list(written.ids) != sorted(set(written.ids)):
        message = f"the draft's layer ids {list(written.ids)} repeat or are not in rising order"
        findings.append(ORDER.found(situation.subject, message, evidence=[place]))
    if target.num_layers is None:
        return Judgement(
            tuple(findings), ("the draft's layer ids against the target: its layers are not known",)
        )
    read = read_inputs(situation, draft, target) or written.ids
    outside = [layer for layer in {*read, *written.ids} if not 0 <= layer <= target.num_layers]
    if outside:
        findings.append(
            OUT_OF_RANGE.found(
                situation.subject,
                f"the draft asks for layers {list(written.ids)}, read as inputs {list(read)}, of a target with "
                f"{target.num_layers} layers",
                evidence=[
                    place,
                    (f"{target.source}: configuration", f"num_hidden_layers: {target.num_layers}"),
                ],
                remedy="take the draft that was made for this target",
            )
        )
    return found(*findings)


def convention_fits(situation: Situation) -> Judgement:
    """Ids written as outputs are read as outputs, and inputs as inputs."""
    pair = _pair(situation)
    if pair is None or pair[1].num_layers is None or situation.engine not in ("sglang", "vllm"):
        return FINE
    draft, target = pair
    layers, written = target.num_layers, read_place(situation.engine, draft)
    assert layers is not None
    trained = trained_layers(draft.config)
    if trained is not None and read_inputs(situation, draft, target) not in (None, trained):
        return found(_untrained(situation, draft, trained))
    if written is None and trained is not None:
        return FINE
    if written is None:
        if target.layer_types is not None and "linear_attention" in target.layer_types:
            return FINE  # ``layers_attend`` has more to say
        inputs = list(default_inputs(layers))
        message = f"no layer ids are written; the engine takes the inputs of layers {inputs} of {layers}"
        return found(GUESSED.found(situation.subject, message))
    read = read_inputs(situation, draft, target)
    if read is None:
        return not_checked(f"in which convention vLLM {situation.version.text} reads {written.where}")
    usual = default_inputs(layers)
    outputs = tuple(layer - 1 for layer in usual)
    if read == usual and written.ids == outputs and _may_be_second_runner(situation, written):
        message = (
            f"{title_of(situation.engine)} takes its default, the inputs of layers {list(usual)}, which is right "
            f"here; only if it falls back to its first model runner {_FIRST_RUNNER} does it read the draft's layer "
            f"outputs {list(written.ids)} as inputs"
        )
        return found(_off(situation, draft, message, severity="note"))
    if written.ids not in (usual, outputs):
        return _ignored(situation, draft, written.ids, read)
    if read == usual:
        return FINE
    meant = "outputs" if written.ids == outputs else "inputs"
    return found(
        _off(
            situation,
            draft,
            _contradiction(
                situation, written, read, f"they look like {meant} of the usual layers {list(usual)}"
            ),
        )
    )


def _untrained(situation: Situation, draft: CheckpointFacts, trained: tuple[int, ...]) -> Finding:
    """The layers are known for sure: spectune trained or exported the draft, and its configuration says on which."""
    assert situation.target is not None
    read = read_inputs(situation, draft, situation.target)
    return CONVENTION.found(
        situation.subject,
        f"{title_of(situation.engine)} takes the inputs of layers {list(read or ())}, and the draft was trained on "
        f"those of {list(trained)}",
        severity="error",
        evidence=[(f"{draft.source}/config.json", f"{LAYERS_KEY}: {list(trained)}")],
        remedy=f"write it in this engine's form: spectune drafter export --for {situation.engine}",
    )


_FIRST_RUNNER = "(no Triton, or VLLM_USE_V2_MODEL_RUNNER=0)"


def _contradiction(situation: Situation, written: AuxLayers, read: tuple[int, ...], why: str) -> str:
    engine = title_of(situation.engine)
    return f"{engine} takes the inputs of layers {list(read)}, and the draft says {list(written.ids)}: {why}"


def _may_be_second_runner(situation: Situation, written: AuxLayers) -> bool:
    in_section = situation.engine == "vllm" and written.where.startswith("eagle_config")
    return in_section and uses_first_runner(situation) is None


def _ignored(
    situation: Situation, draft: CheckpointFacts, ids: tuple[int, ...], read: tuple[int, ...]
) -> Judgement:
    """Ids that are not the usual ones: only whether they are used at all can be judged."""
    written = read_place(situation.engine, draft)
    assert written is not None
    off = {tuple(layer + shift for layer in ids) for shift in (0, 1)}
    if read in off:
        return FINE
    where = f"in {written.where}, which vLLM's second model runner does not read"
    if situation.engine == "sglang":
        where = "at the top level, which SGLang does not read"
    return found(_off(situation, draft, _contradiction(situation, written, read, f"they stand {where}")))


def _off(
    situation: Situation,
    draft: CheckpointFacts,
    message: str,
    *,
    severity: Severity | None = None,
) -> Finding:
    written = read_place(situation.engine, draft)
    assert written is not None
    if situation.engine == "sglang":
        remedy = "write the ids as layer outputs under eagle_config in the draft's config.json"
    else:
        remedy = 'write the ids as layer inputs under "eagle_aux_hidden_state_layer_ids" in the draft\'s config.json'
    return CONVENTION.found(
        situation.subject,
        message,
        severity=severity,
        evidence=[(f"{draft.source}/config.json", f"{written.where}: {list(written.ids)}")],
        remedy=remedy,
    )


def layers_attend(situation: Situation) -> Judgement:
    """In a hybrid target the states come from layers with full attention, or the draft says otherwise."""
    pair = _pair(situation)
    if pair is None or pair[1].layer_types is None:
        return FINE
    draft, target = pair
    types = target.layer_types or ()
    if "linear_attention" not in types and "mamba" not in types:
        return FINE
    read = read_inputs(situation, draft, target)
    if read is None:
        return not_checked(
            "whether the draft's states come from attention layers: the engine's ids are not known"
        )
    # An id may mean the layer itself or, read as an input, the one before it.
    candidates = {read, tuple(layer - 1 for layer in read)}
    if draft.aux_layers is not None:
        candidates.add(draft.aux_layers.ids)
    if any(all(_attends(types, layer) for layer in ids) for ids in candidates):
        return FINE
    kinds = [types[layer] if 0 <= layer < len(types) else "none" for layer in read]
    attention = [index for index, kind in enumerate(types) if "full" in kind or kind == "attention"]
    origin = "the engine's default" if draft.aux_layers is None else f"{draft.aux_layers.where}"
    return found(
        NOT_ATTENTION.found(
            situation.subject,
            f"the states come from the layers {list(read)} ({origin}), which are {', '.join(kinds)}",
            evidence=[(f"{target.source}: layer types", f"full attention in layers {attention[:16]}")],
            remedy="write the ids of full-attention layers that the draft was trained on into its config.json",
        )
    )


def _attends(types: tuple[str, ...], layer: int) -> bool:
    return 0 <= layer < len(types) and ("full" in types[layer] or types[layer] == "attention")


RULES: tuple[Rule, ...] = (ids_exist, convention_fits, layers_attend)
