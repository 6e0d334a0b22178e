"""``spectune bench URL``: everything a trial measures, against a server that is already running."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from spectune import __version__
from spectune.analysis.summary import summarize
from spectune.api.blocking import run_interruptible
from spectune.bench.prompts import load_prompts, merge_prompts
from spectune.cli.output import say, show_json
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.study import EngineSettings, PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.domain.workload import WAVES, LoadPoint, Sampling, Workload, too_few_requests
from spectune.engines.registry import ENGINE_NAMES, adapter_for
from spectune.errors import BadInput, EnvironmentFailed
from spectune.hosts.machine_facts import read_machine
from spectune.report.bench_table import bench_table
from spectune.report.vllm_result import vllm_bench_result
from spectune.runner.measure import Measured, Measurement
from spectune.server.detect import detect_engine, served_model
from spectune.server.phases import PhaseClock
from spectune.server.probe import read_facts
from spectune.store.study_dir import check_output_file, write_atomically
from spectune.transport import HttpClient

T = TypeVar("T")
_NOT_ABOUT_ONE_SERVER = frozenset({"no-baseline", "launch-noise-unknown"})


def bench_command(args: argparse.Namespace) -> int:
    args.url = args.url.rstrip("/").removesuffix("/v1")  # people paste the URL their client library wants
    workload = _workload(args)
    if args.save_result is not None:  # before it is measured
        check_output_file(f"--save-result {args.save_result or repr('')}", Path(args.save_result))
    study, trial = run_interruptible(
        _bench(args, workload), on_signal=say, resume_hint="Nothing was changed on the server"
    )
    summary = summarize(study, [trial])
    findings = [f for f in summary.findings if f.code not in _NOT_ABOUT_ONE_SERVER]
    results = [vllm_bench_result(trial, i, api=workload.api) for i in range(len(trial.loads))]
    document = {
        "schema_version": 1,
        "url": args.url,
        "server": None if trial.server is None else trial.server.model_dump(mode="json"),
        "loads": results,
        "findings": [f.model_dump(mode="json") for f in findings],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if args.save_result is not None:
        try:
            write_atomically(Path(args.save_result), text)
        except OSError as error:
            raise EnvironmentFailed(f"--save-result {args.save_result}: {error.strerror}") from error
    if args.json:
        show_json(text)
    else:
        Console(highlight=False).print(bench_table(summary.arms[1].loads, findings))
    failed = any(load.failed for load in trial.loads)
    return 1 if failed else 0


def _workload(args: argparse.Namespace) -> Workload:
    sources = args.prompts or ["builtin"]
    sets = [load_prompts(source, limit=args.num_prompts, turns=args.turns) for source in sources]
    extra = _json_object(args.extra_body) if args.extra_body else {}
    loads = [LoadPoint.closed(c) for c in _numbers("--concurrency", args.concurrency, _whole)]
    loads += [LoadPoint.open(r) for r in _numbers("--request-rate", args.request_rate, _rate)]
    if not 0 <= args.temperature <= 100:
        raise BadInput(f"--temperature: must be a number of at least 0, got {args.temperature}")
    if not 0 < args.request_timeout < 1e6:
        raise BadInput(f"--request-timeout: must be above 0, got {args.request_timeout}")
    most = max((load.streams for load in loads), default=1)
    if args.num_requests is not None and args.num_requests < most:
        raise BadInput(f"--num-requests: {too_few_requests(args.num_requests, most)}")
    return Workload(
        prompts=merge_prompts(sets, limit=args.num_prompts),
        sampling=Sampling(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            seed=args.seed,
            ignore_eos=args.ignore_eos,
            extra_body=extra,
        ),
        loads=tuple(loads) or (LoadPoint.closed(1),),
        api=args.api,
        requests_per_load=args.num_requests,
        waves=None if args.num_requests is not None else WAVES,
        request_timeout_s=args.request_timeout,
    )


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 4096:
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value


def _numbers(flag: str, text: str | None, read: Callable[[str], T]) -> list[T]:
    values = []
    for part in (text or "").split(","):
        if part.strip():
            try:
                values.append(read(part.strip()))
            except ValueError:
                limit = "whole numbers from 1 to 4096" if read is _whole else "numbers above 0"
                raise BadInput(
                    f"{flag}: {part.strip()!r} is not valid; give {limit}, separated by commas"
                ) from None
    return values


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"--extra-body: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput(f"--extra-body: must be a JSON object, got {type(value).__name__}")
    return value


class _Quiet:
    """A ``Watcher`` that shows requests only."""

    def on_request(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done}/{total} requests" + ("\n" if done == total else ""))
            sys.stderr.flush()

    def on_phase(self, phase: str) -> None:
        say(phase)


async def _bench(args: argparse.Namespace, workload: Workload) -> tuple[Study, Trial]:
    api_key = os.environ.get(args.api_key_env) or None
    async with HttpClient(args.url, api_key=api_key) as http:
        engine = await detect_engine(http) if args.engine == "auto" else args.engine
        if engine not in (*ENGINE_NAMES, "openai", "fake"):
            raise BadInput(
                f"--engine: {engine!r} is not known; valid: auto, {', '.join(ENGINE_NAMES)}, openai"
            )
        model = args.model or await served_model(http)
        facts = await read_facts(http, adapter_for(engine))
    knobs = facts.effective or Knobs()
    say(
        f"{engine} {facts.version or ''} serves {model}, method {knobs.method if facts.effective else 'unknown'}"
    )
    arm = Arm(name="server", engine=engine, target=model, knobs=knobs, flags={"measured": "as it runs"})
    adapter = adapter_for(engine)
    watcher = _Quiet()
    clock = PhaseClock(on_change=watcher.on_phase)
    loads: list[LoadResult] = []
    started = datetime.now(UTC)
    measurement = Measurement(
        Measured(args.url, model, adapter, api_key=api_key, may_flush=args.flush_cache),
        workload=workload,
        warmup_requests=args.warmup_requests,
        loads=loads,
        clock=clock,
        on_request=watcher.on_request,
    )
    await measurement.run()
    study = Study(
        name="bench",
        question=f"How fast is {args.url}?",
        created_at=started.isoformat(timespec="seconds"),
        spectune_version=__version__,
        machine=read_machine(),
        engine=EngineSettings(name=engine),
        arms=(baseline_arm(engine=engine, target=model), arm),
        plan=(PlannedTrial(arm_id=arm.arm_id, repetition=0),),
        workload=workload,
        warmup_requests=args.warmup_requests,
    )
    trial = Trial(
        trial_id="0001-" + arm.arm_id,
        number=1,
        arm=arm,
        arm_id=arm.arm_id,
        repetition=0,
        workload_hash=workload.workload_hash,
        status="complete",
        hypothesis=Hypothesis(
            compared_with=None,
            changed=(),
            expectation="reference",
            predicted_tok_per_s=None,
            why="a measurement",
        ),
        command=(),
        started_at=started.isoformat(timespec="milliseconds"),
        ended_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        phases_s=clock.seconds,
        server=facts,
        loads=tuple(loads),
        simulated=adapter.simulated,
    )
    return study, trial
