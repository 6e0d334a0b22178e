"""vLLM plugin: imposed acceptance (``rejection_sample_method: synthetic``) on a CPU, for greedy requests.

vLLM 0.32.0 refuses it there ("Synthetic acceptance not supported with CPU
sampling"): its C++ kernels know no lot. Without a lot everything goes to
vLLM's own kernel, unchanged. With one, the choice among drafted tokens is made
here; drafting and verification run as always, so the cost of a step is real.
"""

from __future__ import annotations

from typing import Any

import torch


def register() -> None:
    """Called by vLLM in each of its processes, before a platform's kernels are looked up."""
    from vllm.utils import cpu_triton_utils

    own = cpu_triton_utils._rejection_greedy_sample_kernel_impl

    def kernel(
        output_token_ids: torch.Tensor,
        cu_num_draft_tokens: torch.Tensor,
        draft_token_ids: torch.Tensor,
        target_argmax: torch.Tensor,
        bonus_token_ids: torch.Tensor,
        is_greedy: torch.Tensor | None,
        max_spec_len: int,
        uniform_probs: torch.Tensor | None = None,
        synthetic_conditional_rates: torch.Tensor | None = None,
        SYNTHETIC_MODE: bool = False,
    ) -> Any:
        if not SYNTHETIC_MODE:
            return own(
                output_token_ids,
                cu_num_draft_tokens,
                draft_token_ids,
                target_argmax,
                bonus_token_ids,
                is_greedy,
                max_spec_len,
            )
        assert uniform_probs is not None and synthetic_conditional_rates is not None
        draw_by_lot(
            output_token_ids,
            ends=cu_num_draft_tokens.tolist(),
            draft=draft_token_ids.tolist(),
            target=target_argmax.tolist(),
            bonus=bonus_token_ids.flatten().tolist(),
            greedy=None if is_greedy is None else is_greedy.tolist(),
            lots=uniform_probs.tolist(),
            rates=synthetic_conditional_rates.tolist(),
        )
        return None

    cpu_triton_utils._rejection_greedy_sample_kernel_impl = kernel


def draw_by_lot(
    output: Any,
    *,
    ends: list[int],
    draft: list[int],
    target: list[int],
    bonus: list[int],
    greedy: list[bool] | None,
    lots: list[float],
    rates: list[float],
) -> None:
    """Fills ``output[request][position]``: kept drafts, then the target's own token, or the bonus after all of them.

    ``ends``: where each request's tokens end in the flat lists. ``rates[i]``:
    chance to keep position i, given that all before it were kept. A drafted
    token below 0 is padding, and never kept.
    """
    first = 0
    for request, end in enumerate(ends):
        if greedy is None or greedy[request]:
            for position, index in enumerate(range(first, end)):
                kept = draft[index] >= 0 and lots[index] < rates[position]
                output[request][position] = draft[index] if kept else target[index]
                if not kept:
                    break
            else:
                output[request][end - first] = bonus[request]
        first = end
