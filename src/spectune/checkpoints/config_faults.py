"""Values of a ``config.json`` that no layer can be built from, each said with what is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spectune.checkpoints.config import FILE, LAYERS_KEY, NORM_KEYS, text_section
from spectune.checkpoints.config_values import MAX_INT, as_section, is_number

_WHOLE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "draft_vocab_size", "target_hidden_size", "max_position_embeddings"),
    "num_aux_hidden_states",
)
_ABOVE_ZERO = ("rms_norm_eps", "rope_theta")
_BOOLEAN = ("attention_bias", "mlp_bias", "tie_word_embeddings", *NORM_KEYS)
_TEXT = ("hidden_act", "torch_dtype", "dtype")
_ROTARY = ("rope_scaling", "rope_parameters")
_ROTARY_ABOVE_ZERO = ("factor", "rope_theta", "low_freq_factor", "high_freq_factor")
_LAYER_LISTS = ("eagle_aux_hidden_state_layer_ids", LAYERS_KEY)


def config_faults(config: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence per value of the wrong kind or range, and per pair that cannot be; what is absent is no fault.

    Looks at what a Llama-like layer is built from: in ``config`` itself and in
    the section of its language model.
    """
    found: list[str] = []
    for section in (text_section(config), config):
        found += _wrong_values(section)
    found += _wrong_pairs({**config, **text_section(config)})
    return tuple(dict.fromkeys(found))


def _wrong_values(section: Mapping[str, Any]) -> Iterator[str]:
    eagle = as_section(section.get("eagle_config"))
    yield from _of_kind(section, _WHOLE, _is_whole, "an integer of at least 1")
    yield from _of_kind(section, _ABOVE_ZERO, _is_above_zero, "a number above 0")
    yield from _of_kind(section, _TEXT, _is_text, "text")
    for place, values in (("", section), ("eagle_config.", eagle)):
        yield from _of_kind(values, _BOOLEAN, _is_boolean, "true or false", place=place)
        yield from _of_kind(values, _LAYER_LISTS, _is_layers, "a list of whole numbers", place=place)
    for name in _ROTARY:
        rotary = section.get(name)
        if rotary is not None and not isinstance(rotary, dict):
            yield _said(name, rotary, "an object or null")
            continue
        inner, place = as_section(rotary), f"{name}."
        yield from _of_kind(inner, _ROTARY_ABOVE_ZERO, _is_above_zero, "a number above 0", place=place)
        yield from _of_kind(inner, ("rope_type", "type"), _is_text, "text", place=place)
        yield from _of_kind(
            inner,
            ("original_max_position_embeddings",),
            _is_whole,
            "an integer of at least 1",
            place=place,
        )


def _wrong_pairs(values: Mapping[str, Any]) -> Iterator[str]:
    heads, kv_heads = _whole(values, "num_attention_heads"), _whole(values, "num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        yield (
            f"{FILE}: num_key_value_heads is {kv_heads}, expected a divisor of num_attention_heads, {heads}"
        )
    head_dim = _whole(values, "head_dim")
    if head_dim and head_dim % 2:
        yield f"{FILE}: head_dim is {head_dim}, expected an even number: positions turn pairs of values"


def _of_kind(
    section: Mapping[str, Any], keys: tuple[str, ...], fits: Any, valid: str, *, place: str = ""
) -> Iterator[str]:
    for key in keys:
        value = section.get(key)
        if value is not None and not fits(value):
            yield _said(f"{place}{key}", value, valid)


def _said(key: str, value: Any, valid: str) -> str:
    return f"{FILE}: {key} is {repr(value)[:60]}, expected {valid}"


def _whole(values: Mapping[str, Any], key: str) -> int | None:
    return int(values[key]) if _is_whole(values.get(key)) else None


def _is_whole(value: Any) -> bool:
    return is_number(value) and value >= 1 and float(value).is_integer()


def _is_above_zero(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and abs(item) < MAX_INT for item in value)
