"""The shipped EAGLE-3 draft offline and served: acceptance lengths at K = 1..6, n-grams beside it, the wrong flag.

    .venv-drafter/bin/python benchmarks/drafter_served.py [--engines llamacpp,vllm,sglang] [--prompts 24]
        [--max-tokens 96] [--lengths 1,2,3,4,5,6] [--dir FOLDER] [--json FILE]

Each engine is one study on the same built-in prompts, greedy; its figures are the counters around our requests, one
launch per K. Offline there is no server: `spectune drafter data` renders the prompts, and `spectune drafter evaluate`
answers them with the target in float32 and walks over the answers. n-grams (llama.cpp) draft in few steps, so they
are compared by tokens per forward pass of the target, drafted or not. On SGLang the draft also runs under the flag
EAGLE: `spectune check` has to name it before the launch and `spectune diagnose` from its log.

Counts, not times, so other work beside it does no harm. The engines are `make engines`' own. With the defaults 50
minutes on two cores, with 12 prompts of 48 tokens 25. `--dir` keeps the studies, and resumes them. Exit code 1 if a
served length is more than 5 % from the offline one or a wrong flag goes unnamed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from spectune.bench.prompts import builtin_prompts
from spectune.domain.acceptance import AcceptanceCounts
from spectune.embedded.models import DRAFT, TARGET, draft_folder, resolve_model
from spectune.home import data_home
from spectune.statistics.intervals import acceptance_length_interval

TOLERANCE = 0.05
SPECTUNE = [sys.executable, "-m", "spectune"]
ENGINES: dict[str, dict[str, Any]] = {
    "llamacpp": {"flags": {"ctx-size": 4096, "threads": 1}, "env": {"GOMP_SPINCOUNT": 1000}},
    "vllm": {
        "python": "~/.cache/spectune/engines/vllm/bin/python",
        "flags": {"max-model-len": 2048, "gpu-memory-utilization": 0.5, "enforce-eager": True},
        "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
    },
    "sglang": {
        "python": "~/.cache/spectune/engines/sglang/bin/python",
        "flags": {
            "device": "cpu",
            "attention-backend": "intel_amx",
            "dtype": "float32",
            "max-total-tokens": 16384,
            "decode-log-interval": 5,
        },
        "env": {"SGLANG_USE_CPU_ENGINE": 1, "OMP_NUM_THREADS": 1, "HF_HUB_OFFLINE": 1},
    },
}


def study_of(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    graphs = {"cuda_graphs": False} if engine == "vllm" else {}
    arms: list[dict[str, Any]] = [
        {"name": f"k{k}", "method": "eagle3", "num_draft_tokens": k, **graphs} for k in options.lengths
    ]
    if engine == "llamacpp":
        arms.append({"name": "ngram", "method": "ngram", "num_draft_tokens": 3})
    if engine == "sglang":
        arms.append({"name": "wrong-flag", "method": "eagle", "num_draft_tokens": 3})
    return {
        "question": "What does the shipped draft keep at each length?",
        "engine": {"name": engine, **ENGINES[engine]},
        "target": TARGET,
        "drafter": DRAFT,
        "arms": arms,
        "workload": {
            "prompts": "builtin",
            "num_prompts": options.prompts,
            "max_tokens": options.max_tokens,
            "warmup_requests": 2,
            "concurrency": 1 if engine == "llamacpp" else min(8, options.prompts),
            "requests_per_load": options.prompts,
        },
        "repetitions": 1,
        "baseline_every": 20,
        "noise_floor": False,
        "search": "all",
    }


def spectune(*words: object, code: int | None = 0) -> str:
    command = [*SPECTUNE, *(str(word) for word in words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if code is not None and done.returncode != code:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout


def serve(engine: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The trials of one engine's study: name, acceptance length, requests."""
    file, out = folder / f"{engine}.yaml", folder / engine
    file.write_text(yaml.safe_dump(study_of(engine, options), sort_keys=False))
    print(f"== {engine}", file=sys.stderr, flush=True)
    spectune("run", file, "--dir", out, "--allow", "draft-algorithm-mismatch", code=None)
    trials = json.loads((out / "report.json").read_text())["trials"]
    for trial in trials:
        if trial["status"] != "complete":
            raise SystemExit(f"{engine} {trial['name']}: {trial['status']}: {trial['cause']}")
        path = out / "trials" / trial["trial_id"] / "requests.jsonl"
        trial["requests"] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return trials


