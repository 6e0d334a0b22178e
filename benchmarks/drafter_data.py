"""What share of a batch server's own maximum `drafter data` reaches, at the same concurrency.

The maximum: a closed loop of the same requests straight through the HTTP client, which keeps nothing and asks for
no token ids. `drafter data`: the call from start to finish, with its plan, journal, Parquet files and manifest.
Both run against one server that spectune starts, in turns (the order changes from round to round), on prompts that
are new in every round, without prompt caches. Tokens are the server's `usage`. The ratio is of the two rates of one
round; the interval is over rounds, on the log scale. `steady` is the closed loop's rate until the first of its
workers runs out of requests, so that its own tail is left out, too.

    python benchmarks/drafter_data.py                                    # the embedded llama.cpp
    python benchmarks/drafter_data.py --engine vllm --python V/bin/python --target MODEL_FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spectune.cluster.data_server import for_streams
from spectune.cluster.machine import machine_of
from spectune.domain.study import Study
from spectune.drafter.data.generator import GeneratedPrompt, generate_prompts
from spectune.drafter.data.plan_records import DataSampling, PlanRequest
from spectune.drafter.data.regenerate import regenerate
from spectune.drafter.data.request import DataRequest
from spectune.drafter.data.sources import PromptSource
from spectune.embedded.models import TARGET
from spectune.home import data_home
from spectune.hosts.choose import host_called
from spectune.runner.launch import serve_arm
from spectune.runner.plan import resolve_study
from spectune.runner.study import fetch_models
from spectune.statistics.intervals import geometric_mean_interval
from spectune.study_file.load import load_study_file
from spectune.transport import HttpClient

CONTEXT_TOKENS = 512
NO_CACHE: dict[str, dict[str, Any]] = {"llamacpp": {"cache_prompt": False}}


@dataclass(frozen=True)
class Round:
    """Rates in answer tokens per second."""

    loop_tok_per_s: float
    loop_steady_tok_per_s: float
    data_tok_per_s: float
    loop_tokens: int
    data_tokens: int


def study_of(options: argparse.Namespace, folder: Path) -> Study:
    engine: dict[str, Any] = {"name": options.engine}
    if options.engine == "llamacpp":
        engine["env"] = {"GOMP_SPINCOUNT": "1000"}
    else:
        engine["python"] = str(options.python)
        engine["flags"] = {
            "max-model-len": CONTEXT_TOKENS + options.max_tokens,
            "max-num-seqs": options.concurrency,
            "enforce-eager": True,
            "no-enable-prefix-caching": True,
        }
        engine["env"] = {"VLLM_CPU_KVCACHE_SPACE": "1"} if options.cpu else {}
    study = {
        "question": "none",
        "engine": engine,
        "target": options.target,
        "arms": [{"method": "ngram", "num_draft_tokens": 3}],
        "workload": {"prompts": "builtin", "num_prompts": 2},
    }
    path = folder / "study.yaml"
    path.write_text(json.dumps(study))
    spec, _, document = load_study_file(path, overrides=[])
    machine = asyncio.run(machine_of("local"))
    resolved = resolve_study(spec, document, path=path, machine=machine)
    context = CONTEXT_TOKENS + options.max_tokens
    return for_streams(resolved, options.concurrency, context_tokens=context)


async def closed_loop(
    url: str, model: str, prompts: list[GeneratedPrompt], *, concurrency: int, max_tokens: int, extra: dict
) -> tuple[float, float, int]:
    """Tokens per second over everything, the same until the first worker is idle, and the tokens."""
    waiting = iter(prompts)
    answers: list[tuple[float, float, int]] = []
    idle_s: list[float] = []
    async with HttpClient(url) as http:
        began = time.monotonic()

        async def work() -> None:
            for prompt in waiting:
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": prompt.text}],
                    "max_tokens": max_tokens,
                    "temperature": 0.0,
                    **extra,
                }
                start_s = time.monotonic() - began
                reply = await http.request("POST", "/v1/chat/completions", body, timeout_s=600)
                assert reply.status == 200, reply.text[:300]
                tokens = reply.json()["usage"]["completion_tokens"]
                answers.append((start_s, time.monotonic() - began, tokens))
            idle_s.append(time.monotonic() - began)

        await asyncio.gather(*(work() for _ in range(concurrency)))
        took_s = time.monotonic() - began
    total = sum(tokens for _, _, tokens in answers)
    steady_s = min(idle_s)
    # Of answers in flight at that moment, the part of their time before it.
    done = sum(
        tokens * min(1.0, (steady_s - start_s) / (end_s - start_s))
        for start_s, end_s, tokens in answers
        if start_s < steady_s
    )
    return total / took_s, done / steady_s, total


async def data(
    url: str, engine: str, *, count: int, seed: int, concurrency: int, max_tokens: int, extra: dict, out: Path
) -> tuple[float, int]:
    """Tokens per second of `drafter data` from its call to its return, and the tokens."""
    plan = PlanRequest(
        sources=(PromptSource("generated", count=count),),
        sampling=DataSampling(max_tokens=max_tokens, extra_body=extra),
        seed=seed,
    )
    began = time.monotonic()
    manifest = await regenerate(url, DataRequest(out, plan, concurrency=concurrency), engine=engine)
    took_s = time.monotonic() - began
    assert manifest.complete and not manifest.num_failed
    end = manifest.runs[-1].end
    assert end is not None
    return end.completion_tokens / took_s, end.completion_tokens


async def measure(options: argparse.Namespace, study: Study, folder: Path) -> list[Round]:
    arm = study.baseline
    models = fetch_models(
        study.model_copy(update={"arms": (arm,)}), home=data_home(), on_fetch=lambda *_: None
    )
    extra = NO_CACHE.get(options.engine, {})
    common = {"concurrency": options.concurrency, "max_tokens": options.max_tokens, "extra": extra}
    rounds: list[Round] = []
    async with serve_arm(
        arm,
        study,
        models=models,
        host=host_called("local", home=data_home()),
        owner=str(folder),
        log_path=folder / "server.log",
        on_message=lambda text: print(f"  {text}", flush=True),
    ) as (handle, _):
        warm = list(generate_prompts(2 * options.concurrency, seed=options.seed))
        await closed_loop(handle.base_url, handle.model, warm, **common)
        for number in range(options.rounds):
            seed = options.seed + 1 + number
            prompts = list(generate_prompts(options.prompts, seed=seed))
            out = folder / f"round-{number}"
            found: dict[str, Any] = {}
            for kind in ("loop", "data") if number % 2 == 0 else ("data", "loop"):
                if kind == "loop":
                    found[kind] = await closed_loop(handle.base_url, handle.model, prompts, **common)
                else:
                    found[kind] = await data(
                        handle.base_url, options.engine, count=options.prompts, seed=seed, out=out, **common
                    )
            (rate, steady, loop_tokens), (data_rate, data_tokens) = found["loop"], found["data"]
            rounds.append(Round(rate, steady, data_rate, loop_tokens, data_tokens))
            print(
                f"round {number + 1}: loop {rate:.1f} tok/s (steady {steady:.1f}), data {data_rate:.1f} tok/s "
                f"= {data_rate / rate:.1%} ({data_rate / steady:.1%} of steady); "
                f"{loop_tokens} and {data_tokens} tokens",
                flush=True,
            )
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    parser.add_argument("--python", type=Path, help="of vLLM's environment")
    parser.add_argument("--target", default=TARGET, help="for vLLM a folder or hub id (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="vLLM without a GPU: a small cache in memory")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=96, help="per round and side (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the rounds as JSON")
    options = parser.parse_args()
    if options.engine == "vllm" and options.python is None:
        parser.error("--engine vllm needs --python: the interpreter of its environment")
    folder = Path(tempfile.mkdtemp(prefix="drafter-data-"))
    try:
        rounds = asyncio.run(measure(options, study_of(options, folder), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, ratios in (
        ("of the closed loop", [r.data_tok_per_s / r.loop_tok_per_s for r in rounds]),
        ("of its steady part", [r.data_tok_per_s / r.loop_steady_tok_per_s for r in rounds]),
    ):
        share = geometric_mean_interval(ratios, unit="share")
        assert share is not None
        spread = "" if share.low is None else f" [{share.low:.1%}, {share.high:.1%}]"
        print(f"drafter data reaches {share.value:.1%}{spread} {name}, n = {share.n} rounds")
    print(
        f"{options.engine}, {options.concurrency} in flight, {options.prompts} prompts of up to "
        f"{options.max_tokens} tokens; {platform.machine()}, {os.cpu_count()} cores"
    )
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(r) for r in rounds], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
