"""How much memory a launch needs on each device: an estimate from tensor headers and configurations.

Counted are weights, the draft's weights and the KV cache per token. Not
counted: activations, CUDA graphs, the engine's own buffers and the memory of
other processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from spectune.checkpoints.config_values import as_section
from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.sizes import in_bytes
from spectune.engines.registry import traits_for
from spectune.engines.traits import Division
from spectune.preflight.draft.family import is_own_draft
from spectune.preflight.flags.every_engine import Flags
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.situation import Situation

_GGUF_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32}
_FOUR_BIT_CACHE = 20 / 32


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on each device; ``None``: not known."""

    devices: int
    target_weights_bytes: int | None
    draft_weights_bytes: int | None
    """0 where there is no draft."""
    target_kv_bytes_per_token: float | None
    draft_kv_bytes_per_token: float | None

    @property
    def weights_bytes(self) -> int | None:
        if self.target_weights_bytes is None or self.draft_weights_bytes is None:
            return None
        return self.target_weights_bytes + self.draft_weights_bytes

    def described(self) -> str:
        """One line, that says it is an estimate and what is counted."""
        per = f"on each of {self.devices} devices" if self.devices > 1 else "on one device"
        parts = [
            f"target weights {in_words(self.target_weights_bytes)}",
            f"draft weights {in_words(self.draft_weights_bytes)}",
            f"KV cache per token {in_words(self.target_kv_bytes_per_token)} for the target, "
            f"{in_words(self.draft_kv_bytes_per_token)} for the draft",
        ]
        return f"estimate {per}: {'; '.join(parts)}; not counted: activations, CUDA graphs, buffers"


def in_words(value: float | None) -> str:
    return "not known" if value is None else in_bytes(value, binary=True)


def estimate(situation: Situation) -> MemoryEstimate:
    """From headers, configurations and the flags that divide the model."""
    division = traits_for(situation.engine).division(situation.flags) or Division()
    tp, pp = division.tensor, division.pipeline
    attention_tp = max(1, tp // division.attention)
    target, draft = situation.target, situation.draft
    own = is_own_draft(situation)
    speculating = situation.knobs.method not in ("none", "ngram", "suffix")
    parts = tp * pp
    target_bytes, own_bytes = bytes_of(target)
    if own:
        drafting = situation.knobs.method in ("mtp", "eagle", "dspark")
        draft_bytes = own_bytes if drafting else 0
    else:
        draft_bytes = draft.weight_bytes if draft is not None else None
    if not speculating:
        draft_bytes = 0
    return MemoryEstimate(
        devices=division.devices,
        target_weights_bytes=None if target_bytes is None else target_bytes // parts,
        draft_weights_bytes=None if draft_bytes is None else draft_bytes // _draft_tp(situation, tp),
        target_kv_bytes_per_token=kv_bytes_per_token(situation, target, tp=attention_tp, pp=pp),
        draft_kv_bytes_per_token=_draft_kv(situation, own=own, speculating=speculating, tp=attention_tp),
    )


def bytes_of(target: CheckpointFacts | None) -> tuple[int | None, int | None]:
    """Of the model without its prediction layers, and of those: engines load them only to draft."""
    if target is None or target.weight_bytes is None or target.tensors is None:
        return None, None
    own = sum(target.tensors[name].num_bytes or 0 for name in target.prediction_tensors)
    return target.weight_bytes - own, own


def _draft_tp(situation: Situation, tp: int) -> int:
    if situation.engine != "vllm":
        return tp
    given = (speculation_of(situation.flags) or {}).get("draft_tensor_parallel_size")
    return given if type(given) is int and given > 0 else tp


def _draft_kv(situation: Situation, *, own: bool, speculating: bool, tp: int) -> float | None:
    if not speculating:
        return 0.0
    if not own:
        return kv_bytes_per_token(situation, situation.draft, tp=_draft_tp(situation, tp), pp=1)
    target = situation.target
    whole = kv_bytes_per_token(situation, target, tp=tp, pp=1)
    if target is None or whole is None or not target.num_layers:
        return None
    return whole / target.num_layers * (target.num_nextn_layers or 0)


def kv_bytes_per_token(
    situation: Situation, facts: CheckpointFacts | None, *, tp: int, pp: int
) -> float | None:
    """On one device. Latent attention (MLA) keeps one vector per layer on every device; grouped heads are divided."""
    if facts is None or facts.num_layers is None:
        return None
    layers = _attention_layers(facts) / pp
    latent = _setting(facts, "kv_lora_rank")
    per_value = _cache_bytes(situation, facts)
    if latent is not None:
        rope = _setting(facts, "qk_rope_head_dim")
        return None if rope is None else (latent + rope) * layers * per_value
    head_dim = facts.effective_head_dim
    if facts.num_kv_heads is None or head_dim is None or facts.model_type in ("deepseek2", "deepseek3"):
        return None
    value_dim = _setting(facts, "v_head_dim") or head_dim
    heads = max(1, -(-facts.num_kv_heads // tp))
    return heads * (head_dim + value_dim) * layers * per_value


def _attention_layers(facts: CheckpointFacts) -> int:
    """Layers that keep every token: linear attention and state-space layers keep none, sliding windows few."""
    if facts.layer_types is None:
        return facts.num_layers or 0
    return sum(1 for kind in facts.layer_types if "full" in kind or kind == "attention") or (
        facts.num_layers or 0
    )


def _setting(facts: CheckpointFacts, key: str) -> int | None:
    for section in (as_section(facts.config.get("text_config")), facts.config):
        value = section.get(key)
        if type(value) is int and value > 0:
            return value
    return None


def _cache_bytes(situation: Situation, facts: CheckpointFacts) -> float:
    flags = Flags(situation)
    if situation.engine == "llamacpp":
        kinds = (flags.text("cache-type-k") or "f16", flags.text("cache-type-v") or "f16")
        return sum(_GGUF_CACHE_BYTES.get(kind.lower(), _FOUR_BIT_CACHE) for kind in kinds) / 2
    kind = (flags.text("kv-cache-dtype") or "auto").lower()
    if kind == "auto":
        return 4.0 if "32" in (flags.text("dtype") or facts.dtype or "") else 2.0
    return 0.5 if "fp4" in kind else 1.0 if "8" in kind.replace("float16", "") else 2.0
