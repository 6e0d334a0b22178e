"""vLLM's rules between its speculation settings. Read in, and measured on, vLLM 0.32.0."""

from __future__ import annotations

from spectune.preflight.flags.vllm import config as flags_vllm_config
from spectune.preflight.flags.vllm import serving as flags_vllm_serving

RULES = (*flags_vllm_config.RULES, *flags_vllm_serving.RULES)

__all__ = ["RULES"]
