"""`drafter data` through replicas on a Ray of several nodes here: every prompt exactly once, and at what rate.

    .venv-ray/bin/python benchmarks/data_replicas.py [--engine llamacpp] [--replicas 3] [--kill 2] [--json FILE]

First one replica answers its share of prompts, then N replicas N shares, then one again; each through `spectune drafter
data` and a server of its own. The rate is the answer tokens from the moment the first server answers until the last
sample is written, so replicas that come later, the tail and restarts are in it. It is set against N times the mean of
the two runs of one replica. ``--kill 2`` kills a replica's process twice while it works (SIGKILL, the second time the
one that was started again): its server dies by its lease, its batches are repeated. The kill is in the rate as well.

``--engine fake`` sleeps instead of computing: it shows what Ray Data, the driver and kills cost, and is never a
measurement of an engine. ``--engine llamacpp`` has one thread per replica, and each node in a control group with SHARE
of one core (root is needed), so that three of them and the driver fit two cores.

Exit code 1 unless every prompt is there exactly once and nothing is left running. Under 3 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from ray_study import Groups

from spectune.home import data_home

ENGINES = {
    "llamacpp": "engine: {name: llamacpp, flags: {threads: 1}}\ntarget: smollm2-135m-instruct\n",
    "fake": "engine: {name: fake, flags: {tokens-per-s: 32}}\ntarget: fake-model\n",
}
REST = "question: none\nhost: ray\narms: [{method: ngram, num_draft_tokens: 3}]\nlease_s: 10\n"


def run_data(
    folder: Path, address: str, args: argparse.Namespace, *, name: str, replicas: int, kill: int
) -> dict[str, Any]:
    """One data set, and what is wrong with it."""
    num_prompts = args.prompts * replicas
    words = ["drafter", "data", "--study", "study.yaml", "--out", name, "--replicas", str(replicas)]
    words += ["--generate", str(num_prompts), "--max-tokens", str(args.max_tokens)]
    words += ["--concurrency", str(args.concurrency), "--seed", str(len(name))]
    words += ["--context", "1024"] if args.engine == "llamacpp" else []
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "spectune", *words],
            cwd=folder,
            env={**os.environ, "RAY_ADDRESS": address},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        killed: list[int] = []
        while process.poll() is None:
            time.sleep(0.1)
            if len(killed) < kill:
                killed += _kill_replica(folder / name, log, killed, num_prompts)
    problems = (
        [] if process.returncode == 0 else [f"exit code {process.returncode}: {log.read_text()[-600:]}"]
    )
    problems += [] if len(killed) == kill else [f"only {len(killed)} of {kill} kills found their replica"]
    return {"name": name, "killed": killed, "problems": problems, **_read(folder / name, num_prompts)}


def _kill_replica(out: Path, log: Path, killed: list[int], num_prompts: int) -> list[int]:
    """The first replica's process, once it has had time to answer, and then the one that came in its place."""
    processes = [int(pid) for pid in re.findall(r"^replica 1 on \S+: process (\d+)", log.read_text(), re.M)]
    written = sum(len(p.read_bytes().splitlines()) for p in (out / "journal").glob("*.jsonl"))
    if processes and processes[-1] not in killed and written >= num_prompts * (1 + len(killed)) // 5:
        os.kill(processes[-1], signal.SIGKILL)
        return [processes[-1]]
    return []


def _read(out: Path, num_prompts: int) -> dict[str, Any]:
    prompts = out / "prompts.jsonl"
    lines = prompts.read_text(encoding="utf-8").splitlines() if prompts.exists() else []
    planned = [json.loads(line)["prompt"]["prompt_id"] for line in lines]
    files = sorted((out / "parts").glob("*.parquet"))
    ids = [row["prompt_id"] for file in files for row in parquet.read_table(file).to_pylist()]
    manifest = json.loads((out / "manifest.json").read_text()) if (out / "manifest.json").exists() else {}
    ends = [run["end"] for run in manifest.get("runs", []) if run["end"] is not None]
    rate = ends[-1]["completion_tokens"] / ends[-1]["elapsed_s"] if ends else None
    return {
        "num_prompts": num_prompts,
        "num_rows": len(ids),
        "exactly_once": sorted(ids) == sorted(planned) and len(planned) == num_prompts,
        "tok_per_s": rate,
        "elapsed_s": ends[-1]["elapsed_s"] if ends else None,
        "replicas": ends[-1]["replicas"] if ends else [],
    }


def measure(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[int]]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    fixture = importlib.import_module("ray_cluster_fixture")
    is_pinned = args.engine == "llamacpp"
    groups = Groups(args.share)
    with tempfile.TemporaryDirectory(prefix="spectune-ray-") as parent, contextlib.ExitStack() as stack:
        folder = Path(parent)
        home = folder / "home"
        home.mkdir()
        (home / "models").symlink_to(data_home() / "models")
        (folder / "study.yaml").write_text(ENGINES[args.engine] + REST)
        if is_pinned:
            stack.callback(groups.remove)
        cluster = stack.enter_context(fixture.ray_nodes(home))
        for number in range(args.replicas):
            name = f"node{number}"
            with groups.inside(groups.make(name)) if is_pinned else contextlib.nullcontext():
                cluster.add(name)
        cluster.wait()
        if is_pinned:
            groups.limit()
        runs = []
        for name, replicas in (("before", 1), ("all", args.replicas), ("after-it", 1)):
            kill = args.kill if name == "all" else 0
            runs.append(run_data(folder, cluster.address, args, name=name, replicas=replicas, kill=kill))
            print(line_of(runs[-1]), flush=True)
        deadline = time.monotonic() + 30
        while cluster.servers() and time.monotonic() < deadline:
            time.sleep(0.2)
        return runs, [process.pid for process in cluster.servers()]


def line_of(run: dict[str, Any]) -> str:
    shares = ", ".join(
        f"{'+'.join(r['nodes'])}: {r['num_samples']} in {r['num_starts']} starts" for r in run["replicas"]
    )
    rate = (
        "unknown" if run["tok_per_s"] is None else f"{run['tok_per_s']:.1f} tok/s in {run['elapsed_s']:.1f} s"
    )
    once = "every prompt exactly once" if run["exactly_once"] else "NOT every prompt exactly once"
    return f"{run['name']}: {rate}; {run['num_rows']} rows of {run['num_prompts']} prompts, {once} ({shares})"


def main() -> int:
    args = parse()
    runs, left = measure(args)
    problems = [f"{run['name']}: {text}" for run in runs for text in run["problems"]]
    problems += [f"{run['name']}: not every prompt exactly once" for run in runs if not run["exactly_once"]]
    problems += [f"left running: {left}"] if left else []
    before, together, after = (run["tok_per_s"] for run in runs)
    share = None
    if before and together and after:
        own = (before + after) / 2
        share = together / (args.replicas * own)
        print(
            f"{args.replicas} replicas, {args.kill} kills: {together:.1f} tok/s, {share:.1%} of the sum of their own "
            f"({args.replicas} x {own:.1f}; one replica before {before:.1f}, after {after:.1f})"
        )
    if args.engine == "fake":
        print(
            "the engine is simulated: this says what Ray Data, the driver and kills cost, and nothing of speed"
        )
    for problem in problems:
        print(f"PROBLEM {problem}")
    if args.json:
        document = {**vars(args), "json": None, "runs": runs, "share_of_sum": share, "problems": problems}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=tuple(ENGINES), default="fake")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--kill", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--prompts", type=int, default=96, help="per replica (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=4, help="of one replica (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.5, help="of one core, per node, with llama.cpp")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
