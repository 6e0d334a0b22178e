"""Training an EAGLE-3 draft. ``train`` reads top to bottom: data, features, draft, then the loop.

Alone, or under torchrun with parameters spread over all processes (FSDP2). What happens in a step depends on
the seed and the step's number only, so a run killed at any moment goes on from its last checkpoint to the same
result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectune.checkpoints.read import read_checkpoint
from spectune.domain.sizes import in_bytes
from spectune.drafter.acceptance import held_out
from spectune.drafter.chains import greedy_chains
from spectune.drafter.config import DraftConfig, config_for_target, config_json
from spectune.drafter.model import EagleDraft
from spectune.drafter.target import Ends, load_target
from spectune.drafter.train.batches import Batch, Plan, collate, serving_starts, training_batch
from spectune.drafter.train.features import (
    Cached,
    CachePlan,
    FeatureSource,
    OnTheFly,
    make_cache,
    needed_positions,
    target_identity,
)
from spectune.drafter.train.floor import train_operations_per_token
from spectune.drafter.train.objective import TestTimeLoss
from spectune.drafter.train.options import WIDTH_TIMES_RATE, StepReport, TrainOptions, TrainResult
from spectune.drafter.train.processes import (
    World,
    add_over_processes,
    join_world,
    like,
    shard,
    shard_target,
    wait_for_all,
    whole,
)
from spectune.drafter.train.rows import Ints, Rows, prepare_rows
from spectune.drafter.train.run_dir import RunDir
from spectune.drafter.vocabulary import DraftVocabulary, choose_vocabulary
from spectune.errors import EnvironmentFailed

_MOMENTS = ("exp_avg", "exp_avg_sq")
_BETAS = (0.9, 0.95)
_HELD_OUT_TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class Cadence:
    """How often to look and to save; the trained draft does not depend on it."""

    report_every_steps: int = 10
    evaluate_every_steps: int = 100
    save_every_steps: int = 50
    num_held_out_rows: int = 64
    on_report: Callable[[StepReport], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic


def train(
    options: TrainOptions,
    *,
    target_source: str,
    data: Sequence[Path],
    out: Path,
    cache: Path | None = None,
    device: str = "auto",
    cadence: Cadence | None = None,
    matrix_flop_per_s: float | None = None,
) -> TrainResult:
    """Trains, or goes on with, the run in ``out``. ``matrix_flop_per_s`` prices the counted operations.

    ``cache``: where rows and features are kept, for runs on the same data to share; else in ``out``.
    """
    look = cadence or Cadence()
    run, cache = RunDir(out), cache or out
    with join_world(device) as world, run.held(by_this_process=world.is_first):
        target = read_checkpoint(target_source)
        config = config_for_target(target, layers=options.layers, draft_vocab_size=options.draft_vocab_size)
        description: dict[str, object] = {
            "options": options.model_dump(mode="json"),
            "target": target_identity(target_source),
        }
        run.check(description)
        rows = _rows(world, data, cache / "rows", options, config, expected=run.begun_rows())
        # Scaled positions may reach beyond what the configuration names.
        rows.check_length(None if target.rope.scaling_type else target.max_positions, target=target_source)
        if world.is_first:
            run.begin({**description, "rows": rows.fingerprint})
        wait_for_all(world)
        ended = run.result()
        if ended is not None:
            look.on_note(f"{out}: this run has ended; its result is shown")
            return ended
        vocabulary = choose_vocabulary(rows, size=config.draft_vocab_size, vocab_size=config.vocab_size)
        plan = _plan(rows, options)
        if world.is_first:
            _note_data(look, rows, vocabulary, plan)
        wait_for_all(world)
        source = _feature_source(world, options, target_source, rows, config, cache / "features", look)
        draft = new_draft(config, vocabulary, source.ends, seed=options.seed, warm=options.warm_start)
        draft.to(world.device)
        as_loaded = config_json(config, target=target.config)
        trainer = _Trainer(options, world, run, rows, plan, source, draft, as_loaded, look)
        trainer.resume()
        trainer.loop()
        result = trainer.result(vocabulary, matrix_flop_per_s)
        if world.is_first:
            run.write_result(result)
        wait_for_all(world)
        return result


def _rows(
    world: World,
    data: Sequence[Path],
    folder: Path,
    options: TrainOptions,
    config: DraftConfig,
    *,
    expected: str | None,
) -> Rows:
    """The first process reads the files; the others map what it wrote."""
    if not world.is_first:
        wait_for_all(world)
    rows = prepare_rows(
        data,
        folder,
        max_length=options.max_length,
        vocab_size=config.vocab_size,
        expected=expected,
        verify=world.is_first,
    )
    if world.is_first:
        wait_for_all(world)
    return rows.with_train_rows(options.num_train_rows, seed=options.seed)


def _plan(rows: Rows, options: TrainOptions) -> Plan:
    train_rows = rows.of_split("train")
    return Plan(train_rows, rows.lengths()[train_rows], options.batch_size, options.seed)


def _note_data(look: Cadence, rows: Rows, vocabulary: DraftVocabulary, plan: Plan) -> None:
    held = (
        "" if vocabulary.held_out_coverage is None else f" ({vocabulary.held_out_coverage:.1%} of held-out)"
    )
    look.on_note(
        f"{len(plan.rows)} training rows, {len(rows.of_split('held-out'))} held out; draft vocabulary of "
        f"{len(vocabulary.target_ids)} tokens covers {vocabulary.coverage:.1%} of answer tokens{held}"
    )
    if rows.num_truncated:
        look.on_note(
            f"{rows.num_truncated} rows cut to the maximal length; "
            f"{rows.num_too_long} of them left out, their answers begin behind it"
        )


def _feature_source(
    world: World,
    options: TrainOptions,
    target_source: str,
    rows: Rows,
    config: DraftConfig,
    folder: Path,
    look: Cadence,
) -> FeatureSource:
    def target() -> OnTheFly:
        loaded = load_target(target_source, layers=config.layers, dtype=options.dtype, device=world.device)
        shard_target(loaded.trunk, loaded.decoder_layers, world)
        return OnTheFly(loaded)

    if options.features == "on-the-fly":
        return target()
    plan = CachePlan(folder, rows, config, options.dtype, target_identity(target_source))
    if not plan.is_whole():
        look.on_note(f"feature cache: {in_bytes(plan.num_bytes)} in {len(plan.shards)} shards at {folder}")
        if world.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            plan.check_space(plan.missing())
        make_cache(plan, target().target, writes=world.is_first, on_progress=look.on_note)
    wait_for_all(world)
    return Cached(plan, device=world.device)


def new_draft(
    config: DraftConfig, vocabulary: DraftVocabulary, ends: Ends, *, seed: int, warm: bool
) -> EagleDraft:
    """Random by ``seed``; with ``warm``, the head, the last norm and the fusion start as the target's own.

    A warm fusion hands on the highest of the fused states, so that the first guess of the draft is what the
    target's head makes of it.
    """
    chance = torch.Generator().manual_seed(seed)
    draft = EagleDraft(config)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if parameter.dim() == 2:
                inner = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(0, 0.02 / math.sqrt(2) if inner else 0.02, generator=chance)
        draft.d2t.copy_(torch.from_numpy(vocabulary.d2t))
        draft.t2d.copy_(torch.from_numpy(vocabulary.t2d))
        if warm:
            draft.lm_head.weight.copy_(ends.head_VD[draft.target_ids_V.to(ends.head_VD.device)].float())
            if ends.norm_D is not None and ends.norm_D.shape == draft.norm.weight.shape:
                draft.norm.weight.copy_(ends.norm_D.float())
            draft.fc.weight.zero_()
            draft.fc.weight[:, -config.hidden_size :].copy_(torch.eye(config.hidden_size))
    return draft


@dataclass
class _Since:
    """What has happened since the last report."""

    began_s: float
    steps: int = 0
    rows: int = 0
    tokens: int = 0
    paused_s: float = 0.0
    loss_J: Tensor | None = None
    hits_J: Tensor | None = None
    counts_J: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class _Trainer:
    """The state of one run in memory."""

    def __init__(
        self,
        options: TrainOptions,
        world: World,
        run: RunDir,
        rows: Rows,
        plan: Plan,
        source: FeatureSource,
        draft: EagleDraft,
        draft_description: dict[str, Any],
        look: Cadence,
    ) -> None:
        self.options, self.world, self.run, self.rows = options, world, run, rows
        self.plan, self.source, self.draft, self.look = plan, source, draft, look
        self.draft_description = draft_description
        self.num_steps = options.max_steps or max(1, round(options.epochs * plan.steps_per_epoch))
        self.num_parts = options.num_micro_batches(num_processes=world.size)
        self.objective = TestTimeLoss(
            draft,
            source.ends,
            num_steps=options.num_test_steps,
            decay=options.step_decay,
            dtype=getattr(torch, options.dtype),
        )
        shard(self.objective, world)
        self.optimizer = _optimizer(draft, options)
        self.peak_rate = options.learning_rate or WIDTH_TIMES_RATE / draft.config.hidden_size
        self.step = 0
        self.saved_step: int | None = None
        self.last_loss = math.nan
        self.held_out_lengths: tuple[float, ...] | None = None
        self.begun_s = look.clock()
        self.trained_s = 0.0
        self.trained_tokens = 0
        self.held_out = _held_out_batches(rows, options, look.num_held_out_rows)

    def resume(self) -> None:
        """Goes on from the last whole checkpoint, if there is one."""
        found = self.run.load_last()
        if self.world.is_first:
            self.run.forget_reports_after(0 if found is None else found.step)
        if found is None:
            return
        shapes = {name: tuple(parameter.shape) for name, parameter in self.draft.named_parameters()}
        found.check_fits(shapes, moments=_MOMENTS, num_steps=self.num_steps)
        with torch.no_grad():
            for name, parameter in self.draft.named_parameters():
                parameter.copy_(like(found.model[name], parameter))
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(found.step)),
                    **{m: like(found.optimizer[f"{m}.{name}"], parameter) for m in _MOMENTS},
                }
        self.step = self.saved_step = found.step
        self._count_before(self.run.reports())
        self.look.on_note(f"going on from step {found.step}")

    def _count_before(self, reports: Sequence[StepReport]) -> None:
        """What earlier starts of the run did; after the last step it is all that is left to tell."""
        step = 0
        for report in reports:
            if report.samples_per_s <= 0:
                continue
            seconds = (report.step - step) * self.options.batch_size / report.samples_per_s
            self.trained_s += seconds
            self.trained_tokens += round(report.tok_per_s * seconds)
            self.last_loss, step = report.loss, report.step

    def loop(self) -> None:
        """Steps until the last; reports, evaluates and saves on the way."""
        since = _Since(self.look.clock())
        batches: list[Ints] = []
        epoch = -1
        while self.step < self.num_steps:
            if self.step // self.plan.steps_per_epoch != epoch:
                epoch = self.step // self.plan.steps_per_epoch
                batches = self.plan.epoch(epoch)
            grad_norm = self._one_step(batches[self.step % self.plan.steps_per_epoch], since)
            self.step += 1
            last = self.step == self.num_steps
            looks = last or self.step % self.look.evaluate_every_steps == 0
            saves = last or self.step % self.look.save_every_steps == 0
            # Also where it saves, so that a run that goes on from there averages over the same steps.
            if looks or saves or self.step % self.look.report_every_steps == 0:
                self._report(since, grad_norm, evaluate=looks)
                since = _Since(self.look.clock())
            if saves:
                paused = self.look.clock()
                self.save()
                since.paused_s += self.look.clock() - paused
        if self.saved_step != self.step:
            self.save()
        if self.held_out_lengths is None and self.held_out:
            self._evaluate()

    def _one_step(self, indexes: Ints, since: _Since) -> float:
        """One optimizer step over the rows of a global batch, of which this process computes its parts."""
        parts = np.split(indexes, self.num_parts * self.world.size)[self.world.rank :: self.world.size]
        counts_J = training_batch(self.rows, indexes, num_steps=self.options.num_test_steps).valid_JBM.sum(
            (1, 2)
        )
        # FSDP averages gradients over processes; the loss is a mean over the rows of all of them.
        scale_J = [self.world.size / max(1, int(count)) for count in counts_J]
        for part in parts:
            batch = training_batch(self.rows, part, num_steps=self.options.num_test_steps)
            features = self.source.features(batch.rows, batch.tokens_BL, needed_positions(batch.mask_BL))
            loss, loss_J, hits_J = self.objective(batch, features, scale_J)
            loss.backward()
            since.loss_J = loss_J if since.loss_J is None else since.loss_J + loss_J
            since.hits_J = hits_J if since.hits_J is None else since.hits_J + hits_J
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.options.clip_norm)
        norm_value = float(whole(norm))
        if not math.isfinite(norm_value):
            raise EnvironmentFailed(
                f"step {self.step + 1}: the gradient is not finite (rows {', '.join(map(str, indexes[:8]))}); the last "
                "checkpoint is whole; lower --learning-rate or train in float32"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        since.steps += 1
        since.rows += len(indexes)
        since.tokens += int(counts_J[0])
        since.counts_J = counts_J if not len(since.counts_J) else since.counts_J + counts_J
        return norm_value

    def rate(self, step: int) -> float:
        """Learning rate: a linear warm-up, then half a cosine down to ``final_rate_frac``."""
        warmup = max(1, round(self.options.warmup_frac * self.num_steps))
        if step < warmup:
            return self.peak_rate * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.num_steps - warmup)
        low = self.options.final_rate_frac
        return self.peak_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))

    def _report(self, since: _Since, grad_norm: float, *, evaluate: bool) -> None:
        spent_s = self.look.clock() - since.began_s - since.paused_s
        self.trained_s += spent_s
        self.trained_tokens += since.tokens
        assert since.loss_J is not None and since.hits_J is not None
        # Every part's loss is already divided by its step's rows, and multiplied by the number of processes.
        loss_J = add_over_processes(since.loss_J.clone(), self.world) / since.steps / self.world.size
        hits_J = add_over_processes(since.hits_J.clone(), self.world)
        weights = [self.options.step_decay**j for j in range(len(loss_J))]
        self.last_loss = float(
            sum(w * x for w, x in zip(weights, loss_J.tolist(), strict=True)) / sum(weights)
        )
        lengths, accuracy = self._evaluate() if evaluate and self.held_out else (None, None)
        report = StepReport(
            step=self.step,
            num_steps=self.num_steps,
            loss=self.last_loss,
            accuracy_per_step=tuple(
                int(h) / max(1, int(n)) for h, n in zip(hits_J.tolist(), since.counts_J, strict=True)
            ),
            learning_rate=self.rate(self.step - 1),
            grad_norm=grad_norm,
            samples_per_s=since.rows / spent_s,
            tok_per_s=since.tokens / spent_s,
            elapsed_s=self.look.clock() - self.begun_s,
            held_out_acceptance_length=lengths,
            held_out_accuracy=accuracy,
        )
        if self.world.is_first:
            self.run.append_report(report)
            self.look.on_report(report)

    def _evaluate(self) -> tuple[tuple[float, ...] | None, float | None]:
        draft, dtype = self._whole_draft(), getattr(torch, self.options.dtype)
        kept = []
        for batch in self.held_out:
            features = self.source.features(batch.rows, batch.tokens_BL, needed_positions(batch.mask_BL))
            with torch.autocast(self.world.device.split(":")[0], dtype, enabled=dtype != torch.float32):
                kept += greedy_chains(
                    draft, self.source.ends, batch, features, num_steps=self.options.num_test_steps
                )
        self.held_out_lengths, accuracy = held_out(kept, num_steps=self.options.num_test_steps)
        return self.held_out_lengths, accuracy

    def _whole_draft(self) -> EagleDraft:
        if self.world.size == 1:
            return self.draft
        alone = EagleDraft(self.draft.config)
        alone.load_state_dict({name: whole(x).detach() for name, x in self.draft.state_dict().items()})
        alone.to(self.world.device)
        return alone

    def save(self) -> None:
        """A checkpoint of this step, and the draft as engines load it, by the first process; others hand in parts."""
        model = {name: whole(x).detach() for name, x in self.draft.state_dict().items()}
        moments = {
            f"{moment}.{name}": whole(self.optimizer.state[parameter][moment]).detach()
            for name, parameter in self.draft.named_parameters()
            for moment in _MOMENTS
        }
        if self.world.is_first:
            half = {n: x.to(torch.bfloat16) if x.is_floating_point() else x for n, x in model.items()}
            self.run.write_draft(self.draft_description, half)
            self.run.save(self.step, model=model, optimizer=moments)
        self.saved_step = self.step
        wait_for_all(self.world)

    def result(self, vocabulary: DraftVocabulary, matrix_flop_per_s: float | None) -> TrainResult:
        """Sums the run up."""
        speed = self.trained_tokens / self.trained_s if self.trained_s else 0.0
        floor_s = None
        if matrix_flop_per_s is not None:
            per_token = train_operations_per_token(self.draft.config, num_steps=self.options.num_test_steps)
            floor_s = per_token.total * self.trained_tokens / matrix_flop_per_s / self.world.size
        return TrainResult(
            draft=str(self.run.draft),
            num_steps=self.num_steps,
            num_epochs=self.num_steps / self.plan.steps_per_epoch,
            num_train_rows=len(self.plan.rows),
            num_answer_tokens=vocabulary.num_answer_tokens,
            vocabulary_coverage=vocabulary.coverage,
            held_out_coverage=vocabulary.held_out_coverage,
            final_loss=self.last_loss,
            held_out_acceptance_length=self.held_out_lengths,
            tok_per_s=speed,
            train_s=self.trained_s,
            floor_frac=floor_s / self.trained_s if floor_s is not None and self.trained_s else None,
        )


def _optimizer(draft: EagleDraft, options: TrainOptions) -> torch.optim.AdamW:
    """Weight decay on matrices only."""
    matrices = [p for p in draft.parameters() if p.dim() == 2]
    vectors = [p for p in draft.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, eps=1e-8, fused=True)


def _held_out_batches(rows: Rows, options: TrainOptions, num_rows: int) -> list[Batch]:
    """Held-out rows for the simulated acceptance, spread over the whole split, similar lengths together."""
    some = rows.of_split("held-out")
    some = (
        some[np.linspace(0, len(some) - 1, min(num_rows, len(some)), dtype=np.int64)] if len(some) else some
    )
    order = some[np.argsort(rows.lengths()[some], kind="stable")]
    batches, waiting = [], []  # type: list[Batch], list[int]
    for index in [*map(int, order), -1]:
        longest = 0 if index < 0 else len(rows.row(index)[0])
        if waiting and (index < 0 or (len(waiting) + 1) * longest > _HELD_OUT_TOKENS_AT_ONCE):
            pairs = [rows.row(i) for i in waiting]
            starts = [serving_starts(mask) for _, mask in pairs]
            batches.append(collate(pairs, starts, rows=waiting, num_steps=options.num_test_steps))
            waiting = []
        waiting.append(index)
    return [batch for batch in batches if batch.valid_JBM[0].any()]
