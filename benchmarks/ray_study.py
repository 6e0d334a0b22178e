"""A study of 12 arms on a 4-node Ray on this machine against one of its nodes: wall time, verdicts, and lost nodes.

    .venv-ray/bin/python benchmarks/ray_study.py [--engine llamacpp] [--share 0.42] [--kill 0] [--json FILE]

Nodes of one machine are only worth their name if one of them cannot use the whole of it. Each node here is a raylet in
a control group of its own that may use SHARE of one core (CFS bandwidth control, period 20 ms), its servers and the
client that measures them included; four of them and the driver fit two cores. The one-node run uses one of the same
four nodes, with the same share. Without control groups that may be written (root), the llama.cpp run is refused:
sharing one processor among unpinned nodes would gain nothing, and would show nothing.

``--engine fake`` needs no pinning: its scripted server sleeps instead of computing. It shows what the driver and Ray
cost, and is never a measurement of an engine. ``--kill 2`` runs the study once more at the end, on four nodes of which
two are killed while they measure.

Takes 15 to 20 minutes with llama.cpp, with ``--kill`` 25. Exit code 1 if a verdict is contradicted, a trial was lost or
counted twice, or a process was left running.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectune.home import data_home

NODES = ("a", "b", "c", "d")
PERIOD_US = 20_000
ARMS = {
    "llamacpp": [
        *(
            f"{{name: eagle3-k{k}, method: eagle3, num_draft_tokens: {k}}}"
            for k in (1, 2, 3, 4, 6, 8, 12, 16)
        ),
        *(f"{{name: ngram-k{k}, method: ngram, num_draft_tokens: {k}}}" for k in (2, 4, 8, 16)),
    ],
    "fake": [
        f"{{name: accept-{a}-k{k}, method: eagle3, drafter: d, num_draft_tokens: {k}, flags: {{accept: '{a}'}}}}"
        for a in ("0.0", "0.5", "0.7", "0.9")
        for k in (2, 3, 5)
    ],
}
ENGINES = {
    "llamacpp": "engine: {name: llamacpp, flags: {ctx-size: 1024, threads: 1}}\n"
    "target: smollm2-135m-instruct\ndrafter: smollm2-135m-eagle3\n",
    "fake": "engine: {name: fake, flags: {tokens-per-s: 30, draft-cost: 0.1, startup-delay-s: 3}}\n"
    "target: fake-model\n",
}
WORK = {
    "llamacpp": "{prompts: builtin, num_prompts: 8, max_tokens: 12, ignore_eos: true, warmup_requests: 1}",
    "fake": "{prompts: builtin, num_prompts: 8, max_tokens: 24, ignore_eos: true, warmup_requests: 1}",
}


@dataclass
class Run:
    """One run of the study."""

    nodes: int
    wall_s: float
    returncode: int
    trials: list[dict[str, Any]]
    verdicts: dict[str, str | None]
    speedups: dict[str, float | None]
    folders: int
    killed: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        found = [] if self.returncode == 0 else [f"exit code {self.returncode}"]
        keys = Counter((t["arm_id"], t["repetition"]) for t in self.trials)
        found += [f"{key} was counted {n} times" for key, n in keys.items() if n > 1]
        arms = {t["arm"]["name"] for t in self.trials if t["arm"]["name"] != "baseline"}
        found += [f"{12 - len(arms)} arms are missing"] if len(arms) != 12 else []
        if self.folders != len(self.trials) + len(self.killed):
            found.append(
                f"{self.folders} folders for {len(self.trials)} trials and {len(self.killed)} lost ones"
            )
        return found


class Groups:
    """A control group per node, of version 1 or 2."""

    def __init__(self, share: float) -> None:
        self.share = share
        unified = Path("/sys/fs/cgroup/cgroup.controllers")
        self.is_v2 = unified.exists() and "cpu" in unified.read_text().split()
        self.root = Path("/sys/fs/cgroup" if self.is_v2 else "/sys/fs/cgroup/cpu")
        self.made: list[Path] = []

    def make(self, name: str) -> Path:
        path = self.root / f"spectune-{os.getpid()}-{name}"
        try:
            path.mkdir()
        except OSError as error:
            raise SystemExit(
                f"{path}: cannot make a control group ({error.strerror}); run as root, or --engine fake"
            ) from error
        self.made.append(path)
        return path

    @contextlib.contextmanager
    def inside(self, path: Path) -> Iterator[None]:
        """What is started meanwhile is in the group, and stays there with all that it starts."""
        (path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.root / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self) -> None:
        quota = int(self.share * PERIOD_US)
        for path in self.made:
            if self.is_v2:
                (path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (path / "cpu.cfs_quota_us").write_text(str(quota))

    def throttled(self) -> dict[str, str]:
        return {
            p.name.rpartition("-")[2]: (p / "cpu.stat").read_text().replace("\n", ", ") for p in self.made
        }

    def remove(self) -> None:
        for path in self.made:
            deadline = time.monotonic() + 20
            while path.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    path.rmdir()
                time.sleep(0.2)


def study_text(engine: str, *, name: str, nodes: int) -> str:
    arms = "\n".join(f"  - {arm}" for arm in ARMS[engine])
    return (
        f"question: What do {nodes} nodes bring?\nname: {name}\nhost: ray\nray: {{max_nodes: {nodes}}}\n"
        f"{ENGINES[engine]}arms:\n{arms}\nworkload: {WORK[engine]}\n"
        "repetitions: 1\nbaseline_every: 3\nnoise_floor: false\nlease_s: 15\n"
    )


def run_study(folder: Path, address: str, engine: str, *, nodes: int, cluster: Any, kill: int) -> Run:
    name = f"nodes-{nodes}" + (f"-killed-{kill}" if kill else "")
    path = folder / f"{name}.yaml"
    path.write_text(study_text(engine, name=name, nodes=nodes))
    log = folder / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "spectune", "run", path.name],
            cwd=folder,
            env={**os.environ, "RAY_ADDRESS": address},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        killed: list[str] = []
        while process.poll() is None:
            time.sleep(0.1)
            if len(killed) < kill:
                killed += _kill_one(log, cluster, killed)
    wall_s = time.monotonic() - began
    directory = folder / "studies" / name
    trials = [json.loads(p.read_text()) for p in sorted(directory.glob("trials/*/trial.json"))]
    report = json.loads((directory / "report.json").read_text())
    arms = {a["name"]: a["loads"][0] for a in report["arms"] if a["loads"] and a["name"] != "baseline"}
    return Run(
        nodes,
        wall_s,
        process.returncode,
        trials,
        {name: load["verdict"] for name, load in arms.items()},
        {name: load["speedup"] and load["speedup"]["value"] for name, load in arms.items()},
        len(list(directory.glob("trials/*"))),
        killed,
    )


def _kill_one(log: Path, cluster: Any, killed: list[str]) -> list[str]:
    """Kills a node that has begun an arm, one at a time."""
    for line in log.read_text().splitlines():
        node = line.rpartition("launch 1 on ")[2][:1]
        if line.startswith("[") and "baseline" not in line and node in NODES and node not in killed:
            if len(killed) == 1 and log.read_text().count("lost: ") < 1:
                return []
            cluster.kill(node)
            return [node]
    return []


def contradictions(one: Run, four: Run) -> list[str]:
    """FASTER against SLOWER; SAME against either."""
    found = []
    for name, verdict in one.verdicts.items():
        other = four.verdicts.get(name)
        if "CANNOT_TELL" not in (verdict, other) and verdict != other:
            found.append(f"{name}: {verdict} on one node, {other} on four")
    return found


def main() -> int:
    args = parse()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    fixture = importlib.import_module("ray_cluster_fixture")
    pinned = args.engine == "llamacpp"
    groups = Groups(args.share)
    with tempfile.TemporaryDirectory(prefix="spectune-ray-") as parent, contextlib.ExitStack() as stack:
        folder = Path(parent)
        home = folder / "home"
        home.mkdir()
        (home / "models").symlink_to(data_home() / "models")
        if pinned:
            stack.callback(groups.remove)
        cluster = stack.enter_context(fixture.ray_nodes(home))
        for name in NODES:
            with groups.inside(groups.make(name)) if pinned else contextlib.nullcontext():
                cluster.add(name)
        cluster.wait()
        if pinned:
            groups.limit()
        print(
            f"{len(NODES)} nodes, each with {args.share:g} of a core" if pinned else "4 nodes, not pinned",
            flush=True,
        )
        runs = {}
        plan = {"4 nodes": (4, 0), "1 node": (1, 0)}
        if args.kill:
            plan[f"4 nodes, {args.kill} killed"] = (4, args.kill)
        for title, (nodes, kill) in plan.items():
            run = run_study(folder, cluster.address, args.engine, nodes=nodes, cluster=cluster, kill=kill)
            runs[title] = run
            problems = "; ".join(run.problems) or "no problem"
            print(f"{title}: {run.wall_s:.1f} s, {len(run.trials)} trials, {problems}", flush=True)
        deadline = time.monotonic() + 30
        while cluster.servers() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = [process.pid for process in cluster.servers()]
        throttled = groups.throttled() if pinned else {}
        result = outcome(args, runs, left, throttled)
    print("\n".join(lines_of(result, runs)))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["problems"] else 0


def outcome(
    args: argparse.Namespace, runs: dict[str, Run], left: list[int], throttled: dict[str, str]
) -> dict[str, Any]:
    one, others = runs["1 node"], {title: run for title, run in runs.items() if run.nodes == 4}
    four = runs["4 nodes"]
    against = [f"{title}: {text}" for title, run in others.items() for text in contradictions(one, run)]
    problems = [f"{title}: {text}" for title, run in runs.items() for text in run.problems]
    problems += [f"left running: {left}"] if left else []
    return {
        "engine": args.engine,
        "simulated": args.engine == "fake",
        "share_of_a_core_per_node": args.share if args.engine == "llamacpp" else None,
        "killed": {title: run.killed for title, run in runs.items() if run.killed},
        "wall_s": {title: round(run.wall_s, 1) for title, run in runs.items()},
        "wall_ratio": four.wall_s / one.wall_s,
        "trials": {title: len(run.trials) for title, run in runs.items()},
        "verdicts": {title: run.verdicts for title, run in runs.items()},
        "speedups": {title: run.speedups for title, run in runs.items()},
        "same_verdicts": sum(one.verdicts[n] == four.verdicts.get(n) for n in one.verdicts),
        "contradicted": against,
        "throttled": throttled,
        "problems": problems + against,
    }


def lines_of(result: dict[str, Any], runs: dict[str, Run]) -> list[str]:
    found = [" ".join([f"{'arm':16}", *(f"{title:24}" for title in runs)])]
    for name in runs["1 node"].verdicts:
        cells = (_shown(run.verdicts.get(name), run.speedups.get(name)) for run in runs.values())
        found.append(" ".join([f"{name:16}", *(f"{cell:24}" for cell in cells)]))
    for title, run in runs.items():
        nodes = Counter(trial["node"] for trial in run.trials)
        found.append(f"{title}: trials by node {dict(nodes)}; killed: {run.killed or 'none'}")
    found.append(
        f"wall time {result['wall_s']['4 nodes']} s of {result['wall_s']['1 node']} s: {result['wall_ratio']:.0%}; "
        f"{result['same_verdicts']} of {len(runs['1 node'].verdicts)} verdicts equal, "
        f"{len(result['contradicted'])} contradicted"
    )
    if result["simulated"]:
        found.append("the engine is simulated: this says what the driver and Ray cost, and nothing of speed")
    return [*found, *(f"PROBLEM {text}" for text in result["problems"])]


def _shown(verdict: str | None, speedup: float | None) -> str:
    return f"{verdict or '?':12} {'?' if speedup is None else f'{speedup:.2f}x'}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=tuple(ARMS), default="llamacpp")
    parser.add_argument("--share", type=float, default=0.42, help="of one core, per node")
    parser.add_argument(
        "--kill", type=int, choices=(0, 1, 2), default=0, help="nodes to kill in one more 4-node run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
