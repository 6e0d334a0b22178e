"""The target as a source of features: hidden states of some layers, its last state, and its head.

Shapes:  B batch, L positions, F fused width, D hidden, N rows, V vocabulary
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectune.drafter.train.loss import shares_and_logsumexp
from spectune.drafter.train.rows import Ints
from spectune.errors import BadInput

_LOGITS_AT_ONCE = 4_000_000
_PROMPTS_AT_ONCE = 16
_PROBE = (1, 2, 3, 5, 8, 13, 21, 34)


@dataclass(frozen=True)
class Ends:
    """The frozen ends of the target: embedding ``[V, D]`` and head ``[V, D]`` (often one tensor)."""

    embedding_VD: Tensor
    head_VD: Tensor
    bias_V: Tensor | None = None
    norm_D: Tensor | None = None
    """Weight of the norm before the head, where the model calls it ``norm``: a good one for a draft to begin with."""

    def tensors(self) -> dict[str, Tensor]:
        """By name; a tied head is not repeated."""
        head = None if self.head_VD is self.embedding_VD else self.head_VD
        named = {"embedding": self.embedding_VD, "head": head, "bias": self.bias_V, "norm": self.norm_D}
        return {name: x for name, x in named.items() if x is not None}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], *, device: str) -> Ends:
        here = {name: x.to(device) for name, x in tensors.items()}
        embedding = here["embedding"]
        return cls(embedding, here.get("head", embedding), here.get("bias"), here.get("norm"))

    def logits(self, final_ND: Tensor, ids: Tensor | None = None) -> Tensor:
        """Over the whole vocabulary or some of its tokens, in the head's type."""
        weight = self.head_VD if ids is None else self.head_VD[ids]
        bias = self.bias_V if ids is None or self.bias_V is None else self.bias_V[ids]
        return F.linear(final_ND.to(weight.dtype), weight, bias)


@dataclass(frozen=True)
class Features:
    """What the target knows at each position of some rows."""

    states_BLF: Tensor
    final_BLD: Tensor
    """Behind the last norm: the head's input."""
    logsum_BL: Tensor
    """Logarithm of the sum of exponentials of all logits, float32; 0 where it was not asked for."""
    top_BL: Tensor
    """The most likely next token; -1 where it was not asked for."""


class Target:
    """A causal language model of transformers with hooks on its decoder layers."""

    def __init__(self, model: Any, *, layers: Sequence[int], source: str) -> None:
        self.model = model
        self.source = source
        self.trunk = _trunk(model, source)
        self.decoder_layers = find_decoder_layers(model, source)
        self._inputs: dict[int, Tensor] = {}
        self._layers = tuple(layers)
        for layer in self._layers:
            self.decoder_layers[layer].register_forward_pre_hook(self._recorder(layer), with_kwargs=True)
        self.ends = _ends(model, source)
        self._check_head()

    @property
    def device(self) -> torch.device:
        return self.ends.head_VD.device

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        found: list[int] = []
        for holder in (getattr(self.model, "generation_config", None), self.model.config):
            ids = getattr(holder, "eos_token_id", None)
            found += ids if isinstance(ids, list) else [] if ids is None else [ids]
        return tuple(dict.fromkeys(found))

    def _recorder(self, layer: int) -> Any:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs[layer] = args[0] if args else kwargs["hidden_states"]

        return record

    def features(self, tokens_BL: Ints | Tensor, needed_BL: Ints | Tensor) -> Features:
        """One forward pass over right-padded rows. ``needed_BL``: where logits matter."""
        tokens = torch.as_tensor(tokens_BL, device=self.device)
        needed = torch.as_tensor(needed_BL, device=self.device).bool()
        with torch.inference_mode(False), torch.no_grad():
            self._inputs.clear()
            final_BLD = self.trunk(input_ids=tokens, use_cache=False).last_hidden_state
            states_BLF = torch.cat([self._inputs.pop(layer) for layer in self._layers], dim=-1)
            logsum_N, top_N = self.summary(final_BLD[needed])
        logsum_BL = torch.zeros(needed.shape, dtype=torch.float32, device=self.device)
        top_BL = torch.full(needed.shape, -1, dtype=torch.int64, device=self.device)
        logsum_BL[needed], top_BL[needed] = logsum_N, top_N
        return Features(states_BLF, final_BLD, logsum_BL, top_BL)

    def summary(self, final_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sum of exponentials and most likely token of each row, without all logits at once."""
        at_once = max(1, _LOGITS_AT_ONCE // len(self.ends.head_VD))
        sums, tops = (
            [torch.zeros(0, device=self.device)],
            [torch.zeros(0, dtype=torch.int64, device=self.device)],
        )
        for some in final_ND.split(at_once):
            logits = self.ends.logits(some)
            sums.append(shares_and_logsumexp(logits)[2])
            tops.append(logits.max(-1).indices)  # argmax takes four times as long on a processor
        return torch.cat(sums), torch.cat(tops)

    def _check_head(self) -> None:
        """Some models scale or bend their logits behind the head: the states kept here would not tell."""
        tokens = torch.tensor([_PROBE], device=self.device) % len(self.ends.embedding_VD)
        with torch.no_grad():
            own = self.model(input_ids=tokens, use_cache=False).logits.float()
            here = self.ends.logits(self.trunk(input_ids=tokens, use_cache=False).last_hidden_state).float()
        if own.shape != here.shape or not torch.allclose(own, here, rtol=0.02, atol=0.02 * float(own.std())):
            raise BadInput(
                f"{self.source}: {type(self.model).__name__} changes its logits behind the head "
                "(scaling or soft-capping); training a draft for such a target is not supported"
            )


def _trunk(model: Any, source: str) -> Any:
    trunk = getattr(model, "base_model", None)
    if trunk is None or trunk is model or model.get_output_embeddings() is None:
        raise BadInput(
            f"{source}: {type(model).__name__} has no decoder apart from its head; "
            "give a causal language model such as Llama or Qwen"
        )
    return trunk


def find_decoder_layers(model: Any, source: str) -> nn.ModuleList:
    """The one list of decoder layers, as long as ``num_hidden_layers`` says. Raises ``BadInput``."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and name.split(".")[-1] in ("layers", "h")
    }
    if len(lists) != 1:
        have = ", ".join(lists) or "none"
        raise BadInput(
            f"{source}: {type(model).__name__}: expected one list of {count} decoder layers (`layers` or `h`) "
            f"to take hidden states from, found {have}; causal language models built like Llama or Qwen have one"
        )
    return next(iter(lists.values()))


