"""One-pass evaluation against speculative decoding done literally: draft, verify, go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_reference import ReferenceDraft, as_arrays  # noqa: E402
from drafter_training import END, draft_config, random_draft, row, write_draft, write_rows, write_tiny_target  # noqa: E402

from spectune.domain.acceptance import AcceptanceCounts  # noqa: E402
from spectune.drafter.chains import keep_chances  # noqa: E402
from spectune.drafter.evaluate import EvaluateOptions, evaluate  # noqa: E402
from spectune.drafter.model import EagleDraft  # noqa: E402
from spectune.drafter.target import Target, continue_prompts, load_target  # noqa: E402
from spectune.drafter.train.batches import collate, training_starts  # noqa: E402
from spectune.drafter.train.features import needed_positions  # noqa: E402
from spectune.drafter.train.objective import TestTimeLoss  # noqa: E402
from spectune.drafter.train.rows import Rows, prepare_rows  # noqa: E402
from spectune.drafter.trees import TreeShape, greedy_trees  # noqa: E402
from spectune.embedded.models import draft_folder  # noqa: E402
from spectune.errors import BadInput  # noqa: E402
from spectune.home import data_home  # noqa: E402

pytestmark = pytest.mark.drafter

MAX_TOKENS = 24


class World:
    """A tiny target, a draft that knows half of it, and prompts."""

    def __init__(self, folder: Path) -> None:
        self.target_folder = write_tiny_target(folder / "target")
        self.config = draft_config(self.target_folder)
        self.target = load_target(
            str(self.target_folder), layers=self.config.layers, dtype="float32", device="cpu"
        )
        chance = np.random.default_rng(3)
        self.prompts = [chance.integers(3, 64, 4 + i % 5).tolist() for i in range(8)]
        self.draft = half_trained_draft(self.target, random_draft(self.config), self.prompts)
        self.draft_folder = write_draft(folder / "draft", self.draft)
        rows = [
            row(prompt, [7, 8], name=f"p{i}", split="held-out", category="xy"[i % 2])
            for i, prompt in enumerate(self.prompts)
        ]
        self.rows = rows_of(folder / "held", rows)


def rows_of(folder: Path, rows: list[dict[str, Any]]) -> Rows:
    folder.mkdir()
    data = write_rows(folder / "rows.jsonl", rows)
    return prepare_rows([data], folder / "rows", max_length=512, vocab_size=64)


def half_trained_draft(target: Target, draft: EagleDraft, prompts: list[list[int]]) -> EagleDraft:
    """Some steps of plain descent towards the target's answers, so that some drafts are kept and some not."""
    objective = TestTimeLoss(draft, target.ends, num_steps=3, decay=1.0, dtype=torch.float32)
    optimizer = torch.optim.Adam(draft.parameters(), lr=5e-3)
    answers = continue_prompts(target, [np.array(p) for p in prompts], max_tokens=20, temperature=0.0, seed=0)
    pairs = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = np.array([*prompt, *answer], np.int32)
        pairs.append((ids, (np.arange(len(ids)) >= len(prompt)).astype(np.uint8)))
    batch = collate(pairs, [training_starts(m) for _, m in pairs], rows=range(len(pairs)), num_steps=3)
    features = target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
    for _ in range(60):
        optimizer.zero_grad()
        objective(batch, features, [1 / batch.num_tokens] * 3)[0].backward()
        optimizer.step()
    return draft


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


class LiteralEngine:
    """Recomputes everything for every token, from nothing but tokens and the models."""

    def __init__(self, world: World) -> None:
        config = world.config
        self.model = world.target.model
        self.config = config
        self.reference = ReferenceDraft(
            as_arrays(world.draft.state_dict()),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            theta=config.rope_theta,
        )
        self.embedding = self.model.get_input_embeddings().weight.double().detach().numpy()

    def logits_and_states(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([tokens]), output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer][0] for layer in self.config.layers], dim=-1)
        return out.logits[0].double().numpy(), states.double().numpy()

    def draft_chain(self, tokens: list[int], num_steps: int) -> list[int]:
        """``tokens``: all known, the last not yet seen by the target."""
        _, states = self.logits_and_states(tokens[:-1])
        drafted: list[int] = []

        def choose(logits: np.ndarray, _: int) -> int:
            drafted.append(self.reference.target_id(int(logits.argmax())))
            return drafted[-1]

        last = self.reference.chain(tokens, states, self.embedding, len(tokens) - 2, num_steps, choose)[-1]
        return [*drafted, self.reference.target_id(int(last.argmax()))]

    def generate(self, prompt: list[int], num_steps: int) -> tuple[list[int], list[int]]:
        """Greedy speculative decoding; returns the answer and the tokens kept at each verify step."""
        logits, _ = self.logits_and_states(prompt)
        answer, kept = [int(logits[-1].argmax())], []
        while len(answer) < MAX_TOKENS and answer[-1] != END:
            known = [*prompt, *answer]
            drafted = self.draft_chain(known, num_steps)
            logits, _ = self.logits_and_states([*known, *drafted])
            choices = logits[len(known) - 1 :].argmax(-1).tolist()
            count = 0
            while count < num_steps and drafted[count] == choices[count]:
                count += 1
                if drafted[count - 1] == END:
                    break
            kept.append(count)
            new = choices[: count + 1]
            if END in new:
                new = new[: new.index(END) + 1]
            answer += new
        return answer[:MAX_TOKENS], kept


