"""``spectune drafter demo``: the whole loop in miniature, each step by its own command.

Data at three sizes, a draft trained on each, their acceptance offline, the best one exported and served beside
plain decoding and ngram, and a forecast. What a step printed is kept in ``DIR/results``; a step that is there is
not done again, and a step that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spectune.bench.prompts import CATEGORIES
from spectune.cli.drafter.demo_report import demo_sections, print_sections, write_demo_report
from spectune.cli.output import say, show_json
from spectune.drafter.data.plan import planned_prompts, read_plan
from spectune.drafter.extra import needed
from spectune.embedded.models import TARGET, fetch_embedded_target
from spectune.engines.flags import flag_args
from spectune.errors import BadInput
from spectune.home import data_home
from spectune.store.replacing import check_replaceable
from spectune.store.study_dir import write_atomically

STREAMS = 16
PROMPT_TOKENS = 512
HELD_OUT = 0.1
DEPTH = 3
SIZES = (1, 3, 9)
_ENGINE = "{name: llamacpp, env: {GOMP_SPINCOUNT: 1000}}"
_DATA_STUDY = f"""\
# Serves the target that answers; `spectune drafter data --study` starts its baseline.
question: What does the target answer?
engine: {_ENGINE}
target: {TARGET}
arms: [{{method: ngram, num_draft_tokens: 3}}]
workload: {{prompts: builtin, num_prompts: 6}}
"""
_SERVE_STUDY = f"""\
# The draft on prompts that it was not trained on, beside plain decoding and ngram.
name: drafter-demo
question: Does the draft that was trained a moment ago pay on this machine?
engine: {_ENGINE}
target: {TARGET}
drafter: export/draft-q8_0.gguf
arms:
  - {{name: ngram-k{DEPTH}, method: ngram, num_draft_tokens: {DEPTH}}}
  - name: eagle3-k{DEPTH}
    method: eagle3
    num_draft_tokens: {DEPTH}
    flags: {{spec-draft-p-min: 0.0}}    # every draft has its full length, as in the offline figure
workload:
  prompts: held-out.jsonl
  max_tokens: MAX_TOKENS
  warmup_requests: 2
