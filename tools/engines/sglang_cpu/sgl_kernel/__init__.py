"""Stand-in for SGLang's kernel package on a CPU: the same calls, written in plain PyTorch.

For tests only. There is no CPU build of ``sgl_kernel`` to install, and SGLang
0.5.23 does not start without one. With this package the server, scheduler,
radix cache, speculative workers, metrics and logs are the real SGLang; only its
CPU kernels are replaced. It is slow, so a speed measured with it must never be
presented as SGLang's.

Covered: dense Llama-like models, with tensor parallelism, ``--attention-backend
intel_amx``, with EAGLE, EAGLE3, STANDALONE, NGRAM or no speculation. What is not
covered raises ``NotImplementedError`` when it is called.

Legend: B requests, T query tokens of the batch, N draft tokens of a request
(the root included), H query heads, G key heads, D head size, S cache slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from . import attention, collective, dense
from .draft_tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu
from .kv_cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)

__version__ = "0+pytorch.standin"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

OPERATORS: dict[str, Callable[..., Any]] = {
    "convert_weight_packed": dense.keep_weight,
    "weight_packed_linear": dense.linear,
    "rmsnorm_cpu": dense.rms_norm,
    "fused_add_rmsnorm_cpu": dense.add_and_rms_norm,
    "silu_and_mul_cpu": dense.silu_and_multiply,
    "rotary_embedding_cpu": dense.rotary_embedding,
    "store_cache_cpu": dense.store_cache,
    "init_cpu_threads_env": dense.ignore,
    "initialize": collective.initialize,
    "shm_allreduce": collective.all_reduce,
    "shm_allgather": collective.all_gather,
    "decode_attention_cpu": attention.decode_attention,
    "extend_attention_cpu": attention.extend_attention,
}
"""Operators SGLang looks up as ``torch.ops.sgl_kernel.NAME``."""

ABSENT = (
    "apply_rotary_pos_emb_cpu",
    "conv3d_embed_cpu",
    "flash_attn_varlen_func",
    "fused_gdn_gating_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
)
"""Operators that SGLang's modules look up when imported and a dense Llama never calls."""


def _refuse(name: str) -> Callable[..., NoReturn]:
    def absent(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"the CPU stand-in for sgl_kernel has no {name}")

    return absent


for _name, _operator in OPERATORS.items():
    setattr(torch.ops.sgl_kernel, _name, _operator)
for _name in ABSENT:
    setattr(torch.ops.sgl_kernel, _name, _refuse(_name))