def counts_of(kept: list[int], *, depth: int) -> AcceptanceCounts:
    return AcceptanceCounts(
        num_drafts=len(kept),
        num_draft_tokens=depth * len(kept),
        num_accepted_tokens=sum(kept),
        accepted_per_position=tuple(sum(k > i for k in kept) for i in range(depth)),
    )


def test_one_pass_counts_exactly_what_literal_speculative_decoding_counts(world: World) -> None:
    options = EvaluateOptions(max_draft_tokens=4, max_tokens=MAX_TOKENS)
    result = evaluate(
        world.draft_folder, target_source=str(world.target_folder), rows=world.rows, options=options
    )
    engine = LiteralEngine(world)
    for depth in range(1, 5):
        chain = result.chains[depth - 1]
        for name, prompt in enumerate(world.prompts):
            _, kept = engine.generate(prompt, depth)
            if kept:
                assert chain.by_prompt[f"p{name}"] == counts_of(kept, depth=depth), (depth, name)
    lengths = [chain.counts.acceptance_length or 0 for chain in result.chains]
    assert 1.2 < lengths[0] < lengths[3] < 4.5  # the comparison is of something
    assert result.most_likely_frac == 1.0


def test_categories_contexts_and_prompts_add_up_to_the_whole(world: World) -> None:
    options = EvaluateOptions(max_draft_tokens=3, max_tokens=MAX_TOKENS)
    result = evaluate(
        world.draft_folder, target_source=str(world.target_folder), rows=world.rows, options=options
    )
    for chain in result.chains:
        for parts in (chain.by_category, chain.by_context, chain.by_prompt):
            assert sum(p.num_accepted_tokens for p in parts.values()) == chain.counts.num_accepted_tokens
            assert sum(p.num_drafts or 0 for p in parts.values()) == chain.counts.num_drafts
    assert set(result.chains[0].by_category) == {"x", "y"}


class LiteralTree:
    """The tree of one start, node by node, with each node's path recomputed from the beginning."""

    def __init__(self, engine: LiteralEngine, shape: TreeShape) -> None:
        self.engine, self.shape = engine, shape

    def children(
        self, known: list[int], states: np.ndarray, path: tuple[int, ...]
    ) -> list[tuple[float, int]]:
        reference = self.engine.reference
        out = reference.chain(
            known, states, self.engine.embedding, len(known) - 2, len(path) + 1, lambda _, j: path[j - 1]
        )[-1]
        q = np.exp(out - out.max())
        q /= q.sum()
        best = np.argsort(-q)[: self.shape.topk]
        return [(float(q[i]), reference.target_id(int(i))) for i in best]

    def grow(self, known: list[int]) -> tuple[list[tuple[int, ...]], set[tuple[int, ...]]]:
        """Paths of all nodes, and of those that are verified."""
        _, states = self.engine.logits_and_states(known[:-1])
        level = [(q, (token,)) for q, token in self.children(known, states, ())]
        nodes = list(level)
        for _ in range(1, self.shape.num_steps):
            grown = [
                (score * q, (*path, token))
                for score, path in level
                for q, token in self.children(known, states, path)
            ]
            nodes += grown
            level = sorted(grown, key=lambda node: -node[0])[: self.shape.topk]
        best = sorted(nodes, key=lambda node: -node[0])[: self.shape.num_tokens - 1]
        return [path for _, path in nodes], {path for _, path in best}


