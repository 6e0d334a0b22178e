"""SGLang's rules between its speculation flags. Read in, and measured on, SGLang 0.5.23."""

from __future__ import annotations

from spectune.preflight.flags.sglang import drafting as flags_sglang_drafting
from spectune.preflight.flags.sglang import numbers as flags_sglang_numbers
from spectune.preflight.flags.sglang import serving as flags_sglang_serving

RULES = (*flags_sglang_numbers.RULES, *flags_sglang_drafting.RULES, *flags_sglang_serving.RULES)

__all__ = ["RULES"]
