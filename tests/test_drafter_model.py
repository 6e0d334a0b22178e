"""The draft's forward pass against one written a second time, and the checkpoints it reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_reference import ReferenceDraft, as_arrays  # noqa: E402
from drafter_training import draft_config, random_draft, write_draft, write_tiny_target  # noqa: E402

from spectune.checkpoints.facts import CheckpointFacts  # noqa: E402
from spectune.checkpoints.read import read_checkpoint  # noqa: E402
from spectune.drafter import model as model_module  # noqa: E402
from spectune.drafter.config import DraftConfig, default_layers, read_draft_config  # noqa: E402
from spectune.drafter.model import inverse_frequencies, load_draft  # noqa: E402
from spectune.drafter.unroll import unroll  # noqa: E402
from spectune.embedded.models import draft_folder  # noqa: E402
from spectune.errors import BadInput  # noqa: E402

pytestmark = pytest.mark.drafter

SMOLLM2 = CheckpointFacts(
    source="SmolLM2-135M",
    kind="folder",
    config={},
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    num_layers=30,
    vocab_size=49152,
)


def reference_of(draft: model_module.EagleDraft) -> ReferenceDraft:
    config = draft.config
    return ReferenceDraft(
        as_arrays(draft.state_dict()),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        theta=config.rope_theta,
    )


def some_input(config: DraftConfig, *, B: int, L: int, seed: int = 1) -> tuple[torch.Tensor, ...]:
    chance = torch.Generator().manual_seed(seed)
    tokens_BL = torch.randint(0, config.vocab_size, (B, L), generator=chance)
    states_BLF = torch.randn(B, L, len(config.layers) * config.hidden_size, generator=chance)
    embedding_VD = torch.randn(config.vocab_size, config.hidden_size, generator=chance)
    return tokens_BL, states_BLF, embedding_VD


def assert_unrolled_equals_the_loop(
    draft: model_module.EagleDraft, *, B: int, L: int, num_steps: int
) -> None:
    tokens_BL, states_BLF, embedding_VD = some_input(draft.config, B=B, L=L)
    starts_BM = torch.arange(1, L - num_steps).repeat(B, 1)
    with torch.no_grad():
        steps = [
            draft.logits(state)
            for state in unroll(
                draft,
                embedding_VD=embedding_VD,
                tokens_BL=tokens_BL,
                states_BLF=states_BLF,
                starts_BM=starts_BM,
                num_steps=num_steps,
            )
        ]
    reference, embedding = reference_of(draft), embedding_VD.double().numpy()
    for b in range(B):
        tokens, states = tokens_BL[b].tolist(), states_BLF[b].double().numpy()
        for m, start in enumerate(starts_BM[b].tolist()):
            expected = reference.chain(
                tokens, states, embedding, start, num_steps, lambda _, j, at=start, t=tokens: t[at + 1 + j]
            )
            for j in range(num_steps):
                np.testing.assert_allclose(steps[j][b, m].numpy(), expected[j], atol=1e-4, rtol=1e-4)


def test_the_unrolled_draft_equals_a_loop_over_tokens(tmp_path: Path) -> None:
    draft = random_draft(draft_config(write_tiny_target(tmp_path)))
    assert_unrolled_equals_the_loop(draft, B=2, L=11, num_steps=4)


def test_the_reference_drafts_weights_give_what_an_independent_forward_pass_gives() -> None:
    config = read_draft_config(draft_folder(), target=SMOLLM2)
    assert config.layers == (2, 15, 27)
    assert config.num_parameters == 9_808_128
    assert_unrolled_equals_the_loop(load_draft(draft_folder(), config), B=1, L=7, num_steps=3)


def test_attention_in_blocks_gives_the_same_values_and_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = random_draft(draft_config(write_tiny_target(tmp_path)))
    tokens_BL, states_BLF, embedding_VD = some_input(draft.config, B=2, L=12)
    starts_BM = torch.arange(1, 10).repeat(2, 1)

    def gradient() -> torch.Tensor:
        draft.zero_grad()
        states = unroll(
            draft,
            embedding_VD=embedding_VD,
            tokens_BL=tokens_BL,
            states_BLF=states_BLF,
            starts_BM=starts_BM,
            num_steps=3,
        )
        sum(draft.logits(s).square().mean() for s in states).backward()
        return torch.cat([p.grad.flatten().clone() for p in draft.parameters()])

    at_once = gradient()
    monkeypatch.setattr(model_module, "_SCORES_KEPT", 300)
    torch.testing.assert_close(gradient(), at_once, rtol=1e-4, atol=1e-6)


def test_evaluation_of_a_long_context_holds_no_more_scores_than_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim() == 5:
                self.size = max(self.size, out.numel())
            return out

    draft = random_draft(draft_config(write_tiny_target(tmp_path)))
    x = torch.randn(1, 200, 2 * draft.config.hidden_size)
    attention, starts_BM = draft.midlayer.self_attn, torch.arange(200)[None]
    turn = draft._turn(starts_BM)
    with torch.no_grad(), Largest() as seen:
        queries, prefix = attention.queries(x, turn), attention.keys(x, turn)
        at_once = attention(queries, prefix, starts_BM, [])
        assert seen.size >= 4 * 200 * 200
        seen.size = 0
        monkeypatch.setattr(model_module, "_SCORES_KEPT", 20_000)
        torch.testing.assert_close(attention(queries, prefix, starts_BM, []), at_once)
        assert seen.size <= 20_000


def test_llama3_scaling_equals_transformers(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters={**scaling, "rope_theta": 1000.0}
    )
    ours = DraftConfig(64, 64, 2, 2, 32, 100, 50, (1, 2, 3), rope_theta=1000.0, rope_scaling=scaling)
    torch.testing.assert_close(inverse_frequencies(ours), LlamaRotaryEmbedding(theirs).inv_freq)


def test_default_layers_are_those_the_engines_collect() -> None:
    assert default_layers(30) == (2, 15, 27)
    with pytest.raises(BadInput, match="at least 6"):
        default_layers(5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = write_tiny_target(tmp_path / "target")
    return write_draft(tmp_path / "draft", random_draft(draft_config(target)))


def read_and_load(folder: Path, target: CheckpointFacts) -> None:
    load_draft(folder, read_draft_config(folder, target=target))


def test_a_written_draft_reads_back(folder: Path) -> None:
    target = read_checkpoint(str(folder.parent / "target"))
    config = read_draft_config(folder, target=target)
    assert (config.layers, config.draft_vocab_size) == ((1, 3, 5), 40)
    loaded = load_draft(folder, config)
    expected = random_draft(config)
    torch.testing.assert_close(loaded.state_dict(), expected.state_dict())


def test_a_draft_for_another_width_names_both(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"hidden size 32 for a target of 576.*made for another model"):
        read_and_load(folder, SMOLLM2)


def test_a_draft_with_a_missing_tensor_names_it(folder: Path) -> None:
    tensors = random_draft(draft_config(folder.parent / "target")).state_dict()
    del tensors["midlayer.hidden_norm.weight"]
    model_module_files(folder, tensors)
    with pytest.raises(BadInput, match=r"lacks midlayer.hidden_norm.weight"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))


def test_a_map_of_ids_instead_of_offsets_is_refused(folder: Path) -> None:
    tensors = random_draft(draft_config(folder.parent / "target")).state_dict()
    tensors["d2t"] = tensors["d2t"] + torch.arange(40)
    model_module_files(folder, tensors)
    with pytest.raises(BadInput, match="must be offsets"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))


def model_module_files(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    from spectune.drafter.files import write_tensors

    write_tensors(folder / "model.safetensors", tensors)


def test_a_draft_whose_file_was_cut_short_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"model.safetensors: cut short, 100 bytes"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(BadInput, match=r"pytorch_model.bin: pickle.*convert the weights to safetensors"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))


def test_an_option_that_is_not_modelled_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "norm_before_residual": True}))
    with pytest.raises(BadInput, match="sets norm_before_residual"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))


def test_a_folder_without_a_draft_says_so(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "target", folder)
    with pytest.raises(BadInput, match=r"no fc.weight: not an EAGLE-3 draft"):
        read_and_load(folder, read_checkpoint(str(folder.parent / "target")))
