"""The arguments of ``spectune drafter``: the parser is built for every command, so nothing slow is imported."""

from __future__ import annotations

import argparse

from spectune.cli.drafter.data_args import add_data_commands, folder_name, seed_number

LEAST_TEMPERATURE = 0.001


def add_drafter(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``drafter`` with its own commands; ``args.drafter_command`` names the chosen one."""
    parser = commands.add_parser("drafter", help="inspect, train, evaluate and export a draft")
    parser.set_defaults(drafter_parser=parser)
    sub = parser.add_subparsers(dest="drafter_command", metavar="COMMAND")
    _add_train(sub)
    _add_evaluate(sub)
    add_data_commands(sub)
    _add_demo(sub)


def _add_train(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser(
        "train",
        help="train an EAGLE-3 draft",
        epilog="Several devices: torchrun --nproc-per-node N -m spectune drafter train ..., with --nnodes on "
        "each of several nodes that share --out and --cache.",
    )
    parser.add_argument(
        "--target", required=True, metavar="FOLDER", help="the model to draft for, for transformers"
    )
    parser.add_argument(
        "--data",
        required=True,
        action="append",
        metavar="PATH",
        help="a data set of `drafter data`, a Parquet or a JSONL file; repeatable",
    )
    parser.add_argument(
        "--out", required=True, type=folder_name, metavar="DIR", help="the run; given again, it is resumed"
    )
    draft = parser.add_argument_group("draft")
    draft.add_argument(
        "--layers",
        type=_layers,
        metavar="I,J,K",
        help="target layers whose inputs are fused (default: 2, half, last but two)",
    )
    draft.add_argument(
        "--draft-vocab-size", type=_whole, default=8192, metavar="N", help="default: %(default)s"
    )
    draft.add_argument(
        "--cold-start", action="store_true", help="begin with a random head and fusion, not the target's"
    )
    course = parser.add_argument_group("course")
    course.add_argument(
        "--test-steps",
        type=_whole,
        default=4,
        metavar="J",
        help="of the training-time test (default: %(default)s)",
    )
    course.add_argument(
        "--step-decay", type=_above_zero, default=0.8, metavar="W", help="default: %(default)s"
    )
    course.add_argument("--epochs", type=_above_zero, default=3.0, help="default: %(default)s")
    course.add_argument("--max-steps", type=_whole, metavar="N", help="optimizer steps, instead of --epochs")
    course.add_argument("--batch-size", type=_whole, default=8, help="rows per step (default: %(default)s)")
    course.add_argument(
        "--micro-batch-size",
        type=_whole,
        metavar="N",
        help="rows per forward pass of a process; smaller ones accumulate (default: as many as a step has)",
    )
    course.add_argument("--learning-rate", type=_above_zero, help="default: 1.2 / hidden size")
    course.add_argument(
        "--max-length", type=_whole, default=2048, metavar="TOKENS", help="default: %(default)s"
    )
    course.add_argument(
        "--train-rows",
        type=_whole,
        metavar="N",
        help="train on so many of the training rows, by chance, smaller choices within larger ones: for a forecast",
    )
    course.add_argument("--seed", type=seed_number, default=0, help="default: %(default)s")
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--features",
        choices=("cache", "on-the-fly"),
        default="cache",
        help="hidden states from disk, made once, or from the target at every step (default: %(default)s)",
    )
    machine.add_argument(
        "--cache",
        type=folder_name,
        metavar="DIR",
        help="where rows and features are kept, for runs on the same data to share (default: in --out)",
    )
    machine.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    _device_flag(machine)
    machine.add_argument(
        "--save-every", type=_whole, default=50, metavar="STEPS", help="default: %(default)s"
    )
    machine.add_argument(
        "--evaluate-every", type=_whole, default=100, metavar="STEPS", help="default: %(default)s"
    )
    machine.add_argument(
        "--held-out-rows", type=_whole, default=64, metavar="N", help="looked at then (default: %(default)s)"
    )
    machine.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, and the size of the cache"
    )
    _json_flag(parser)


def _add_evaluate(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("evaluate", help="acceptance of a draft on held-out prompts, without a server")
    parser.add_argument("draft", metavar="DRAFT", help="its folder: config.json and model.safetensors")
    parser.add_argument("--target", required=True, metavar="FOLDER", help="the model it drafts for")
    parser.add_argument(
        "--data", required=True, action="append", metavar="PATH", help="held-out rows; as for `train`"
    )
    parser.add_argument(
        "--max-draft-tokens",
        type=_whole,
        default=6,
        metavar="K",
        help="chains of 1..K (default: %(default)s)",
    )
    parser.add_argument(
        "--tree",
        type=_tree,
        metavar="STEPS,TOPK,TOKENS",
        help="also a tree, in SGLang's numbers, e.g. 5,4,8",
    )
    parser.add_argument("--temperature", type=_temperature, default=0.0, help="default: %(default)s")
    parser.add_argument(
        "--proposals",
        choices=("greedy", "sampled"),
        default="greedy",
        help="at a temperature: the draft's most likely token, as engines do by default, or a sample of its own",
    )
    parser.add_argument(
        "--answers",
        choices=("regenerated", "recorded"),
        default="regenerated",
        help="by the target now, or as in the data (then made by this target at this temperature); "
        "default: %(default)s",
    )
    parser.add_argument(
        "--max-tokens", type=_whole, default=256, help="per regenerated answer (default: %(default)s)"
    )
    parser.add_argument("--num-prompts", type=_whole, metavar="N", help="only the first so many")
    parser.add_argument(
        "--max-length", type=_whole, default=8192, metavar="TOKENS", help="default: %(default)s"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32", help="of the target")
    parser.add_argument("--seed", type=seed_number, default=0, help="default: %(default)s")
    _device_flag(parser)
    _json_flag(parser)


def _add_demo(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("demo", help="data, training, export, serving and forecast, in miniature")
    parser.add_argument(
        "--dir",
        default="studies/drafter-demo",
        type=folder_name,
        help="given again, it is resumed (default: %(default)s)",
    )
    parser.add_argument(
        "--scale",
        type=_above_zero,
        default=1.0,
        metavar="F",
        help="prompts and training steps, times this; 1: about 38 minutes on 2 cores (default: %(default)s)",
    )
    _json_flag(parser)


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _device_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s"
    )


def _whole(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= value <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _above_zero(text: str) -> float:
    if not 0 < _number(text) < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return float(text)


def _temperature(text: str) -> float:
    """Below the least of them logits divided by it are no numbers any more, and 0 is meant."""
    value = _number(text)
    if value != 0 and not LEAST_TEMPERATURE <= value <= 100:
        raise argparse.ArgumentTypeError(f"must be 0, or from {LEAST_TEMPERATURE} to 100, got {text!r}")
    return value


def _layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be layer numbers such as 2,15,27, got {text!r}")
    return tuple(map(int, parts))


def _tree(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be steps, topk and tokens such as 5,4,8, got {text!r}")
    return int(parts[0]), int(parts[1]), int(parts[2])