repetitions: 1
baseline_every: 2
"""


@dataclass(frozen=True)
class DemoSize:
    """How much of everything; at scale 1 about 38 minutes on 2 cores."""

    scale: float
    smallest: int
    """Prompts of the smallest data set."""
    max_tokens: int
    max_steps: int
    batch_size: int
    draft_vocab_size: int
    served_per_category: int

    @classmethod
    def scaled(cls, scale: float) -> DemoSize:
        if not 0.01 <= scale <= 100:
            raise BadInput(f"--scale: must be from 0.01 to 100, got {scale:g}")
        return cls(
            scale=scale,
            smallest=6 * max(1, round(12 * scale)),
            max_tokens=128 if scale >= 0.5 else 48,
            max_steps=max(4, round(300 * scale)),
            batch_size=8 if scale >= 0.1 else 4,
            draft_vocab_size=8192 if scale >= 0.5 else 2048,
            served_per_category=max(1, min(5, round(3 * scale))),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.smallest * times for times in SIZES)


class _Stopped(Exception):
    """A step did not end well; it has said why."""

    def __init__(self, code: int) -> None:
        self.code = code


def drafter_demo_command(args: argparse.Namespace) -> int:
    """0 once everything ran, whatever came of it."""
    for module in ("torch", "transformers", "safetensors", "pyarrow.parquet", "gguf"):
        needed(module)
    demo = _Demo(Path(args.dir), DemoSize.scaled(args.scale))
    try:
        results = demo.run()
    except _Stopped as stopped:
        if stopped.code == 130:
            say(f"what is done is kept in {demo.out}; the same command goes on")
        return stopped.code
    sections = demo_sections(results, sizes=demo.size.sizes, depth=DEPTH)
    paths = write_demo_report(demo.out, sections)
    if args.json:
        document = {"schema_version": 1, "size": asdict(demo.size), "results": results}
        show_json(json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n")
    else:
        print_sections(sections)
        sys.stdout.write("".join(f"report: {path}\n" for path in paths))
    return 0


class _Demo:
    def __init__(self, out: Path, size: DemoSize) -> None:
        self.out, self.size = out, size
        self.results: dict[str, Any] = {}
        self._step = 0
        self._num_steps = 1 + 2 * len(SIZES) + 5
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._keep_size()
            (out / "results").mkdir(exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(f"--dir {out}: is not a folder") from None

    def run(self) -> dict[str, Any]:
        """Every step that is not done yet; all results."""
        began = time.monotonic()
        minutes = max(2, round(38 * self.size.scale))
        say(f"about {minutes} minutes on 2 cores; Ctrl-C keeps what is done")
        target, gguf = self._target()
        self._data()
        for size, times in zip(self.size.sizes, SIZES, strict=True):
            self._train(size, times, target)
        for size in self.size.sizes:
            self._evaluate(size, target)
        self._export(target, gguf)
        self._serve()
        self._forecast()
        say(f"done after {(time.monotonic() - began) / 60:.1f} min")
        return self.results

    def _keep_size(self) -> None:
        path = self.out / "demo.json"
        asked = asdict(self.size)
        if path.exists():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise BadInput(f"{path}: damaged; give another --dir") from None
            if known != asked:
                raise BadInput(
                    f"{self.out}: holds a demo of another size; give the --scale it was begun with "
                    f"({known.get('scale') if isinstance(known, dict) else '?'}), or another --dir"
                )
        names = ("data.yaml", "serve.yaml", "held-out.jsonl", "results", "report.md", "report.html")
        check_replaceable(str(self.out), self.out, names=names, marks=["demo.json"])
        write_atomically(path, json.dumps(asked, indent=1) + "\n")

    def _target(self) -> tuple[Path, Path]:
        """The target as transformers loads it, and as llama.cpp serves it."""
        from spectune.drafter.export.hf_form import write_hf_form

        self._step += 1
        gguf = fetch_embedded_target(data_home())
        folder = data_home() / "models" / f"{TARGET}-hf"
        if not (folder / "config.json").is_file():
            self._announce("the target in the form that is trained against", 0.5)
            write_hf_form(gguf, folder)
        return folder, gguf

    def _data(self) -> None:
        study = self.out / "data.yaml"
        study.write_text(_DATA_STUDY, encoding="utf-8")
        largest, smallest = max(self.size.sizes), self.size.smallest
        self._command(
            "data",
            f"the target answers {largest} prompts through its server",
            14,
            "drafter data",
            {
                "study": study,
                "out": self.out / "data",
                "generate": largest,
                "shard-size": smallest,
                "held-out": HELD_OUT,
                "max-tokens": self.size.max_tokens,
                "concurrency": STREAMS,
                "context": PROMPT_TOKENS + self.size.max_tokens,
            },
        )

    def _train(self, size: int, times: int, target: Path) -> None:
        parts = [str(self.out / "data" / "parts" / f"part-{number:05d}.parquet") for number in range(times)]
        steps = self.size.max_steps
        self._command(
            f"train-{size}",
            f"a draft trained on {size} prompts, {steps} steps",
            5,
            "drafter train",
            {
                "target": target,
                "out": self.out / f"train-{size}",
                "max-steps": steps,
                "batch-size": self.size.batch_size,
                "evaluate-every": max(1, steps // 2),
                "save-every": 100,
                "draft-vocab-size": self.size.draft_vocab_size,
                "max-length": 1024,
            },
            *(word for part in parts for word in ("--data", part)),
        )

    def _evaluate(self, size: int, target: Path) -> None:
        """Over the answers as they were served: greedy, and this target's own."""
        self._command(
            f"evaluate-{size}",
            f"its acceptance on held-out prompts, offline: trained on {size}",
            0.7,
            "drafter evaluate",
            {"target": target, "data": self.out / "data", "answers": "recorded", "max-draft-tokens": 4},
            str(self.out / f"train-{size}" / "draft"),
        )

    def _export(self, target: Path, gguf: Path) -> None:
        draft = self.out / f"train-{max(self.size.sizes)}" / "draft"
        self._command(
            "export",
            "the largest for every engine",
            0.2,
            "drafter export",
            {"target": target, "target-gguf": gguf, "out": self.out / "export", "force": True},
            str(draft),
        )

    def _serve(self) -> None:
        study = self.out / "serve.yaml"
        study.write_text(_SERVE_STUDY.replace("MAX_TOKENS", str(self.size.max_tokens)), encoding="utf-8")
        self._write_held_out()
        self._command(
            "serve",
            f"plain decoding, ngram and the draft on the real server, {DEPTH} drafted tokens",
            6,
            "run",
            {"dir": self.out / "serve"},
            str(study),
        )
        self._command(
            "explain", "what a verify step costs there", 0.1, "explain", {}, str(self.out / "serve")
        )

    def _write_held_out(self) -> None:
        """The first few held-out prompts of each category that the offline figures cover."""
        chains = self.results[f"evaluate-{max(self.size.sizes)}"]["chains"]
        judged = chains[DEPTH - 1]["by_prompt"]
        data = self.out / "data"
        left = dict.fromkeys(CATEGORIES, self.size.served_per_category)
        lines, names = [], []
        for _, planned in planned_prompts(data, read_plan(data)):
            prompt = planned.prompt
            if prompt.prompt_id in judged and left.get(prompt.category or "", 0):
                left[prompt.category or ""] -= 1
                names.append(prompt.prompt_id)
                record = {"prompt_id": prompt.prompt_id, "category": prompt.category}
                lines.append(json.dumps({**record, "prompt": prompt.turns[0]}) + "\n")
        write_atomically(self.out / "held-out.jsonl", "".join(lines))
        self.results["served_prompts"] = names

    def _forecast(self) -> None:
        files = [f"{size}={self.out / 'results' / f'evaluate-{size}.json'}" for size in self.size.sizes]
        data_end = self.results["data"]["manifest"]["runs"][-1]["end"]
        largest = max(self.size.sizes)
        flags: dict[str, Any] = {
            "num-draft-tokens": DEPTH,
            "check-last": True,
            "explain": self.out / "results" / "explain.json",
            "arm": f"eagle3-k{DEPTH}",
            "train-s-per-sample": f"{self.results[f'train-{largest}']['train_s'] / largest:.4g}",
        }
        if data_end is not None and data_end["num_samples"]:
            flags["data-s-per-sample"] = f"{data_end['elapsed_s'] / data_end['num_samples']:.4g}"
        self._command("forecast", "what more data would bring", 0.1, "drafter forecast", flags, *files)

    def _announce(self, title: str, minutes: float) -> None:
        about = minutes * self.size.scale
        shown = f"about {about:.0f} min" if about >= 1 else "under a minute"
        say(f"[{self._step}/{self._num_steps}] {title}: {shown}")

    def _command(
        self, name: str, title: str, minutes: float, command: str, flags: Mapping[str, Any], *words: str
    ) -> None:
        """Runs one command of ours unless its result is there; keeps what it prints."""
        from spectune.cli.main import main

        self._step += 1
        path = self.out / "results" / f"{name}.json"
        known = _read(path)
        if known is not None:
            say(f"[{self._step}/{self._num_steps}] {title}: done before")
            self.results[name] = known
            return
        given = flag_args({key: value if value is True else str(value) for key, value in flags.items()})
        argv = [*command.split(), *words, *given]
        self._announce(title, minutes)
        say(f"  spectune {shlex.join(argv)}")
        began, output = time.monotonic(), io.StringIO()
        with redirect_stdout(output):
            code = main([*argv, "--json"])
        if code:
            raise _Stopped(code)
        found = json.loads(output.getvalue())
        if name == "serve":
            found = {key: found[key] for key in ("headline", "arms", "baseline_arm_id")}
        write_atomically(path, json.dumps(found, indent=1) + "\n")
        self.results[name] = found
        say(f"  took {(time.monotonic() - began) / 60:.1f} min")


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
