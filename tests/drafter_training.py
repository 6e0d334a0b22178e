"""A tiny random target for transformers, drafts and data for it, for the tests of training and evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectune.checkpoints.read import read_checkpoint
from spectune.drafter.config import DraftConfig, config_for_target, config_json
from spectune.drafter.files import write_tensors
from spectune.drafter.model import EagleDraft
from spectune.drafter.target import Target, continue_prompts

VOCAB, LAYERS, END = 64, 6, 2


def write_tiny_target(folder: Path, *, kind: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A causal language model of six layers and 64 tokens, with uneven next-token probabilities."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": END,
        "bos_token_id": 1,
        "tie_word_embeddings": True,
        "initializer_range": 0.4,
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**sizes, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


def draft_config(target: Path, *, draft_vocab_size: int = 40) -> DraftConfig:
    return config_for_target(
        read_checkpoint(str(target)), layers=(1, 3, 5), draft_vocab_size=draft_vocab_size
    )


def random_draft(config: DraftConfig, *, seed: int = 0, scale: float = 0.3) -> EagleDraft:
    """Random weights; the draft vocabulary is a random choice of the target's tokens."""
    chance = torch.Generator().manual_seed(seed)
    draft = EagleDraft(config)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, scale, generator=chance)
        ids = torch.randperm(config.vocab_size, generator=chance)[: config.draft_vocab_size].sort().values
        draft.d2t.copy_(ids - torch.arange(len(ids)))
        draft.t2d[ids] = True
    return draft


def write_draft(folder: Path, draft: EagleDraft) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", draft.state_dict())
    (folder / "config.json").write_text(json.dumps(config_json(draft.config, target={})))
    return folder


def row(
    prompt: list[int], answer: list[int], *, name: str, split: str = "train", category: str = "a"
) -> dict[str, Any]:
    return {
        "prompt_id": name,
        "category": category,
        "split": split,
        "input_ids": prompt + answer,
        "loss_mask": [0] * len(prompt) + [1] * len(answer),
    }


def own_rows(target: Target, count: int, *, held_out: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Random prompts with the target's own greedy answers; the first few are held out."""
    chance = np.random.default_rng(seed)
    prompts = [chance.integers(3, VOCAB, 3 + number % 4) for number in range(count)]
    answers = continue_prompts(target, prompts, max_tokens=24, temperature=0.0, seed=seed)
    return [
        row(
            prompt.tolist(),
            answer if len(answer) > 1 else [*answer, END],
            name=f"p{number}",
            split="held-out" if number < held_out else "train",
            category="ab"[number % 2],
        )
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    return path
