"""``spectune drafter inspect | data | export | forecast``: arguments in, words or one JSON document out."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from spectune.api.blocking import run_interruptible
from spectune.bench.prompts import CATEGORIES
from spectune.cli.drafter.args import LEAST_TEMPERATURE
from spectune.cli.output import say, show, show_json
from spectune.drafter.data.chat_encoder import TokenizerEncoder
from spectune.drafter.data.likelihood import Likelihood, check_likelihood
from spectune.drafter.data.manifest import Manifest, read_manifest
from spectune.drafter.data.plan_records import DataSampling, PlanRequest
from spectune.drafter.data.regenerate import regenerate
from spectune.drafter.data.request import DataRequest, Progress
from spectune.drafter.data.sources import PromptSource
from spectune.errors import BadInput

_LINE_EVERY_S = 5.0
_OWN_FIELDS = {
    **dict.fromkeys(("messages", "prompt"), "the prompts (--prompts, --generate)"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "--max-tokens"),
    "model": "--model",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "n": "one answer to each prompt",
    "stream": "answers are read whole",
}


def run_data_commands(args: argparse.Namespace) -> int:
    """One of the four; returns the exit code."""
    if args.drafter_command == "inspect":
        from spectune.cli.drafter.inspect import inspect_command

        return inspect_command(args)
    if args.drafter_command == "export":
        from spectune.cli.drafter.export import export_command

        return export_command(args)
    if args.drafter_command == "forecast":
        from spectune.cli.drafter.forecast import forecast_command

        return forecast_command(args)
    return data_command(args)


def data_command(args: argparse.Namespace) -> int:
    """1 if the answers are shown not to be the target's own, or if more than a tenth of the prompts failed."""
    manifest: Manifest
    if args.url is not None and args.study is not None:
        raise BadInput("--url and --study: one server answers; give its address, or the study that starts it")
    if args.replicas is not None and args.study is None:
        raise BadInput("--replicas: they are servers of a study; give it with --study FILE")
    if args.check_likelihood and not args.target:
        raise BadInput("--check-likelihood needs --target FOLDER, the target's weights")
    if args.url is not None:
        manifest = run_interruptible(
            regenerate(args.url.rstrip("/").removesuffix("/v1"), data_request(args), **server_options(args)),
            on_signal=lambda name: say("stopping; finished samples are kept" if ":" in name else name),
            resume_hint=f"Run the same command again to go on with {args.out}",
        )
    elif args.study is not None:
        manifest = _through_study(args)
    elif args.check_likelihood:
        manifest = read_manifest(Path(args.out))
    else:
        raise BadInput(
            "--url: give the address of a running server of the target, e.g. http://127.0.0.1:8000, or --study with "
            "the study file of a server to start"
        )
    likelihood = None
    if args.check_likelihood:
        likelihood = check_likelihood(Path(args.out), target=args.target, num_rows=args.check_likelihood)
    if args.json:
        document = {
            "manifest": manifest.model_dump(mode="json"),
            "likelihood": None if likelihood is None else likelihood.model_dump(mode="json"),
        }
        show_json(json.dumps({"schema_version": 1, **document}, indent=1, ensure_ascii=False) + "\n")
    else:
        show([*data_lines(manifest, Path(args.out)), *likelihood_lines(likelihood)])
    bad = manifest.num_failed > manifest.num_prompts / 10 or manifest.num_rows == 0
    return 1 if bad or (likelihood is not None and likelihood.own_answers is False) else 0


def _through_study(args: argparse.Namespace) -> Manifest:
    from spectune.cli.drafter.study import data_through_study

    if args.engine != "auto" or args.model is not None:
        raise BadInput("--engine, --model: the study says both; leave them out with --study")
    # Replicas make it on their nodes.
    encoder = _encoder(args) if args.replicas is None else None
    _json_object("--template-kwargs", args.template_kwargs)
    return data_through_study(
        args,
        data_request(args),
        say=say,
        interrupted=lambda name: say(name.replace("what was measured", "every finished sample")),
        encoder=encoder,
        on_progress=DataProgress(),
        on_message=say,
        **({"target_name": args.target} if args.target else {}),
    )


def data_request(args: argparse.Namespace) -> DataRequest:
    """Raises ``BadInput``."""
    sources = [PromptSource("generated", count=args.generate)] if args.generate else []
    sources += [PromptSource(name) for name in args.prompts]
    categories = CATEGORIES if args.categories is None else tuple(filter(None, args.categories.split(",")))
    try:
        temperatures = tuple(float(part) for part in args.temperature.split(","))
    except ValueError:
        temperatures = ()
    if not temperatures or not all(value == 0 or LEAST_TEMPERATURE <= value <= 10 for value in temperatures):
        raise BadInput(
            f"--temperature: 0 or numbers from {LEAST_TEMPERATURE} to 10, separated by commas, got "
            f"{args.temperature!r}"
        )
    if not 0 < args.top_p <= 1:
        raise BadInput(f"--top-p: above 0 and at most 1, got {args.top_p}")
    if not 0 < args.request_timeout < 1e6:
        raise BadInput(f"--request-timeout: must be above 0, got {args.request_timeout}")
    return DataRequest(
        out=Path(args.out),
        prompts=PlanRequest(
            sources=tuple(sources),
            sampling=DataSampling(
                max_tokens=args.max_tokens,
                temperatures=temperatures,
                top_p=args.top_p,
                seed=args.seed,
                extra_body=_extra_body(args.extra_body),
            ),
            turns=args.turns,
            seed=args.seed,
            held_out_frac=args.held_out,
            shard_size=args.shard_size,
            limit=args.num_prompts,
            categories=categories,
        ),
        concurrency=args.concurrency or DataRequest.concurrency,
        request_timeout_s=args.request_timeout,
        redo_damaged=args.redo_damaged,
        retry_failed=args.retry_failed,
    )


