"""``DraftConfig``: the shape of an EAGLE-3 draft, read from and written to its ``config.json``. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.checkpoints.config import LAYERS_KEY, text_section, trained_layers
from spectune.checkpoints.config_values import ConfigValues
from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.read import read_checkpoint
from spectune.drafter.draft_check import check_config, check_draft
from spectune.errors import BadInput

ARCHITECTURE = "LlamaForCausalLMEagle3"
_UNSUPPORTED_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
DEFAULT_MAX_POSITIONS = 2048


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of one draft. ``hidden_size`` is also its target's: token embeddings are shared."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Of the target: rows of the shared embedding."""
    draft_vocab_size: int
    layers: tuple[int, ...]
    """Target layers whose inputs are fused; the input of layer i is the output of layer i - 1."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    max_positions: int = DEFAULT_MAX_POSITIONS

    @property
    def num_parameters(self) -> int:
        hidden, queries, keys = (
            self.hidden_size,
            self.num_heads * self.head_dim,
            self.num_kv_heads * self.head_dim,
        )
        attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
        fusion = len(self.layers) * hidden * hidden
        return (
            fusion
            + attention
            + 3 * hidden * self.intermediate_size
            + 4 * hidden
            + self.draft_vocab_size * hidden
        )


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Inputs of a low, a middle and a high layer: what engines collect when a draft names none."""
    if num_layers < 6:
        raise BadInput(
            f"a target of {num_layers} layers: the default layers 2, L // 2 and L - 3 need at least 6; "
            "give --layers"
        )
    return (2, num_layers // 2, num_layers - 3)


def config_for_target(
    target: CheckpointFacts, *, layers: tuple[int, ...] | None, draft_vocab_size: int
) -> DraftConfig:
    """A draft as wide as its target, with one layer shaped like the target's. Raises ``BadInput``."""
    sizes = {
        "hidden_size": target.hidden_size,
        "num_attention_heads": target.num_heads,
        "num_hidden_layers": target.num_layers,
        "vocab_size": target.vocab_size,
    }
    check_config(target)
    unknown = [name for name, value in sizes.items() if not value]
    if unknown:
        raise unsaid(target, *unknown)
    hidden, heads, num_layers, vocab = (int(value or 0) for value in sizes.values())
    chosen = layers if layers is not None else default_layers(num_layers)
    _check_layers(chosen, num_layers)
    return DraftConfig(
        hidden_size=hidden,
        intermediate_size=target.intermediate_size or 4 * hidden,
        num_heads=heads,
        num_kv_heads=target.num_kv_heads or heads,
        head_dim=target.effective_head_dim or hidden // heads,
        vocab_size=vocab,
        draft_vocab_size=min(draft_vocab_size, vocab),
        layers=chosen,
        rms_norm_eps=_norm_epsilon(target) or 1e-5,
        rope_theta=target.rope.theta or 10_000.0,
        max_positions=target.max_positions or DEFAULT_MAX_POSITIONS,
    )


def unsaid(facts: CheckpointFacts, *names: str) -> BadInput:
    """The error for sizes that are not known: nothing is there, one is no size, or none is written."""
    notes = [note.removeprefix(f"{facts.source}: ") for note in facts.not_read]
    if facts.kind == "folder":
        notes = [note for note in notes if note.startswith("no config.json") or any(n in note for n in names)]
    problem = notes[0] if notes else f"config.json does not say {', '.join(names)}"
    name = facts.source or "''"
    return BadInput(f"{name}: {problem}; give a folder with config.json and safetensors")


def _norm_epsilon(facts: CheckpointFacts) -> float | None:
    return ConfigValues([text_section(facts.config), facts.config], file="config.json").number("rms_norm_eps")


def _check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    wrong = [layer for layer in layers if not 0 <= layer < num_layers]
    if wrong or not layers or len(set(layers)) < len(layers) or sorted(layers) != list(layers):
        raise BadInput(
            f"layers {','.join(map(str, layers))}: give different layers from 0 to {num_layers - 1}, "
            "lowest first; a layer stands for the hidden state that enters it"
        )


def read_draft_config(folder: Path, *, target: CheckpointFacts) -> DraftConfig:
    """The shape of a draft on disk, which must fit ``target``. Raises ``BadInput``."""
    facts = read_checkpoint(str(folder))
    if facts.kind != "folder":
        raise BadInput(f"{folder}: give a draft's folder with config.json and model.safetensors")
    pickles = [note for note in facts.not_read if "pickle" in note]
    if facts.tensors is None and pickles:
        raise BadInput(f"{folder}: {pickles[0]}; convert the weights to safetensors")
    if facts.faults:
        raise BadInput(f"{folder}: {facts.faults[0]}")
    if facts.tensors is None:
        raise BadInput(
            f"{folder}: no weights in it; give a draft's folder with config.json and model.safetensors"
        )
    check_config(facts)
    if facts.format != "plain":
        raise BadInput(
            f"{folder}: {facts.format} format; `spectune drafter export` converts to plain folders"
        )
    if "fc.weight" not in (facts.tensors or {}):
        raise BadInput(f"{folder}: no fc.weight: not an EAGLE-3 draft")
    asked = [name for name in _UNSUPPORTED_OPTIONS if facts.norm_options.get(name)]
    if asked:
        raise BadInput(f"{folder}: config.json sets {', '.join(asked)}, which this evaluation does not model")
    act = facts.config.get("hidden_act")
    if act not in (None, "silu", "swish"):
        raise BadInput(f"{folder}: config.json says hidden_act {act!r}; this evaluation models silu alone")
    config = _config_of(facts, folder, target)
    check_draft(facts, target=target)
    return config


def _config_of(facts: CheckpointFacts, folder: Path, target: CheckpointFacts) -> DraftConfig:
    hidden = _needed(facts, facts.hidden_size, "hidden_size")
    heads = _needed(facts, facts.num_heads, "num_attention_heads")
    if hidden != _needed(target, target.hidden_size, "hidden_size"):
        raise BadInput(
            f"{folder}: a draft of hidden size {hidden} for a target of {target.hidden_size} "
            f"({target.source}); it was made for another model"
        )
    vocab = _needed(target, target.vocab_size, "vocab_size")
    num_layers = _needed(target, target.num_layers, "num_hidden_layers")
    layers = _layers_as_inputs(facts, num_layers)
    _check_layers(layers, num_layers)
    fc = (facts.tensors or {})["fc.weight"].shape
    if fc != (hidden, hidden * len(layers)):
        raise BadInput(
            f"{folder}: fc.weight is {list(fc)}; {len(layers)} states of width {hidden} "
            f"need [{hidden}, {hidden * len(layers)}]"
        )
    head = facts.tensor("lm_head.weight")
    if head is None:
        raise BadInput(f"{folder}: no lm_head.weight: drafts that borrow the target's head are not evaluated")
    return DraftConfig(
        hidden_size=hidden,
        intermediate_size=_needed(facts, facts.intermediate_size, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=facts.num_kv_heads or heads,
        head_dim=facts.effective_head_dim or hidden // heads,
        vocab_size=vocab,
        draft_vocab_size=head.shape[0],
        layers=layers,
        rms_norm_eps=_norm_epsilon(facts) or 1e-6,
        rope_theta=facts.rope.theta or 10_000.0,
        rope_scaling=_scaling(facts.config),
        max_positions=facts.max_positions or DEFAULT_MAX_POSITIONS,
    )


def _layers_as_inputs(facts: CheckpointFacts, num_layers: int) -> tuple[int, ...]:
    """``eagle_config`` numbers layers by their output, one less than the input it is; other places by input."""
    own = trained_layers(facts.config)
    if own:
        return own
    written = facts.top_aux_layers or facts.aux_layers
    if written is None:
        return default_layers(num_layers)
    if written.where.startswith("eagle_config"):
        return tuple(layer + 1 for layer in written.ids)
    return written.ids


def _needed(facts: CheckpointFacts, value: int | None, name: str) -> int:
    if not value:
        raise unsaid(facts, name)
    return value


def _scaling(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The rotary scaling section, under its old or its new name; ``None``: plain rotation."""
    for name in ("rope_scaling", "rope_parameters"):
        section = config.get(name)
        if isinstance(section, dict) and section.get("rope_type", section.get("type")) != "default":
            return section
    return None


def config_json(config: DraftConfig, *, target: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` that SGLang and vLLM read; token ids come from the target's configuration."""
    special = {
        key: target[key]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if target.get(key) is not None
    }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        LAYERS_KEY: list(config.layers),
        **special,
    }
