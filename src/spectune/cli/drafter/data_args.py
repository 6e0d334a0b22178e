"""The arguments of ``spectune drafter inspect | data | export | forecast``: imports nothing that takes time."""

from __future__ import annotations

import argparse

from spectune.engines.registry import ENGINE_NAMES

EXPORT_ENGINES = ("sglang", "vllm", "speculators", "llamacpp")


def add_data_commands(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the four commands to the subparsers of ``drafter`` (``dest="drafter_command"``)."""
    _add_inspect(sub)
    _add_data(sub)
    _add_export(sub)
    _add_forecast(sub)


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _add_inspect(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("inspect", help="what a draft is, and what each engine will make of it")
    parser.add_argument("path", metavar="PATH", help="a draft's folder, GGUF file or hub id")
    parser.add_argument("--target", help="the model it drafts for: more can be judged with it")
    for engine in ENGINE_NAMES:
        parser.add_argument(f"--{engine}-version", metavar="VERSION", help="default: the newest known")
    _json_flag(parser)


def _add_data(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("data", help="answers of the target to many prompts, as training data")
    parser.add_argument(
        "--out",
        required=True,
        type=folder_name,
        metavar="DIR",
        help="the data set; given again, it is resumed",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="a running server of the target, e.g. http://127.0.0.1:8000")
    server.add_argument(
        "--study", metavar="FILE", help="a study file: its server is started, asked, and stopped again"
    )
    server.add_argument("--arm", default="baseline", help="of the study (default: %(default)s)")
    server.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    server.add_argument(
        "--replicas",
        type=_whole,
        metavar="N",
        help="so many of the study's servers at once, on a Ray cluster (`host: ray` in the study)",
    )
    server.add_argument(
        "--context",
        type=_whole,
        metavar="TOKENS",
        help="per request of a llama.cpp that the study starts (default: the study's)",
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--generate", type=_whole, metavar="N", help="so many prompts of the built-in generator"
    )
    prompts.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="JSON Lines or a JSON list: prompt, turns, messages or ShareGPT conversations; repeatable",
    )
    prompts.add_argument("--categories", help="of the generator, e.g. code,maths (default: all six)")
    prompts.add_argument("--turns", choices=("first", "all"), default="first", help="default: %(default)s")
    prompts.add_argument("--num-prompts", type=_whole, metavar="N", help="at most so many in all")
    prompts.add_argument(
        "--held-out",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="kept from training (default: %(default)s)",
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument("--max-tokens", type=_whole, default=512, help="per answer (default: %(default)s)")
    answers.add_argument(
        "--temperature",
        default="0",
        help="one, or several dealt to the prompts by chance, e.g. 0,0.7 (default: %(default)s)",
    )
    answers.add_argument("--top-p", type=float, default=1.0, help="default: %(default)s")
    answers.add_argument(
        "--seed", type=seed_number, default=0, help="of prompts and answers (default: %(default)s)"
    )
    answers.add_argument("--extra-body", help="JSON object merged into every request body")
    answers.add_argument(
        "--concurrency",
        type=_whole,
        help="requests in flight, of each replica (default: 64; 16 with a llama.cpp that the study starts)",
    )
    answers.add_argument("--engine", default="auto", help="llamacpp, vllm, sglang, openai, or auto (default)")
    answers.add_argument("--model", help="served model name (default: the first one listed)")
    answers.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="the target's, for servers that return no token ids; elsewhere it is compared with the server's",
    )
    answers.add_argument(
        "--template-kwargs", help='JSON object for the chat template, e.g. {"enable_thinking": false}'
    )
    answers.add_argument("--request-timeout", type=float, default=600.0, metavar="SECONDS")
    answers.add_argument(
        "--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="default: %(default)s; never logged"
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--shard-size", type=_whole, default=1000, help="prompts per Parquet file (default: %(default)s)"
    )
    files.add_argument(
        "--redo-damaged", action="store_true", help="answer the prompts of damaged files again"
    )
    files.add_argument("--retry-failed", action="store_true", help="ask again what failed twice")
    check = parser.add_argument_group("check")
    check.add_argument(
        "--check-likelihood",
        type=_whole,
        metavar="N",
        help="how likely the target finds N of the answers; another model's are found out (needs torch)",
    )
    check.add_argument("--target", metavar="FOLDER", help="the target's weights, for --check-likelihood")
    _json_flag(parser)


def _add_export(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("export", help="the same draft for SGLang, vLLM and llama.cpp")
    parser.add_argument("path", metavar="DRAFT", help="a draft's folder (config.json and safetensors)")
    parser.add_argument(
        "--out", required=True, type=folder_name, metavar="DIR", help="gets one folder or file per form"
    )
    parser.add_argument(
        "--for",
        dest="engines",
        default="all",
        help=f"comma-separated from {', '.join(EXPORT_ENGINES)} (default: all that the arguments allow)",
    )
    parser.add_argument("--target", required=True, help="the model it drafts for: its folder or GGUF file")
    parser.add_argument(
        "--target-gguf",
        metavar="FILE",
        help="the target as llama.cpp serves it: its tokenizer goes into the GGUF",
    )
    parser.add_argument(
        "--gguf-type", choices=("q8_0", "f16", "bf16", "f32"), default="q8_0", help="default: %(default)s"
    )
    parser.add_argument(
        "--layers",
        metavar="I,J,K",
        help="target layers whose inputs it reads, if its configuration is unclear",
    )
    parser.add_argument(
        "--verifier-name", help="the target's name in the speculators form (default: --target)"
    )
    parser.add_argument(
        "--num-draft-tokens",
        type=_whole,
        default=3,
        help="written into the speculators form (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="replace what is in --out")
    _json_flag(parser)


def _add_forecast(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = sub.add_parser("forecast", help="what more data would buy, in tokens per second, and what to do")
    parser.add_argument(
        "evaluations",
        nargs="*",
        metavar="SAMPLES=FILE",
        help="JSON of `drafter evaluate` for a draft trained on so many samples, e.g. 1000=eval-1k.json",
    )
    parser.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="SAMPLES=LENGTH",
        help="a measured acceptance length, e.g. 1000=1.9, with its standard error 1000=1.9+-0.02; repeatable",
    )
    parser.add_argument(
        "--category-point",
        action="append",
        default=[],
        metavar="CATEGORY:SAMPLES=LENGTH",
        help="the same for one category; repeatable",
    )
    parser.add_argument(
        "--num-draft-tokens",
        type=_whole,
        metavar="K",
        help="bounds the length at K + 1; files: the chain that is used",
    )
    parser.add_argument(
        "--at", metavar="N,M", help="data sizes to forecast (default: 3x and 10x the largest)"
    )
    parser.add_argument(
        "--check-last", action="store_true", help="forecast the largest measured point from the others"
    )
    speed = parser.add_argument_group("speed")
    speed.add_argument("--baseline-tok-s", type=float, help="without speculation")
    speed.add_argument("--step-cost-s", type=float, help="seconds per verify step")
    speed.add_argument(
        "--explain", metavar="FILE", help="`spectune explain --json` of a study, instead of both"
    )
    speed.add_argument("--arm", help="the arm of --explain (default: its best one with a drafter)")
    speed.add_argument("--goal", type=float, default=1.3, help="speedup aimed at (default: %(default)s)")
    cost = parser.add_argument_group("cost of training")
    cost.add_argument("--train-s-per-sample", type=float, help="seconds of training per sample, all epochs")
    cost.add_argument("--data-s-per-sample", type=float, help="seconds of answering per sample")
    cost.add_argument("--price-per-hour", type=float, help="of the machine")
    parser.add_argument(
        "--seed", type=seed_number, default=0, help="of the resampling (default: %(default)s)"
    )
    _json_flag(parser)


def folder_name(text: str) -> str:
    """An empty one would be the folder that the command runs in: a shell's variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must be the path of a folder, got {text!r}")
    return text


def seed_number(text: str) -> int:
    """Small enough for every generator that is begun with it, and for what engines take."""
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {2**31 - 1}, got {text!r}")
    return value


def _whole(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= value <= 10_000_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10000000, got {text!r}")
    return value
