"""vLLM's rules between its speculation settings. Read in, and measured on, vLLM 0.32.0."""

from __future__ import annotations

from spectune.preflight import flags_vllm_config, flags_vllm_serving

RULES = (*flags_vllm_config.RULES, *flags_vllm_serving.RULES)

__all__ = ["RULES"]
