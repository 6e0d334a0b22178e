"""What a ``config.json`` says, in the words of ``CheckpointFacts``, whatever family of models wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spectune.checkpoints.config_values import ConfigValues, as_section
from spectune.checkpoints.facts import AuxLayers, DeclaredBase, Quantization, Rope

FILE = "config.json"
LAYERS_KEY = "spectune_layers_as_inputs"
"""Of drafts trained here, and unambiguous: engines number the same layers differently (by input or by output)."""
NORM_KEYS = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "transformer_layer_config")
_EXCLUDE_KEYS = (
    "ignore",
    "ignored_layers",
    "exclude",
    "exclude_layers",
    "exclude_modules",
    "modules_to_not_convert",
)
_AUX_PLACES = (
    ("eagle_config", "eagle_aux_hidden_state_layer_ids"),
    (None, "eagle_aux_hidden_state_layer_ids"),
    ("dflash_config", "target_layer_ids"),
    (None, "aux_hidden_state_layer_ids"),
    (None, "target_layer_ids"),
    (None, "dspark_target_layer_ids"),
    ("eagle_config", "layer_ids"),
)
_BASE_PLACES = (
    "base_model",
    "base_model_name_or_path",
    "target_model",
    "target_model_name_or_path",
    "_name_or_path",
)


def trained_layers(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Target layers whose inputs a draft was trained on, where spectune wrote them."""
    return ConfigValues([config], file=FILE).ids(LAYERS_KEY)


def read_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Keyword arguments of ``CheckpointFacts``, and notes on values of the wrong type."""
    text = text_section(config)
    values = ConfigValues([text, config] if text else [config], file=FILE)
    outer = ConfigValues([config, text], file=FILE)
    algorithm = outer.text("speculators_model_type")
    heads = values.integer("num_attention_heads", "n_head", "n_heads")
    facts: dict[str, Any] = {
        "config": config,
        "format": "speculators" if algorithm else "plain",
        "speculators_algorithm": algorithm,
        "architectures": outer.texts("architectures") or (),
        "model_type": outer.text("model_type") if not algorithm else values.text("model_type"),
        "quantization": read_quantization(values.section("quantization_config", "compression_config"), FILE),
        "dtype": values.text("torch_dtype", "dtype"),
        "hidden_size": values.integer("hidden_size", "n_embd", "d_model"),
        "target_hidden_size": outer.integer("target_hidden_size", "backbone_hidden_size"),
        "intermediate_size": values.integer("intermediate_size"),
        "num_layers": values.integer("num_hidden_layers", "n_layer", "num_layers"),
        "num_heads": heads,
        "num_kv_heads": values.integer("num_key_value_heads") or heads,
        "head_dim": values.integer("head_dim"),
        "layer_types": _layer_types(values),
        "num_nextn_layers": values.integer(
            "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules", least=0
        ),
        "rope": _rope(values),
        "max_positions": values.integer(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"
        ),
        "vocab_size": values.integer("vocab_size"),
        "draft_vocab_size": outer.integer("draft_vocab_size"),
        "tie_word_embeddings": values.boolean("tie_word_embeddings"),
        "aux_layers": _aux_layers(config, text, outer, _AUX_PLACES),
        "top_aux_layers": _aux_layers(config, text, outer, _AUX_PLACES[1:2]),
        "num_aux_states": outer.integer("num_aux_hidden_states"),
        "block_size": outer.integer("block_size", "dspark_block_size"),
        "num_target_layers": outer.integer("num_target_layers"),
        "norm_options": _norm_options(config, outer),
        "base_models": _declared_bases(config, outer),
    }
    return facts, list(dict.fromkeys([*values.notes, *outer.notes]))


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model inside a multimodal or speculators configuration; empty: the configuration is it."""
    for key in _TEXT_SECTIONS:
        section = as_section(config.get(key))
        if section:
            return section
    return as_section(as_section(config.get("thinker_config")).get("text_config"))


