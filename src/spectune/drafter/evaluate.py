"""Offline acceptance of a draft on held-out prompts, counted as servers count it, without a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.drafter.acceptance import Kept, Steps, by_context, counts_of, walk
from spectune.drafter.chains import greedy_chains, sampled_chains
from spectune.drafter.config import read_draft_config
from spectune.drafter.model import EagleDraft, load_draft
from spectune.drafter.target import Features, Target, continue_prompts, load_target
from spectune.drafter.train.batches import Batch, collate, serving_starts
from spectune.drafter.train.features import needed_positions
from spectune.drafter.train.processes import choose_device
from spectune.drafter.train.rows import Ints, Rows
from spectune.drafter.trees import MAX_DEPTH, TreeShape, greedy_trees
from spectune.errors import BadInput
from spectune.statistics.intervals import acceptance_length_interval

SCHEMA_VERSION = 1
_TOKENS_AT_ONCE = 4096
Answers = Literal["regenerated", "recorded"]
Proposals = Literal["greedy", "sampled"]
Progress = Callable[[str], None]


class Acceptance(Record):
    """Acceptance at one shape of draft. Counts are what a server's counters would add up to."""

    num_draft_tokens: int
    """Per verify step: K of a chain, nodes of a tree without its root."""
    counts: AcceptanceCounts
    acceptance_length: Interval | None
    """With the prompt as the unit of sampling."""
    by_category: Mapping[str, AcceptanceCounts]
    by_context: Mapping[str, AcceptanceCounts]
    """By the number of tokens known when the step began."""
    by_prompt: Mapping[str, AcceptanceCounts]
    every_start: AcceptanceCounts
    """Had a step begun at every token: more steps at places where little is kept, so mostly another figure."""


class Evaluation(Record):
    """``spectune drafter evaluate --json``."""

    schema_version: int = SCHEMA_VERSION
    draft: str
    target: str
    dtype: str
    temperature: float
    proposals: Proposals
    answers: Answers
    num_prompts: int
    num_answer_tokens: int
    most_likely_frac: float
    """Share of answer tokens that are the target's most likely ones: 1 for greedy answers of this target."""
    chains: tuple[Acceptance, ...]
    """``[k - 1]``: k drafted tokens."""
    tree: Acceptance | None = None
    tree_shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class EvaluateOptions:
    max_draft_tokens: int = 6
    tree: TreeShape | None = None
    temperature: float = 0.0
    proposals: Proposals = "greedy"
    answers: Answers = "regenerated"
    max_tokens: int = 256
    num_prompts: int | None = None
    dtype: str = "float32"
    device: str = "auto"
    seed: int = 0

    @property
    def depth(self) -> int:
        """Tokens that follow one another in the longest draft."""
        return max(self.max_draft_tokens, self.tree.num_steps if self.tree else 0)


@dataclass
class _Prompt:
    """One prompt with an answer; the last ``lookahead`` tokens only serve to judge what was drafted before them."""

    prompt_id: str
    category: str
    ids: Ints
    mask: Ints
    lookahead: int
    chain: Kept | None = None
    tree: Kept | None = None

    @property
    def starts(self) -> Ints:
        starts = serving_starts(self.mask)
        return starts[starts + 2 < len(self.ids) - self.lookahead]


@dataclass
class _Tally:
    answer_tokens: int = 0
    most_likely: int = 0
    prompts: list[_Prompt] = field(default_factory=list)