def server_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of ``regenerate`` beside the address and the request."""
    return {
        "api_key": os.environ.get(args.api_key_env) or None,
        "engine": args.engine,
        "model": args.model,
        "encoder": _encoder(args),
        "target_name": args.target,
        "on_progress": DataProgress(),
        "on_message": say,
    }


def _encoder(args: argparse.Namespace) -> TokenizerEncoder | None:
    kwargs = _json_object("--template-kwargs", args.template_kwargs)
    return TokenizerEncoder.load(args.tokenizer, template_kwargs=kwargs) if args.tokenizer else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _extra_body(text: str | None) -> dict[str, Any]:
    """Fields that decide what is asked and recorded are not among those that can be merged in."""
    body = _json_object("--extra-body", text)
    taken = [f"{key}: {_OWN_FIELDS[key]}" for key in body if key in _OWN_FIELDS]
    if taken:
        raise BadInput(
            f"--extra-body: set otherwise, so that the data say what was asked: {'; '.join(taken)}"
        )
    return body


def _json_object(flag: str, text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{flag}: holds half of a surrogate pair, which cannot be sent as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{flag}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput(f"{flag}: must be a JSON object, got {type(value).__name__}")
    return value


class DataProgress:
    """A line now and then: how far, how fast, how long still."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_EVERY_S and progress.done < progress.total:
            return
        self._last = now
        tally = progress.tally
        words = [f"{progress.done}/{progress.total} prompts", f"{tally.answer_tokens} answer tokens"]
        if progress.tok_per_s is not None:
            words.append(f"{progress.tok_per_s:.0f} tok/s")
        if tally.empty or tally.failed or tally.retried:
            words.append(f"{tally.empty} empty, {tally.failed} failed, {tally.retried} asked again")
        if progress.left_s is not None and progress.done < progress.total:
            words.append(f"about {progress.left_s / 60:.0f} min left")
        say(", ".join(words))


def data_lines(manifest: Manifest, out: Path) -> list[str]:
    """The data set in words."""
    rate = "" if manifest.tok_per_s is None else f" at {manifest.tok_per_s:.0f} tok/s"
    parts = ", ".join(f"{name} {count}" for name, count in manifest.rows_by_split.items())
    lines = [
        f"{out}: {manifest.num_rows} rows ({parts}), {manifest.answer_tokens} answer tokens{rate}, "
        f"{len(manifest.files)} Parquet files",
        f"prompts: {manifest.num_prompts}, and {manifest.num_duplicate_prompts} duplicates left out",
        f"left out: {manifest.num_empty} empty answers, {manifest.num_failed} that failed twice",
        "categories: " + ", ".join(f"{name} {count}" for name, count in manifest.rows_by_category.items()),
    ]
    compared = sum(run.end.num_compared for run in manifest.runs if run.end is not None)
    origin = ", ".join(f"{name} {count}" for name, count in manifest.token_ids_from.items())
    lines.append(f"token ids from: {origin}; renderings compared with the server's and equal: {compared}")
    lines += _replica_lines(manifest)
    lines += [f"  failed: {failure}" for failure in manifest.failures[:5]]
    if manifest.num_failed:
        lines.append("the same command with --retry-failed asks these prompts again")
    if not manifest.complete:
        lines.append("not complete: run the same command again")
    return lines


def _replica_lines(manifest: Manifest) -> list[str]:
    """Of the last run, where it was one of replicas."""
    replicas = [r for run in manifest.runs[-1:] if run.end is not None for r in run.end.replicas]
    if not replicas:
        return []
    nodes = sorted({node for replica in replicas for node in replica.nodes})
    again = sum(replica.num_starts - 1 for replica in replicas)
    servers = sum(replica.num_server_starts for replica in replicas)
    return [
        f"replicas: {len(replicas)} on {', '.join(nodes)}; started again {again} times; {servers} servers started"
    ]


def likelihood_lines(likelihood: Likelihood | None) -> list[str]:
    """The check of ``--check-likelihood`` in words."""
    if likelihood is None:
        return []
    verdicts = {
        True: "these are the target's own answers",
        False: "these are NOT the target's own answers: regenerate them with it",
        None: "cannot tell: check more rows",
    }
    return [
        f"likelihood over {likelihood.num_rows} rows, {likelihood.num_tokens} tokens: {likelihood.nll_nats:.3f} nats "
        f"per token, {likelihood.expected_nats:.3f} expected of its own; excess {likelihood.excess_nats:+.3f} "
        f"[{likelihood.excess_low_nats:+.3f}, {likelihood.excess_high_nats:+.3f}]; "
        f"{likelihood.top1_frac:.0%} are its first choice",
        verdicts[likelihood.own_answers],
    ]