def read_quantization(section: Mapping[str, Any], where: str) -> Quantization | None:
    """From ``quantization_config`` or a quantiser's own file; ``None``: the section says nothing."""
    if not section:
        return None
    inner = as_section(section.get("quantization")) or section
    values = ConfigValues([inner, section], file=where)
    method = values.text("quant_method", "quant_algo", "quant_type")
    if method is None and "bits" not in inner and "w_bit" not in inner:
        return None
    exclude: tuple[str, ...] = ()
    for key in _EXCLUDE_KEYS:
        listed = inner.get(key)
        if isinstance(listed, list):
            exclude += tuple(item for item in listed if isinstance(item, str))
    return Quantization(
        method=method.lower() if method else None,
        format=values.text("format", "quant_algo"),
        exclude=exclude,
        where=where,
        raw=section,
    )


def _rope(values: ConfigValues) -> Rope:
    parameters = as_section(values.raw("rope_parameters"))
    scaling = as_section(values.raw("rope_scaling")) or parameters
    inner = ConfigValues([scaling, parameters], file=FILE)
    kind = inner.text("rope_type", "type")
    rope = Rope(
        theta=values.number("rope_theta") or ConfigValues([parameters], file=FILE).number("rope_theta"),
        scaling_type=None if kind == "default" else kind,
        factor=inner.number("factor"),
        original_max_positions=inner.integer("original_max_position_embeddings"),
    )
    values.notes.extend(inner.notes)
    return rope


def _layer_types(values: ConfigValues) -> tuple[str, ...] | None:
    """By layer, from the lists and intervals that hybrid families write."""
    listed = values.texts("layer_types", "layers_block_type")
    if listed:
        return listed
    layers = values.integer("num_hidden_layers")
    if layers is None or layers > 10_000:
        return None
    interval = values.integer("full_attention_interval")
    if interval is None and values.text("model_type") == "qwen3_next":
        interval = 4
    if interval is not None:
        return tuple(
            "full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in range(layers)
        )
    pattern = values.text("hybrid_override_pattern")
    if pattern:
        names = {"M": "mamba", "*": "full_attention", "-": "mlp"}
        return tuple(names.get(letter, letter) for letter in pattern[:10_000])
    full = values.section("linear_attn_config").get("full_attn_layers")
    if isinstance(full, list) and full:
        # Kimi-Linear counts these from 1.
        return tuple("full_attention" if index + 1 in full else "linear_attention" for index in range(layers))
    return None


def _aux_layers(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    outer: ConfigValues,
    places: Sequence[tuple[str | None, str]],
) -> AuxLayers | None:
    for section_name, key in places:
        for holder in (config, text):
            section = as_section(holder.get(section_name)) if section_name else holder
            values = ConfigValues([section], file=FILE)
            ids = values.ids(key)
            outer.notes.extend(values.notes)
            if ids:
                return AuxLayers(ids, f"{section_name}.{key}" if section_name else key)
    return None


def _norm_options(config: Mapping[str, Any], outer: ConfigValues) -> dict[str, bool]:
    inner = ConfigValues([as_section(config.get("eagle_config"))], file=FILE)
    options = {}
    for key in NORM_KEYS:
        value = inner.boolean(key)
        if value is None:
            value = outer.boolean(key)
        if value is not None:
            options[key] = value
    outer.notes.extend(inner.notes)
    return options


def _declared_bases(config: Mapping[str, Any], outer: ConfigValues) -> tuple[DeclaredBase, ...]:
    verifier = as_section(as_section(config.get("speculators_config")).get("verifier"))
    found = []
    name = ConfigValues([verifier], file=FILE).text("name_or_path")
    if name:
        found.append(DeclaredBase(name, f"{FILE}: speculators_config.verifier.name_or_path"))
    for key in _BASE_PLACES:
        name = outer.text(key)
        if name:
            found.append(DeclaredBase(name, f"{FILE}: {key}"))
    return tuple(found)