def evaluate(
    draft_folder: Path,
    *,
    target_source: str,
    rows: Rows,
    options: EvaluateOptions,
    on_progress: Progress = lambda _: None,
) -> Evaluation:
    """Raises ``BadInput`` for a draft that does not fit the target, or rows without held-out prompts."""
    if not 1 <= options.max_draft_tokens <= MAX_DEPTH:
        raise BadInput(f"--max-draft-tokens: must be from 1 to {MAX_DEPTH}, got {options.max_draft_tokens}")
    if options.proposals == "sampled" and options.temperature == 0:
        raise BadInput(
            "proposals drawn from the draft need a temperature above 0; engines draft greedily at 0"
        )
    facts = read_checkpoint(target_source)
    config = read_draft_config(draft_folder, target=facts)
    device = choose_device(options.device)
    draft = load_draft(draft_folder, config, device=device)
    target = load_target(target_source, layers=config.layers, dtype=options.dtype, device=device)
    tally = _Tally()
    _check_positions(rows, facts, options)
    for prompts in _in_batches(_prompts(rows, target, options, on_progress)):
        _judge(prompts, draft, target, options, tally)
        on_progress(f"judged {len(tally.prompts)} prompts")
    if not tally.prompts:
        raise BadInput("no held-out prompt has an answer of at least two tokens")
    shape = options.tree
    return Evaluation(
        draft=str(draft_folder),
        target=target_source,
        dtype=options.dtype,
        temperature=options.temperature,
        proposals=options.proposals,
        answers=options.answers,
        num_prompts=len(tally.prompts),
        num_answer_tokens=tally.answer_tokens,
        most_likely_frac=tally.most_likely / max(1, tally.answer_tokens),
        chains=tuple(
            _acceptance([(p, p.chain) for p in tally.prompts], num_drafted=k, depth=k)
            for k in range(1, options.max_draft_tokens + 1)
        ),
        tree=None
        if shape is None
        else _acceptance(
            [(p, p.tree) for p in tally.prompts], num_drafted=shape.num_tokens - 1, depth=shape.num_steps
        ),
        tree_shape=None if shape is None else dataclasses.astuple(shape),
    )


def _check_positions(rows: Rows, target: CheckpointFacts, options: EvaluateOptions) -> None:
    """Raises ``BadInput`` where a model whose positions are a table would be asked for one beyond its end."""
    limit = target.max_positions
    if limit is None or target.rope.theta is not None:
        return
    found = [rows.row(int(index)) for index in rows.of_split("held-out")[: options.num_prompts]]
    if options.answers == "recorded":
        longest, remedy = max((len(ids) for ids, _ in found), default=0), f"give --max-length {limit}"
    else:
        longest = (
            max((int(mask.argmax()) for _, mask in found), default=0) + options.max_tokens + options.depth
        )
        remedy = "give a smaller --max-tokens, or --max-length to leave out long prompts"
    if longest > limit:
        raise BadInput(
            f"{target.source}: reads at most {limit} tokens, and {longest} are asked for; {remedy}"
        )


def _prompts(rows: Rows, target: Target, options: EvaluateOptions, on_progress: Progress) -> list[_Prompt]:
    chosen = rows.of_split("held-out")[: options.num_prompts]
    if not len(chosen):
        raise BadInput("the data has no held-out rows; `split` of some must be held-out")
    depth = options.depth
    names = rows.prompt_ids()
    found = []
    for index in map(int, chosen):
        ids, mask = rows.row(index)
        found.append(_Prompt(names[index], rows.category(index), np.array(ids), np.array(mask), lookahead=0))
    if options.answers == "recorded":
        for prompt in found:
            ended = int(prompt.ids[-1]) in target.end_ids or prompt.mask[-1] == 0
            prompt.lookahead = 0 if ended else depth
        return found
    on_progress(f"the target answers {len(found)} prompts again")
    begun = [prompt.ids[: int(prompt.mask.argmax())] for prompt in found]
    bare = [prompt.prompt_id for prompt, begin in zip(found, begun, strict=True) if not len(begin)]
    if bare:
        raise BadInput(
            f"{len(bare)} held-out rows have no token before their answer ({', '.join(bare[:3])}), so there is "
            "nothing to answer; leave them out, or give --answers recorded"
        )
    answers = continue_prompts(
        target,
        begun,
        max_tokens=options.max_tokens + depth,
        temperature=options.temperature,
        seed=options.seed,
    )
    for prompt, begin, answer in zip(found, begun, answers, strict=True):
        prompt.ids = np.concatenate([begin, np.asarray(answer, begin.dtype)])
        prompt.mask = (np.arange(len(prompt.ids)) >= len(begin)).astype(np.uint8)
        prompt.lookahead = max(0, len(answer) - options.max_tokens)
    return found