def _ends(model: Any, source: str) -> Ends:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(embedding, nn.Embedding) or weight is None:
        raise BadInput(f"{source}: {type(model).__name__}: its embedding or head is not a plain matrix")
    bias = getattr(head, "bias", None)
    table = embedding.weight.detach()
    tied = weight.data_ptr() == table.data_ptr()
    norm = getattr(getattr(_trunk(model, source), "norm", None), "weight", None)
    return Ends(
        embedding_VD=table,
        head_VD=table if tied else weight.detach(),
        bias_V=None if bias is None else bias.detach(),
        norm_D=None if norm is None else norm.detach(),
    )


def load_target(source: str, *, layers: Sequence[int], dtype: str, device: str) -> Target:
    """A target from a folder, or a hub id that is in the local cache or can be fetched. Raises ``BadInput``."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
        )
    except SafetensorError as error:
        raise BadInput(
            f"{source}: damaged weights, or not safetensors: {error}; download or copy them again"
        ) from error
    except (OSError, ValueError, ImportError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"{source}: transformers cannot load it as a causal language model: {first[:300]}"
        ) from error
    model.eval().requires_grad_(False)
    return Target(model.to(device), layers=layers, source=source)


def continue_prompts(
    target: Target, prompts: Sequence[Ints], *, max_tokens: int, temperature: float, seed: int
) -> list[list[int]]:
    """The target's own continuations of some prompts, up to and with an end token; greedy at temperature 0.

    Each prompt draws from its own generator, so its answer does not depend on those it runs with (beyond the
    last bits of a logit).
    """
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), _PROMPTS_AT_ONCE):
        some = order[first : first + _PROMPTS_AT_ONCE]
        chance = [torch.Generator().manual_seed(seed * 1_000_003 + index) for index in some]
        found = _continue(target, [prompts[index] for index in some], max_tokens, temperature, chance)
        for index, answer in zip(some, found, strict=True):
            answers[index] = answer
    return answers


def _continue(
    target: Target,
    prompts: Sequence[Ints],
    max_tokens: int,
    temperature: float,
    chance: Sequence[torch.Generator],
) -> list[list[int]]:
    """Prompts padded on the left, so that all go on at the same column."""
    longest = max(map(len, prompts))
    seen_BL = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=target.device)
    step = torch.tensor([[0] * (longest - len(p)) + list(map(int, p)) for p in prompts], device=target.device)
    padded = bool((seen_BL == 0).any())
    places = (seen_BL.cumsum(1) - 1).clamp(min=0)
    answers: list[list[int]] = [[] for _ in prompts]
    ends, alive, cache = set(target.end_ids), list(range(len(prompts))), _new_cache(target)
    with torch.no_grad():
        for _ in range(max_tokens):
            where = {"attention_mask": seen_BL, "position_ids": places} if padded else {}
            out = target.trunk(input_ids=step, use_cache=True, **where, **cache)
            logits_BV = target.ends.logits(out.last_hidden_state[:, -1]).float()
            chosen = [_choose(logits, temperature, g) for logits, g in zip(logits_BV, chance, strict=True)]
            for b in alive:
                answers[b].append(chosen[b])
            alive = [b for b in alive if chosen[b] not in ends]
            if not alive:
                break
            step = torch.tensor(chosen, device=target.device)[:, None]
            seen_BL = torch.cat([seen_BL, torch.ones_like(step)], dim=1)
            places = places[:, -1:] + 1
    return answers


def _new_cache(target: Target) -> dict[str, Any]:
    """Filled by the model as it runs. transformers renamed the argument on its way to 6.0."""
    from transformers import DynamicCache

    names = inspect.signature(target.trunk.forward).parameters
    cache = DynamicCache(config=target.model.config)
    return {"cache" if "cache" in names else "past_key_values": cache}


def _choose(logits_V: Tensor, temperature: float, chance: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    return int(torch.multinomial((logits_V.cpu() / temperature).softmax(-1), 1, generator=chance))
