"""``spectune drafter``: the chosen command; and ``train`` and ``evaluate``, arguments in, words or JSON out."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from spectune.cli.cleanup import cleaning_up
from spectune.cli.output import say, show, show_json
from spectune.domain.acceptance import AcceptanceCounts
from spectune.drafter.extra import needed
from spectune.drafter.out_folder import check_out
from spectune.errors import BadInput, Interrupted

if TYPE_CHECKING:
    from spectune.drafter.evaluate import Acceptance, Evaluation
    from spectune.drafter.train.options import StepReport, TrainOptions

_FEW_ANSWERS_OWN = 0.97
_FLAGS = {"num_test_steps": "test-steps", "num_train_rows": "train-rows"}


def run_drafter(args: argparse.Namespace) -> int:
    """The exit code."""
    if args.drafter_command is None:
        args.drafter_parser.print_help()
        return 2
    if args.drafter_command == "demo":
        from spectune.cli.drafter.demo import drafter_demo_command

        return drafter_demo_command(args)
    if args.drafter_command not in ("train", "evaluate"):
        from spectune.cli.drafter.data import run_data_commands

        return run_data_commands(args)
    for module in ("torch", "transformers", "safetensors"):
        needed(module)
    return train_command(args) if args.drafter_command == "train" else evaluate_command(args)


def train_command(args: argparse.Namespace) -> int:
    from spectune.drafter.train.floor import measure_matrix_rate
    from spectune.drafter.train.processes import choose_device, is_first_process, number_of
    from spectune.drafter.train.trainer import Cadence, train

    options, data = train_options(args), data_files(args.data)
    check_out("--out", Path(args.out), own="run.json")
    if args.cache:
        check_out("--cache", Path(args.cache), own="run.json")
    if args.dry_run:
        return _dry_run(args, options, data)
    device = choose_device(args.device, local_rank=number_of("LOCAL_RANK", 0))
    cadence = Cadence(
        evaluate_every_steps=args.evaluate_every,
        save_every_steps=args.save_every,
        num_held_out_rows=args.held_out_rows,
        on_report=lambda report: say(report_line(report)),
        on_note=say if is_first_process() else lambda _: None,
    )
    try:
        result = train(
            options,
            target_source=args.target,
            data=data,
            out=Path(args.out),
            cache=Path(args.cache) if args.cache else None,
            device=args.device,
            cadence=cadence,
            matrix_flop_per_s=measure_matrix_rate(dtype=args.dtype, device=device),
        )
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; run the same command again to go on with {args.out}") from None
    if not is_first_process():
        return 0
    if args.json:
        _print_json(result.model_dump(mode="json"))
        return 0
    lines = [
        f"draft: {result.draft}",
        f"{result.num_steps} steps, {result.num_epochs:.2f} epochs, {result.num_train_rows} rows, "
        f"loss {result.final_loss:.3f}, {result.tok_per_s:.0f} tok/s",
    ]
    if result.held_out_acceptance_length is not None:
        figures = ", ".join(
            f"K={k} {x:.2f}" for k, x in enumerate(result.held_out_acceptance_length, start=1)
        )
        lines.append(f"acceptance length on held-out rows, simulated: {figures}")
    show(lines)
    return 0


def _dry_run(args: argparse.Namespace, options: TrainOptions, data: Sequence[Path]) -> int:
    """Reads the data into a temporary folder; neither the target's weights nor ``--out`` are touched."""
    from spectune.checkpoints.read import read_checkpoint
    from spectune.drafter.config import config_for_target
    from spectune.drafter.train.batches import Plan
    from spectune.drafter.train.features import bytes_per_token
    from spectune.drafter.train.floor import train_operations_per_token
    from spectune.drafter.train.rows import prepare_rows
    from spectune.drafter.vocabulary import choose_vocabulary

    target = read_checkpoint(args.target)
    config = config_for_target(target, layers=options.layers, draft_vocab_size=options.draft_vocab_size)
    with cleaning_up(), tempfile.TemporaryDirectory(prefix="spectune-rows-") as scratch:
        rows = prepare_rows(
            data, Path(scratch) / "rows", max_length=options.max_length, vocab_size=config.vocab_size
        ).with_train_rows(options.num_train_rows, seed=options.seed)
        vocabulary = choose_vocabulary(rows, size=config.draft_vocab_size, vocab_size=config.vocab_size)
        train_rows, num_tokens = rows.of_split("train"), int(rows.offsets[-1])
        plan = Plan(train_rows, rows.lengths()[train_rows], options.batch_size, options.seed)
    operations = train_operations_per_token(config, num_steps=options.num_test_steps)
    document: dict[str, Any] = {
        "schema_version": 1,
        "num_train_rows": len(train_rows),
        "num_tokens": num_tokens,
        "layers": list(config.layers),
        "num_parameters": config.num_parameters,
        "vocabulary_coverage": vocabulary.coverage,
        "held_out_coverage": vocabulary.held_out_coverage,
        "num_steps": options.max_steps or max(1, round(options.epochs * plan.steps_per_epoch)),
        "feature_cache_bytes": num_tokens * bytes_per_token(config, dtype=options.dtype)
        if options.features == "cache"
        else 0,
        "operations_per_answer_token": operations.total,
    }
    if args.json:
        _print_json(document)
    else:
        show([f"{key}: {value}" for key, value in document.items()])
    return 0