def _in_batches(prompts: Sequence[_Prompt]) -> Iterator[list[_Prompt]]:
    """Prompts of similar length together."""
    waiting: list[_Prompt] = []
    for prompt in sorted((p for p in prompts if len(p.starts)), key=lambda p: len(p.ids)):
        if waiting and (len(waiting) + 1) * len(prompt.ids) > _TOKENS_AT_ONCE:
            yield waiting
            waiting = []
        waiting.append(prompt)
    if waiting:
        yield waiting


def _judge(
    prompts: list[_Prompt], draft: EagleDraft, target: Target, options: EvaluateOptions, tally: _Tally
) -> None:
    depth = options.depth
    batch = collate(
        [(p.ids, p.mask) for p in prompts],
        [p.starts for p in prompts],
        rows=range(len(prompts)),
        num_steps=depth,
    )
    needed_BL = needed_positions(batch.mask_BL)
    features = target.features(batch.tokens_BL, needed_BL)
    chains = _chains(draft, target, batch, features, options, tally)
    trees = (
        [None] * len(prompts)
        if options.tree is None
        else greedy_trees(draft, target.ends, batch, features, shape=options.tree)
    )
    for prompt, chain, tree in zip(prompts, chains, trees, strict=True):
        prompt.chain, prompt.tree = chain, tree
    tally.prompts += prompts
    next_BL = np.concatenate([batch.tokens_BL[:, 1:], batch.tokens_BL[:, :1]], axis=1)
    tally.answer_tokens += int(needed_BL.sum())
    tally.most_likely += int((features.top_BL.cpu().numpy() == next_BL)[needed_BL].sum())


def _chains(
    draft: EagleDraft,
    target: Target,
    batch: Batch,
    features: Features,
    options: EvaluateOptions,
    tally: _Tally,
) -> list[Kept]:
    if options.proposals == "greedy":
        return greedy_chains(draft, target.ends, batch, features, num_steps=options.max_draft_tokens)
    return sampled_chains(
        draft,
        target.ends,
        batch,
        features,
        num_steps=options.max_draft_tokens,
        temperature=options.temperature,
        chance=np.random.default_rng([options.seed, len(tally.prompts)]),
    )


def _acceptance(judged: Sequence[tuple[_Prompt, Kept | None]], *, num_drafted: int, depth: int) -> Acceptance:
    known = [(prompt, kept) for prompt, kept in judged if kept is not None]
    steps: list[Steps] = [walk(kept, depth=depth) for _, kept in known]
    counts = [counts_of(s.kept, num_drafted=num_drafted, depth=depth) for s in steps]
    categories: dict[str, list[AcceptanceCounts]] = {}
    prompts: dict[str, list[AcceptanceCounts]] = {}
    for (prompt, _), count in zip(known, counts, strict=True):
        categories.setdefault(prompt.category, []).append(count)
        prompts.setdefault(prompt.prompt_id, []).append(count)
    everywhere = np.concatenate([np.minimum(kept.lengths, depth) for _, kept in known])
    return Acceptance(
        num_draft_tokens=num_drafted,
        counts=_pooled(counts),
        acceptance_length=acceptance_length_interval(counts),
        by_category={name: _pooled(parts) for name, parts in sorted(categories.items())},
        by_context=by_context(steps, num_drafted=num_drafted, depth=depth),
        by_prompt={name: _pooled(parts) for name, parts in prompts.items()},
        every_start=counts_of(everywhere, num_drafted=num_drafted, depth=depth),
    )


def _pooled(parts: Sequence[AcceptanceCounts]) -> AcceptanceCounts:
    pooled = pool_counts(parts)
    if pooled is None:
        raise ValueError("no counts to pool")
    return pooled