def test_trees_keep_what_a_tree_built_node_by_node_verifies(world: World) -> None:
    """Every node's path is tried as the text that follows: it is kept as far as the literal tree verifies it."""
    shape = TreeShape(4, 3, 25)
    tree = LiteralTree(LiteralEngine(world), shape)
    seen = set()
    for prompt in world.prompts[:3]:
        known = [*prompt, 9, 21]
        paths, verified = tree.grow(known)
        pairs = [
            (np.array([*known, *path], np.int32), np.ones(len(known) + len(path), np.uint8)) for path in paths
        ]
        starts = [np.array([len(known) - 2])] * len(paths)
        batch = collate(pairs, starts, rows=range(len(paths)), num_steps=shape.num_steps)
        features = world.target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
        kept = greedy_trees(world.draft, world.target.ends, batch, features, shape=shape)
        for path, found in zip(paths, kept, strict=True):
            expected = next((n for n in range(len(path), 0, -1) if path[:n] in verified), 0)
            assert found.lengths.tolist() == [expected], path
            seen.add((len(path), expected))
    assert (
        len({depth for depth, expected in seen if expected == depth}) >= 3
    )  # some were kept to depth 3 or 4


def test_a_tree_of_one_branch_is_a_chain(world: World) -> None:
    options = EvaluateOptions(max_draft_tokens=3, tree=TreeShape(3, 1, 4), max_tokens=MAX_TOKENS)
    result = evaluate(
        world.draft_folder, target_source=str(world.target_folder), rows=world.rows, options=options
    )
    assert result.tree is not None
    assert result.tree.counts == result.chains[2].counts


def test_sampled_acceptance_is_that_of_literal_rejection_sampling(world: World) -> None:
    """Mean of tokens kept per step, from 200 literal steps, within three standard errors of the offline figure."""
    temperature, depth, chance = 1.5, 2, np.random.default_rng(5)
    engine = LiteralEngine(world)

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp((x - x.max()) / temperature)
        return e / e.sum()

    ids = np.array([engine.reference.target_id(i) for i in range(world.config.draft_vocab_size)])
    kept = []
    texts: list[tuple[list[int], list[int]]] = []
    for _ in range(20):
        prompt = chance.integers(3, 64, 5).tolist()
        known = list(prompt)
        logits, _ = engine.logits_and_states(known)
        known.append(int(chance.choice(64, p=softmax(logits[-1]))))
        for _ in range(10):
            _, states = engine.logits_and_states(known[:-1])
            drafted: list[int] = []
            qs: list[np.ndarray] = []

            def draw(logits: np.ndarray, _: int, d: list[int] = drafted, q: list[np.ndarray] = qs) -> int:
                full = np.zeros(64)
                full[ids] = softmax(logits)
                q.append(full)
                d.append(int(chance.choice(64, p=full)))
                return d[-1]

            last = engine.reference.chain(known, states, engine.embedding, len(known) - 2, depth, draw)[-1]
            draw(last, 0)
            logits, _ = engine.logits_and_states([*known, *drafted])
            at = len(known) - 1
            count = 0
            for i in range(depth):
                p, x = softmax(logits[at + i]), drafted[i]
                if chance.random() >= min(1.0, p[x] / qs[i][x]):
                    rest = np.maximum(p - qs[i], 0)
                    known.append(int(chance.choice(64, p=rest / rest.sum())))
                    break
                count += 1
                known.append(x)
            else:
                known.append(int(chance.choice(64, p=softmax(logits[at + depth]))))
            kept.append(count)
        texts.append((prompt, known[len(prompt) :]))
    # The texts are the target's own samples, so they can be evaluated as recorded answers.
    folder = world.draft_folder.parent / "sampled"
    rows = rows_of(folder, [row(p, a, name=str(i), split="held-out") for i, (p, a) in enumerate(texts)])
    found = []
    for seed in range(4):
        options = EvaluateOptions(
            max_draft_tokens=depth,
            temperature=temperature,
            proposals="sampled",
            answers="recorded",
            seed=seed,
        )
        result = evaluate(
            world.draft_folder, target_source=str(world.target_folder), rows=rows, options=options
        )
        found.append(result.chains[-1].counts.acceptance_length or 0.0)
    error = np.std(kept) / np.sqrt(len(kept)) * np.sqrt(1 + 1 / 4)
    assert np.mean(found) - 1 == pytest.approx(np.mean(kept), abs=3 * error)
    assert 0.1 < np.mean(kept) < 1.9


