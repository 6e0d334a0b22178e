"""SGLang's rules between its speculation flags. Read in, and measured on, SGLang 0.5.23."""

from __future__ import annotations

from spectune.preflight import flags_sglang_drafting, flags_sglang_numbers, flags_sglang_serving

RULES = (*flags_sglang_numbers.RULES, *flags_sglang_drafting.RULES, *flags_sglang_serving.RULES)

__all__ = ["RULES"]