def offline(folder: Path, prompt_ids: list[str], options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """The chains of `spectune drafter evaluate` by K, on these prompts."""
    texts = {prompt.prompt_id: prompt for prompt in builtin_prompts()}
    chosen = folder / "prompts.jsonl"
    lines = (texts[name].model_dump_json(exclude_none=True) + "\n" for name in prompt_ids)
    chosen.write_text("".join(lines), encoding="utf-8")
    print("== offline", file=sys.stderr, flush=True)
    data = ["--study", folder / "llamacpp.yaml", "--prompts", chosen, "--held-out", 0.9999, "--max-tokens", 1]
    if not (folder / "llamacpp.yaml").exists():
        (folder / "llamacpp.yaml").write_text(yaml.safe_dump(study_of("llamacpp", options)))
    spectune("drafter", "data", *data, "--out", folder / "data")
    target = resolve_model(TARGET, model_format="hf", home=data_home())
    words = ["--target", target, "--data", folder / "data", "--max-tokens", options.max_tokens, "--json"]
    words += ["--dtype", "float32", "--max-draft-tokens", max(options.lengths)]
    found = json.loads(spectune("drafter", "evaluate", draft_folder(), *words))
    if found["num_prompts"] != len(prompt_ids):
        raise SystemExit(f"offline: {found['num_prompts']} prompts of {len(prompt_ids)}")
    return {chain["num_draft_tokens"]: chain for chain in found["chains"]}


def per_forward(requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens per forward pass of the target, steps without a draft included."""
    by_category: dict[str, list[AcceptanceCounts]] = defaultdict(list)
    drafted = 0
    for request in requests:
        kept = request["acceptance"]["num_accepted_tokens"]
        passes = request["output_tokens"] - kept
        drafted += request["acceptance"]["num_drafts"]
        counts = AcceptanceCounts(num_drafts=passes, num_draft_tokens=kept, num_accepted_tokens=kept)
        by_category[request["category"]].append(counts)
    parts = [part for group in by_category.values() for part in group]
    interval = acceptance_length_interval(parts)
    assert interval is not None
    lengths = {name: acceptance_length_interval(group) for name, group in sorted(by_category.items())}
    return {
        "tokens_per_forward": interval.model_dump(),
        "by_category": {name: each.value for name, each in lengths.items() if each is not None},
        "steps_with_a_draft_frac": drafted / sum(part.num_drafts or 0 for part in parts),
    }


def wrong_flag(folder: Path, trials: list[dict[str, Any]]) -> dict[str, Any]:
    before = json.loads(spectune("check", folder / "sglang.yaml", "--json", code=1))
    trial = next(trial for trial in trials if trial["name"] == "wrong-flag")
    log = folder / "sglang" / "trials" / trial["trial_id"] / "server.log"
    after = json.loads(spectune("diagnose", log, "--json", code=None))
    errors = [[f["code"] for f in told["findings"] if f["severity"] == "error"] for told in (before, after)]
    return {"acceptance_length": trial["acceptance_length"], "before": errors[0], "after": errors[1]}


def shown(interval: dict[str, Any]) -> str:
    return f"{interval['value']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    served = {engine: serve(engine, folder, options) for engine in options.engines}
    first = next(iter(served.values()))[0]
    prompt_ids = list(dict.fromkeys(r["prompt_id"] for r in first["requests"]))
    chains = offline(folder, prompt_ids, options)
    result: dict[str, Any] = {"prompts": len(prompt_ids), "max_tokens": options.max_tokens, "problems": []}
    result["offline"] = {k: chains[k]["acceptance_length"] for k in options.lengths}
    print(
        f"{len(prompt_ids)} prompts, at most {options.max_tokens} tokens, greedy; tokens per verify step, 95 %"
    )
    print(f"{'offline float32':16}", *(f"{shown(result['offline'][k]):>19}" for k in options.lengths))
    for engine, trials in served.items():
        lengths = {t["name"]: t["acceptance_length"] for t in trials if t["acceptance_length"] is not None}
        result[engine] = {"version": trials[0]["engine_version"], "lengths": lengths}
        cells = []
        for k in options.lengths:
            off = lengths[f"k{k}"]["value"] / result["offline"][k]["value"] - 1
            cells.append(f"{lengths[f'k{k}']['value']:.2f} ({off:+.1%})")
            if abs(off) > TOLERANCE:
                result["problems"].append(f"{engine} K = {k} is {off:+.1%} from offline")
        print(f"{engine:16}", *(f"{cell:>19}" for cell in cells), trials[0]["engine_version"])
    if "llamacpp" in served:
        of_arm = {trial["name"]: trial["requests"] for trial in served["llamacpp"]}
        result["per_forward"] = {
            name: per_forward(of_arm[name]) for name in ("k3", "ngram") if name in of_arm
        }
        for name, found in result["per_forward"].items():
            by = ", ".join(f"{category} {value:.2f}" for category, value in found["by_category"].items())
            share = found["steps_with_a_draft_frac"]
            print(
                f"per forward pass, {name}: {shown(found['tokens_per_forward'])}; {by}; drafted in {share:.0%}"
            )
    if "sglang" in served:
        told = result["wrong_flag"] = wrong_flag(folder, served["sglang"])
        print(
            f"flag EAGLE: {shown(told['acceptance_length'])}; check: {told['before']}; diagnose: {told['after']}"
        )
        if (
            "draft-algorithm-mismatch" not in told["before"]
            or "eagle3-draft-under-eagle" not in told["after"]
        ):
            result["problems"].append("the wrong flag went unnamed")
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(ENGINES))
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument(
        "--lengths", type=lambda text: [int(k) for k in text.split(",")], default=[1, 2, 3, 4, 5, 6]
    )
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="keep the studies there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"--engines {','.join(sorted(unknown))}: not one of {', '.join(ENGINES)}")
    return options


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="spectune-served-") as scratch:
        folder = options.dir or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = measure(folder, options)
    for problem in result["problems"]:
        print(f"PROBLEM {problem}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