def test_chances_of_being_kept_add_up_to_the_overlap_of_both_distributions(world: World) -> None:
    """Over the target's next token x: sum of p(x) min(1, q(x) / p(x)) is sum of min(p(x), q(x))."""
    temperature, prefix = 0.7, [*world.prompts[0], 9, 21, 33]
    pairs = [
        (np.array([*prefix, x], np.int32), np.array([0] * 4 + [1] * (len(prefix) - 3))) for x in range(64)
    ]
    start = len(prefix) - 2
    batch = collate(pairs, [np.array([start])] * 64, rows=range(64), num_steps=1)
    features = world.target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
    (chances,) = keep_chances(
        world.draft, world.target.ends, batch, features, num_steps=1, temperature=temperature
    )
    engine = LiteralEngine(world)
    logits, states = engine.logits_and_states(prefix)
    p = np.exp(logits[-1] / temperature)
    p /= p.sum()
    (draft_logits,) = engine.reference.chain(prefix, states, engine.embedding, start, 1, lambda *_: 0)
    q = np.zeros(64)
    for i, z in enumerate(draft_logits):
        q[engine.reference.target_id(i)] = np.exp(z / temperature)
    q /= q.sum()
    assert 0.05 < np.minimum(p, q).sum() < 0.95
    assert (p * chances[:, 0]).sum() == pytest.approx(np.minimum(p, q).sum(), abs=1e-5)


def test_answers_at_a_temperature_do_not_depend_on_the_company(world: World) -> None:
    prompts = [np.array(p) for p in world.prompts]
    together = continue_prompts(world.target, prompts, max_tokens=10, temperature=1.0, seed=4)
    first = continue_prompts(world.target, prompts[:1], max_tokens=10, temperature=1.0, seed=4)
    assert together[0] == first[0]


def test_greedy_answers_of_padded_prompts_are_those_of_each_alone(world: World) -> None:
    prompts = [np.array(p) for p in world.prompts]
    together = continue_prompts(world.target, prompts, max_tokens=10, temperature=0.0, seed=0)
    for prompt, answer in zip(prompts, together, strict=True):
        tokens = prompt.tolist()
        for token in answer:
            with torch.no_grad():
                logits = world.target.model(input_ids=torch.tensor([tokens])).logits[0, -1]
            assert token == int(logits.argmax())
            tokens.append(token)


def test_a_tree_of_more_nodes_than_its_steps_make_is_refused() -> None:
    with pytest.raises(BadInput, match="at most 6 nodes, so the number of tokens is from 2 to 7"):
        TreeShape(2, 2, 8)


def test_data_without_held_out_rows_is_refused(world: World, tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "train-only", [row([5, 6, 7], [8, 9], name="a")])
    with pytest.raises(BadInput, match="no held-out rows"):
        evaluate(
            world.draft_folder, target_source=str(world.target_folder), rows=rows, options=EvaluateOptions()
        )


def test_proposals_drawn_at_temperature_zero_are_refused(world: World) -> None:
    with pytest.raises(BadInput, match="need a temperature above 0"):
        evaluate(
            world.draft_folder,
            target_source=str(world.target_folder),
            rows=world.rows,
            options=EvaluateOptions(proposals="sampled"),
        )


def test_the_shipped_drafts_offline_acceptance_is_in_the_range_measured_by_engines(tmp_path: Path) -> None:
    folder = data_home() / "models" / "smollm2-135m-instruct-hf"
    if not (folder / "model.safetensors").exists():
        pytest.skip("the target in transformers' format is not here: make engines")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    questions = [
        "List five uses for a lemon.",
        "Explain what a tide is.",
        "Write a short letter to a landlord.",
    ]
    rows = []
    for number, question in enumerate(questions):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        rows.append(row(list(ids), [28, 28], name=str(number), split="held-out"))
    data = write_rows(tmp_path / "held.jsonl", rows)
    prepared = prepare_rows([data], tmp_path / "rows", max_length=512, vocab_size=49152)
    options = EvaluateOptions(max_draft_tokens=4, max_tokens=64, dtype="bfloat16")
    result = evaluate(draft_folder(), target_source=str(folder), rows=prepared, options=options)
    lengths = [chain.counts.acceptance_length or 0 for chain in result.chains]
    # Measured over many prompts: 1.54, 1.77, 1.86, 1.89; three prompts scatter around it.
    assert lengths == sorted(lengths)
    assert 1.3 < lengths[0] < 1.8
    assert 1.5 < lengths[3] < 2.5
