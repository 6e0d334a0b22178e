"""Which layers of the target an engine will take the states from, as it reads the draft's configuration."""

from __future__ import annotations

from spectune.checkpoints.facts import AuxLayers, CheckpointFacts
from spectune.preflight.draft.engine_names import SGLANG_AUX_AS_WRITTEN, VLLM_READ
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older


def default_inputs(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs the engines take when nothing is written."""
    return (2, num_layers // 2, num_layers - 3)


def read_place(engine: str, draft: CheckpointFacts) -> AuxLayers | None:
    """The place of the draft's configuration that the engine reads first: vLLM looks at the top level, SGLang not."""
    if engine == "vllm" and draft.top_aux_layers is not None:
        return draft.top_aux_layers
    return draft.aux_layers


def uses_first_runner(situation: Situation) -> bool | None:
    """Whether vLLM runs its first model runner: told to, or because there is no Triton; ``None``: not known."""
    told = situation.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if told in ("0", "1"):
        return told == "0"
    machine = situation.machine
    return True if machine is not None and machine.gpus == () else None


def read_inputs(
    situation: Situation, draft: CheckpointFacts, target: CheckpointFacts
) -> tuple[int, ...] | None:
    """The layers whose inputs the engine will collect; ``None``: not known."""
    layers, written = target.num_layers, read_place(situation.engine, draft)
    if layers is None or situation.engine not in ("sglang", "vllm"):
        return None
    if written is None:
        return default_inputs(layers)
    in_eagle_config = written.where.startswith("eagle_config")
    if situation.engine == "vllm":
        return _read_by_vllm(situation, written, layers)
    if not in_eagle_config:
        return default_inputs(layers)
    if set(target.architectures) & SGLANG_AUX_AS_WRITTEN and written.ids[0] != 1:
        return written.ids
    if "GptOssForCausalLM" in target.architectures and max(written.ids) == layers:
        return written.ids
    return tuple(layer + 1 for layer in written.ids)


def _read_by_vllm(situation: Situation, written: AuxLayers, layers: int) -> tuple[int, ...] | None:
    if not written.where.startswith("eagle_config"):
        return written.ids
    if is_older(situation.version.text, VLLM_READ.rpartition(" ")[2]):
        return None
    return written.ids if uses_first_runner(situation) else default_inputs(layers)
