"""Which layers of the target an engine will take the states from, as it reads the draft's configuration."""

from __future__ import annotations

from spectune.checkpoints.facts import AuxLayers, CheckpointFacts
from spectune.preflight.draft_fit_tables import SGLANG_AUX_AS_WRITTEN, VLLM_READ
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older


def default_inputs(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs the engines take when nothing is written."""
    return (2, num_layers // 2, num_layers - 3)


def read_inputs(
    situation: Situation, draft: CheckpointFacts, target: CheckpointFacts
) -> tuple[int, ...] | None:
    """The layers whose inputs the engine will collect; ``None``: not known."""
    layers, written = target.num_layers, draft.aux_layers
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
    first_runner = situation.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    return written.ids if first_runner else default_inputs(layers)