def train_options(args: argparse.Namespace) -> TrainOptions:
    """Raises ``BadInput`` with every option that is out of range."""
    from spectune.drafter.train.options import TrainOptions

    try:
        return TrainOptions(
            layers=args.layers,
            draft_vocab_size=args.draft_vocab_size,
            num_test_steps=args.test_steps,
            step_decay=args.step_decay,
            epochs=args.epochs,
            max_steps=args.max_steps,
            batch_size=args.batch_size,
            micro_batch_size=args.micro_batch_size,
            learning_rate=args.learning_rate,
            max_length=args.max_length,
            num_train_rows=args.train_rows,
            dtype=args.dtype,
            features=args.features,
            seed=args.seed,
            warm_start=not args.cold_start,
        )
    except ValidationError as error:
        lines = [
            f"{_flag(p['loc'])}{p['msg'].removeprefix('Value error, ').replace('Input should', 'must')}"
            + (f", got {p['input']}" if p["loc"] else "")
            for p in error.errors()
        ]
        raise BadInput("; ".join(lines)) from error


def _flag(location: Sequence[int | str]) -> str:
    """Of a field of ``TrainOptions``; empty for what is wrong between several."""
    if not location:
        return ""
    name = str(location[0])
    return f"--{_FLAGS.get(name, name.replace('_', '-'))}: "


def data_files(paths: Sequence[str]) -> list[Path]:
    """Files as given, and of a folder its Parquet or JSONL files; those of a data set as they were written.

    Raises ``BadInput``.
    """
    from spectune.drafter.data.parts import check_file, whole_files
    from spectune.drafter.data.plan import unfinished

    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            check_file(path)
            found.append(path)
            continue
        note = unfinished(path)
        inside = whole_files(path)
        if note is not None and not inside:
            raise BadInput(note)
        if note is not None and os.environ.get("RANK", "0") == "0":
            say(f"note: {note}")
        inside = inside or next(
            (
                some
                for pattern in ("parts/*.parquet", "*.parquet", "*.jsonl*")
                if (some := sorted(path.glob(pattern)))
            ),
            [],
        )
        if not inside:
            raise BadInput(f"{path}: no Parquet or JSONL file in it")
        found += inside
    return found


def report_line(report: StepReport) -> str:
    accuracy = " ".join(f"{share:.3f}" for share in report.accuracy_per_step)
    parts = [
        f"step {report.step}/{report.num_steps}",
        f"loss {report.loss:.3f}",
        f"accuracy {accuracy}",
        f"{report.samples_per_s:.2f} samples/s",
        f"{report.tok_per_s:.0f} tok/s",
    ]
    if report.held_out_acceptance_length is not None:
        lengths = " ".join(f"{length:.2f}" for length in report.held_out_acceptance_length)
        parts.append(f"held-out acceptance length K=1.. {lengths}")
    return ", ".join(parts)


def evaluate_command(args: argparse.Namespace) -> int:
    from spectune.checkpoints.read import read_checkpoint
    from spectune.drafter.config import unsaid
    from spectune.drafter.evaluate import EvaluateOptions, evaluate
    from spectune.drafter.train.rows import prepare_rows
    from spectune.drafter.trees import TreeShape

    options = EvaluateOptions(
        max_draft_tokens=args.max_draft_tokens,
        tree=None if args.tree is None else TreeShape(*args.tree),
        temperature=args.temperature,
        proposals=args.proposals,
        answers=args.answers,
        max_tokens=args.max_tokens,
        num_prompts=args.num_prompts,
        dtype=args.dtype,
        device=args.device,
        seed=args.seed,
    )
    target = read_checkpoint(args.target)
    if target.vocab_size is None:
        raise unsaid(target, "vocab_size")
    with cleaning_up(), tempfile.TemporaryDirectory(prefix="spectune-rows-") as scratch:
        rows = prepare_rows(
            data_files(args.data),
            Path(scratch) / "rows",
            max_length=args.max_length,
            vocab_size=target.vocab_size,
        )
        result = evaluate(
            Path(args.draft), target_source=args.target, rows=rows, options=options, on_progress=say
        )
    if result.answers == "recorded" and args.temperature == 0 and result.most_likely_frac < _FEW_ANSWERS_OWN:
        say(
            f"warning: only {result.most_likely_frac:.1%} of the recorded answer tokens are this target's most "
            "likely ones: the answers were sampled, or are another model's; use --answers regenerated"
        )
    if args.json:
        _print_json(result.model_dump(mode="json"))
    else:
        _print_evaluation(result)
    return 0


def _print_evaluation(result: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"acceptance on {result.num_prompts} held-out prompts, {result.num_answer_tokens} tokens"
    )
    for name in ("draft", "acceptance length", "by position", "steps"):
        table.add_column(name, justify="left" if name == "draft" else "right")
    for chain in result.chains:
        table.add_row(f"K = {chain.num_draft_tokens}", *_cells(chain))
    if result.tree is not None:
        table.add_row(f"tree {','.join(map(str, result.tree_shape or ()))}", *_cells(result.tree))
    console = Console(highlight=False)
    console.print(table)
    last = result.chains[-1]
    for title, parts in (("category", last.by_category), ("tokens known", last.by_context)):
        figures = ", ".join(f"{name} {mean_length(counts)}" for name, counts in parts.items())
        show([f"by {title}, K = {last.num_draft_tokens}: {figures}"])


def mean_length(counts: AcceptanceCounts) -> str:
    return "unknown" if counts.acceptance_length is None else f"{counts.acceptance_length:.2f}"


def _cells(shape: Acceptance) -> tuple[str, str, str]:
    interval = shape.acceptance_length
    if interval is None:
        return "unknown", "", "0"
    spread = (
        "" if interval.low is None or interval.high is None else f" ({interval.low:.2f}-{interval.high:.2f})"
    )
    marginal = shape.counts.marginal_acceptance or ()
    return (
        f"{interval.value:.3f}{spread}",
        " ".join(f"{share:.2f}" for share in marginal),
        str(shape.counts.num_drafts),
    )


def _print_json(document: dict[str, Any]) -> None:
    show_json(json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n")
