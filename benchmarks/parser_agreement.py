#!/usr/bin/env python3
"""Our verdict on server commands against the engines' own argument parsers.

    python3 benchmarks/parser_agreement.py [--engine sglang|vllm|both] [--number 200] [--seed 1] [--json FILE]

A third of the command lines are legal by construction, a third have one fault
or an unusual combination, a third draw every flag at random; each goes to ``spectune``'s flag rules and to the real
engine: SGLang's ``ServerArgs`` with its whole resolution, vLLM's parser with
``AsyncEngineArgs.create_engine_config``. No server starts, no weights are
read; the real EAGLE-3 draft of the tests and its target are named, so their
``config.json`` counts. Both engines run here on a CPU, so rules that need a
GPU are not exercised. Needs ``make engines``.

stdout: a table in Markdown; ``--json`` writes every case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENGINES = Path(os.environ.get("SPECTUNE_ENGINES", Path.home() / ".cache/spectune/engines"))
MODELS = Path(os.environ.get("SPECTUNE_DATA", Path.home() / ".local/share/spectune")) / "models"
TARGET = str(MODELS / "smollm2-135m-instruct-hf")
DRAFT = str(MODELS / "smollm2-135m-instruct-random-draft")
VERSIONS = {"sglang": "0.5.23", "vllm": "0.32.0"}
LIMIT_S = 1800
MESSAGE_CHARS = 400

Case = list[str]


@dataclass(frozen=True)
class Verdict:
    ok: bool
    why: str


# --- command lines -----------------------------------------------------------------------------------------


def sglang_cases(number: int, seed: int) -> list[Case]:
    """Legal chains and trees of every algorithm that a CPU resolves, and single faults of each kind."""
    draw = random.Random(seed)
    base = ["--model-path", TARGET, "--device", "cpu", "--host", "127.0.0.1"]
    backends = ["intel_amx", "triton", "torch_native", "flashinfer"]

    def numbers(steps: Any, topk: Any, tokens: Any) -> Case:
        words: Case = []
        for name, value in (("num-steps", steps), ("eagle-topk", topk), ("num-draft-tokens", tokens)):
            if value is not None:
                words += [f"--speculative-{name}", str(value)]
        return words

    def eagle() -> Case:
        algorithm = draw.choice(["EAGLE3", "EAGLE3", "eagle3", "EAGLE", "STANDALONE"])
        draft = TARGET if algorithm == "STANDALONE" else DRAFT
        return ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", draft]

    def legal() -> Case:
        kind = draw.choice(["plain", "chain", "chain", "tree", "auto", "ngram", "adaptive", "spelling"])
        words: Case = []
        if kind == "chain":
            steps = draw.randint(1, 8)
            words = [*eagle(), *numbers(steps, 1, draw.choice([steps + 1, steps + 1, None, 24]))]
        elif kind == "tree":
            steps, topk = draw.randint(2, 6), draw.randint(2, 8)
            most = topk + (steps - 1) * topk * topk
            words = [*eagle(), *numbers(steps, topk, draw.randint(2, min(most + 1, 64)))]
        elif kind == "auto":
            words = eagle()
        elif kind == "ngram":
            words = ["--speculative-algorithm", draw.choice(["NGRAM", "ngram"])]
            words += draw.choice([[], ["--speculative-num-draft-tokens", str(draw.randint(2, 16))]])
            words += draw.choice([[], ["--speculative-ngram-max-bfs-breadth", str(draw.randint(1, 10))]])
        elif kind == "adaptive":
            words = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", DRAFT]
            words += [
                "--speculative-adaptive",
                *numbers(draw.choice([None, 1, 3, 5, 7]), draw.choice([None, 1]), None),
            ]
        elif kind == "spelling":
            words = [
                "--speculative-algo=EAGLE3",
                f"--speculative-draft-model={DRAFT}",
                "--tp",
                "1",
                *numbers(3, 1, 4),
            ]
        extras = [
            ["--max-running-requests", str(draw.choice([8, 48, 256]))],
            ["--mem-fraction-static", "0.7"],
            ["--context-length", "2048"],
            ["--enable-metrics"],
            ["--disable-radix-cache"],
            ["--page-size", "1"],
            ["--cuda-graph-max-bs-decode", "8"],
            ["--attention-backend", draw.choice(backends[:2])],
            ["--chunked-prefill-size", "-1"],
        ]
        for extra in draw.sample(extras, draw.randint(0, 3)):
            words += extra
        return [*base, *words]

    def faulty() -> Case:
        faults: list[Callable[[], Case]] = [
            lambda: [*eagle(), *numbers(None, None, draw.randint(2, 16))],
            lambda: [*eagle(), *numbers(None, draw.randint(1, 8), None)],
            lambda: [*eagle(), *numbers(draw.randint(1, 8), None, draw.choice([None, 4]))],
            lambda: [*eagle(), *numbers(None, draw.randint(1, 4), draw.randint(2, 8))],
            lambda: [*eagle(), *numbers(draw.randint(2, 5), draw.randint(2, 8), None)],
            lambda: [*eagle(), *numbers(2, 2, draw.randint(8, 64))],
            lambda: [*eagle(), *numbers(3, 4, 8), "--page-size", draw.choice(["16", "64"]), "--attention-backend",
                     draw.choice(["intel_amx", "triton", "flashinfer"])],
            lambda: [*eagle(), *numbers(3, draw.choice([1, 4]), 4), "--attention-backend", "trtllm_mha"],
            lambda: ["--speculative-algorithm", draw.choice(["EAGEL3", "MEDUSA", "LOOKAHEAD", "EAGLE-3"])],
            lambda: [*eagle(), *numbers(3, 1, 4), "--speculative-use-rejection-sampling"],
            lambda: [*eagle(), *numbers(3, 4, 8), "--speculative-use-rejection-sampling"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--speculative-use-rejection-sampling",
                     "--speculative-accept-threshold-acc", "0.9"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--pp-size", "2"],
            lambda: [*eagle(), *numbers(draw.choice([2, 4, 6]), 1, None), "--speculative-adaptive"],
            lambda: [*eagle(), *numbers(3, 4, 8), "--speculative-adaptive"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--speculative-draft-sink-size", "4"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--speculative-draft-window-size", draw.choice(["0", "-1", "512"])],
            lambda: ["--speculative-algorithm", "NGRAM", "--page-size", "16", "--attention-backend",
                     draw.choice(["intel_amx", "triton", "flashinfer"])],
            lambda: ["--speculative-algorithm", "NGRAM", "--speculative-ngram-external-corpus-path", "c",
                     "--speculative-ngram-external-sam-budget", draw.choice(["0", "4", "40"])],
            lambda: ["--speculative-algorithm", "NGRAM", "--dp-size", "2", "--tp-size", "2", "--enable-dp-attention"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--dp-size", "2", "--tp-size", "2", "--enable-dp-attention"],
            lambda: ["--speculative-algorithm", draw.choice(["DFLASH", "DSPARK"]), *numbers(None, None, 8)],
            lambda: [*eagle(), *numbers("three", 1, 4)],
            lambda: [*eagle(), *numbers(3, 1, 4), "--attention-backend", "flash"],
            lambda: [*eagle(), *numbers(3, 1, 4), draw.choice(["--cuda-graph-max-bs", "--cuda-graph-bs"]), "8"],
            lambda: [*eagle(), *numbers(3, 1, 4), draw.choice(["--speculativ-num-step", "--draft-max"]), "3"],
            lambda: [*eagle(), "--speculative-num", "3"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--max-running-requests"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--grpc-port", "30000"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--enable-lora", "--speculative-adaptive"],
            lambda: ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", TARGET,
                     *numbers(3, 1, 4), "--enable-lora", "--lora-paths", "a=b"],
            lambda: ["--speculative-algorithm", "EAGLE3", *numbers(3, 1, 4)],
            lambda: [*eagle(), *numbers(3, 1, 4), "--speculative-use-block-verification"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--enable-mixed-chunk"],
            lambda: [*eagle(), *numbers(3, 1, 4), "stray"],
            lambda: [*eagle(), *numbers(3, 1, 4), "--mem-fraction-static", draw.choice(["1.5", "half"])],
        ]  # fmt: skip
        return [*base, *draw.choice(faults)()]

    def mixed() -> Case:
        algorithm = draw.choice(["EAGLE", "EAGLE3", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"])
        words = ["--speculative-algorithm", algorithm]
        if algorithm != "NGRAM" or draw.random() < 0.2:
            words += ["--speculative-draft-model-path", TARGET if algorithm == "STANDALONE" else DRAFT]
        words += numbers(
            draw.choice([None, 0, 1, 2, 3, 5]),
            draw.choice([None, 1, 1, 2, 4]),
            draw.choice([None, 1, 2, 4, 6, 16]),
        )
        pool = [
            ["--speculative-adaptive"],
            ["--speculative-use-rejection-sampling"],
            ["--speculative-accept-threshold-single", draw.choice(["1.0", "0.9"])],
            ["--page-size", draw.choice(["1", "16", "64"])],
            ["--attention-backend", draw.choice(["intel_amx", "triton", "flashinfer", "torch_native"])],
            ["--enable-mixed-chunk"],
            ["--disable-overlap-schedule"],
            ["--max-running-requests", "16"],
            ["--speculative-draft-window-size", draw.choice(["0", "256"])],
            ["--speculative-draft-sink-size", draw.choice(["0", "4", "-1"])],
            ["--speculative-ngram-max-bfs-breadth", draw.choice(["1", "4"])],
            ["--speculative-ngram-external-sam-budget", draw.choice(["0", "3"])],
            ["--speculative-token-map", "t.pt"],
            ["--enable-lora", "--lora-paths", "a=b"],
            ["--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"],
            ["--speculative-draft-attention-backend", draw.choice(["triton", "fa3", "wave"])],
            ["--speculative-draft-model-quantization", draw.choice(["unquant", "fp8"])],
            ["--context-length", draw.choice(["512", "2048"])],
            ["--port", draw.choice(["30000", "0", "99999"])],
            ["--nccl-port", draw.choice(["30000", "30001"])],
        ]
        for extra in pool:
            words += extra if draw.random() < 0.15 else []
        return [*base, *words]

    return [draw.choice((legal, faulty, mixed))() for _ in range(number)]


def vllm_cases(number: int, seed: int) -> list[Case]:
    """Legal configurations of the methods whose models are here, and single faults of each kind."""
    draw = random.Random(seed)

    def config(**values: Any) -> Case:
        return [
            "--speculative-config",
            json.dumps({key: value for key, value in values.items() if value is not None}),
        ]

    def eagle(**values: Any) -> Case:
        return config(**{"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 3, **values})

    def ngram(**values: Any) -> Case:
        return config(**{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, **values})

    def draft_model(**values: Any) -> Case:
        return config(**{"method": "draft_model", "model": TARGET, "num_speculative_tokens": 3, **values})

    def legal() -> Case:
        kinds: list[Callable[[], Case]] = [
            list,
            lambda: eagle(num_speculative_tokens=draw.randint(1, 12)),
            lambda: ngram(
                num_speculative_tokens=draw.randint(1, 12), prompt_lookup_min=draw.choice([None, 1, 2])
            ),
            lambda: draft_model(num_speculative_tokens=draw.randint(1, 8)),
            lambda: draft_model(method=None),
            lambda: [
                *("--speculative-config.method", "eagle3", "--speculative_config.model", DRAFT),
                *(draw.choice(["-sc", "--speculative-config"]) + ".num_speculative_tokens", "3"),
            ],
            lambda: ["--spec-method", "ngram", "--spec-tokens", "4"],
            lambda: eagle(
                rejection_sample_method="synthetic", synthetic_acceptance_length=draw.choice([1, 2.5, 4])
            ),
            lambda: eagle(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.8, 0.5, 0.3]),
            lambda: eagle(draft_tensor_parallel_size=1, draft_sample_method="probabilistic"),
            lambda: [*eagle(), "--per-request-spec-decode-metrics", "summary"],
            lambda: [*eagle(), "--async-scheduling"],
            lambda: draft_model(use_heterogeneous_vocab=True),
            lambda: [*ngram(), "--no-async-scheduling"],
        ]
        words = draw.choice(kinds)()
        extras = [
            ["--max-model-len", draw.choice(["1024", "2k", "2048"])],
            ["--max_num_seqs", "8"],
            ["--enforce-eager"],
            ["--max-num-batched-tokens=4096"],
            ["--gpu-memory-utilization", "0.5"],
            ["--no-enable-prefix-caching"],
            ["--seed", "1"],
        ]
        for extra in draw.sample(extras, draw.randint(0, 3)):
            words += extra
        return ["--model", TARGET, *words]

    def faulty() -> Case:
        faults: list[Callable[[], Case]] = [
            lambda: ["--speculative-config", "{'method': 'ngram'}"],
            lambda: ["--speculative-config", "eagle3"],
            lambda: eagle(num_speculative_token=3),
            lambda: eagle(num_steps=3),
            lambda: eagle(method=draw.choice(["eagle-3", "EAGLE3", "lookahead"])),
            lambda: config(method="eagle3", num_speculative_tokens=3),
            lambda: config(method="eagle3", model=DRAFT),
            lambda: config(method="ngram", prompt_lookup_max=4),
            lambda: config(method="draft_model", model=TARGET),
            lambda: eagle(num_speculative_tokens=draw.choice([0, -1, "three"])),
            lambda: ngram(prompt_lookup_min=6),
            lambda: ngram(prompt_lookup_max=0),
            lambda: ngram(prompt_lookup_max=None),
            lambda: eagle(draft_tensor_parallel_size=draw.choice([2, 0])),
            lambda: eagle(tensor_parallel_size=1),
            lambda: ["--per-request-spec-decode-metrics", draw.choice(["summary", "detailed", "none"])],
            lambda: eagle(rejection_sample_method="synthetic"),
            lambda: eagle(synthetic_acceptance_length=2),
            lambda: eagle(rejection_sample_method="synthetic", synthetic_acceptance_length=draw.choice([0.5, 5])),
            lambda: eagle(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.5, 0.8, 0.3]),
            lambda: eagle(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.8, 0.5]),
            lambda: eagle(rejection_sample_method="synthetic", synthetic_acceptance_length=2,
                          synthetic_acceptance_rates=[0.8, 0.5, 0.3]),
            lambda: eagle(rejection_sample_method="imposed"),
            lambda: [*ngram(), "--async-scheduling"],
            lambda: [*eagle(disable_padded_drafter_batch=True), "--async-scheduling"],
            lambda: eagle(use_heterogeneous_vocab=True),
            lambda: draft_model(use_heterogeneous_vocab=True, draft_sample_method="probabilistic"),
            lambda: eagle(index_share_for_mtp_iteration=True),
            lambda: eagle(dspark_draft_topk=4),
            lambda: eagle(enable_adaptive_verification=True, use_local_argmax_reduction=True),
            lambda: [*eagle(), "--kv-sharing-fast-prefill"],
            lambda: [*eagle(), "--spec-tokens", "4"],
            lambda: ["--spec-model", DRAFT, "--spec-tokens", "3"],
            lambda: [*ngram(), "--speculative-config.prompt_lookup_min", "2"],
            lambda: ["--speculative-model", DRAFT, "--num-speculative-tokens", "3"],
            lambda: [*eagle(), "--max-model-len", draw.choice(["long", "2.5"])],
            lambda: [*eagle(), "--scheduling-policy", "random"],
            lambda: [*eagle(), "--max-num", "8"],
            lambda: [*eagle(), "--seed"],
            lambda: [*eagle(), "--enforce-eagar"],
            lambda: eagle(draft_sample_method="nucleus"),
            lambda: [*draft_model(), "--max-num-batched-tokens", "1", "--max-model-len", "1", "--max-num-seqs", "1"],
            lambda: [*eagle(), "--port", draw.choice(["80", "70000", "http"])],
            lambda: config(num_speculative_tokens=3),
            lambda: ngram(model=DRAFT),
            lambda: draft_model(parallel_drafting=True),
            lambda: [*eagle(), "--tensor-parallel-size", "2"],
        ]  # fmt: skip
        return ["--model", TARGET, *draw.choice(faults)()]

    def mixed() -> Case:
        method = draw.choice(
            ["eagle3", "eagle3", "eagle", "draft_model", "ngram", "ngram_gpu", "mtp", "medusa", None]
        )
        values: dict[str, Any] = {
            "method": method,
            "model": draw.choice([DRAFT, DRAFT, TARGET, None]),
            "num_speculative_tokens": draw.choice([None, 1, 3, 16]),
        }
        pool: dict[str, list[Any]] = {
            "prompt_lookup_min": [0, 1, 4],
            "prompt_lookup_max": [2, 4],
            "draft_tensor_parallel_size": [1, 2],
            "max_model_len": [0, 512],
            "draft_sample_method": ["greedy", "probabilistic"],
            "rejection_sample_method": ["standard", "block", "synthetic"],
            "synthetic_acceptance_length": [1, 2, 9],
            "synthetic_acceptance_rates": [[0.5], [0.9, 0.5, 0.1]],
            "use_heterogeneous_vocab": [True, False],
            "parallel_drafting": [True],
            "disable_padded_drafter_batch": [True],
            "enforce_eager": [True],
            "quantization": ["fp8"],
            "num_speculative_tokens_per_batch_size": [[[1, 4, 3], [5, 8, 1]]],
            "use_local_argmax_reduction": [True],
            "enable_adaptive_verification": [True],
            "index_share_for_mtp_iteration": [True],
            "dspark_draft_topk": [0, 4],
        }
        for key, choices in pool.items():
            if draw.random() < 0.12:
                values[key] = draw.choice(choices)
        extras = [
            ["--async-scheduling"],
            ["--no-async-scheduling"],
            ["--kv-sharing-fast-prefill"],
            ["--per-request-spec-decode-metrics", "summary"],
            ["--max-num-batched-tokens", draw.choice(["2", "2048"])],
            ["--max-model-len", draw.choice(["512", "4k"])],
            ["--enable-lora"],
            ["--max-num-seqs", draw.choice(["1", "512"])],
        ]
        words = config(**values)
        for extra in extras:
            words += extra if draw.random() < 0.15 else []
        return ["--model", TARGET, *words]

    return [draw.choice((legal, faulty, mixed))() for _ in range(number)]


# --- the engines' verdicts: this file run again by the engine's interpreter ---------------------------------


def ask_engine(engine: str, cases: Sequence[Case]) -> list[Verdict]:
    """One process of the engine's environment judges all cases, each in a fork of its own."""
    env = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1"}
    env |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [str(ENGINES / engine / "bin/python"), __file__, "--judge-as", engine],
        input=json.dumps(cases),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
        timeout=LIMIT_S,
        check=True,
    )
    return [Verdict(answer["ok"], answer["why"]) for answer in json.loads(done.stdout)]


PRELOAD = {
    "sglang": (
        "sglang.srt.server_args",
        "sglang.srt.configs.model_config",
        "sglang.srt.speculative.spec_info",
        "sglang.srt.utils.hf_transformers_utils",
        "transformers.models.llama.configuration_llama",
        "transformers.models.auto.tokenization_auto",
    ),
    "vllm": (
        "vllm.entrypoints.launchers.cli_args",
        "vllm.engine.arg_utils",
        "vllm.v1.executor.abstract",
        "vllm.transformers_utils.config",
        "transformers.models.llama.configuration_llama",
    ),
}


def judge_as(engine: str) -> int:
    """Cases on stdin, verdicts on stdout; nothing else is printed."""
    cases = json.load(sys.stdin)
    answers_to = os.dup(1)
    os.dup2(2, 1)
    judge = {"sglang": judge_sglang, "vllm": judge_vllm}[engine]
    for module in PRELOAD[engine]:  # once here, or every fork imports them again
        __import__(module)
    answers = [in_a_fork(judge, case) for case in cases]
    with os.fdopen(answers_to, "w") as out:
        json.dump(answers, out)
    return 0


def in_a_fork(judge: Callable[[Case], None], case: Case) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        said = io.StringIO()
        ok, why = True, ""
        logging.disable(logging.CRITICAL)
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                judge(case)
            except SystemExit as exit_:
                ok, why = exit_.code in (0, None), said.getvalue().strip()[-MESSAGE_CHARS:]
            except BaseException as reason:  # noqa: BLE001  whatever the engine raises is its answer
                ok, why = False, f"{type(reason).__name__}: {reason}"[:MESSAGE_CHARS]
        with os.fdopen(write_end, "w") as pipe:
            json.dump({"ok": ok, "why": why}, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer: dict[str, Any] = json.loads(text) if text else {"ok": False, "why": "the process died"}
    return answer


def judge_sglang(case: Case) -> None:
    from sglang.srt.server_args import prepare_server_args

    settings = prepare_server_args(list(case))
    settings.resolve_once()
    settings.check_server_args()


def judge_vllm(case: Case) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(list(case))
    validate_parsed_serve_args(arguments)
    AsyncEngineArgs.from_cli_args(arguments).create_engine_config()


# --- our verdict, and the comparison -------------------------------------------------------------------------


def ask_ourselves(engine: str, cases: Sequence[Case]) -> list[Verdict]:
    sys.path.insert(0, str(ROOT / "src"))
    from spectune.checkpoints.read import read_checkpoint
    from spectune.preflight.command.reading import read_command
    from spectune.preflight.draft import rules as draft_fit
    from spectune.preflight.flags.form import judge_form
    from spectune.preflight.flags.rules import judge_flags
    from spectune.preflight.rules import judge
    from spectune.preflight.situation import EngineVersion

    module = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}[engine]
    facts = {path: read_checkpoint(path) for path in (TARGET, DRAFT)}
    verdicts = []
    for case in cases:
        command = read_command(["python", "-m", module, *case])
        situation = command.situation(
            EngineVersion(VERSIONS[engine], "benchmark"),
            target=facts.get(command.target or ""),
            draft=facts.get(command.draft or ""),
        )
        findings = [
            *judge_form(command).findings,
            *judge_flags(situation).findings,
            *judge(situation, draft_fit.RULES).findings,
        ]
        errors = [finding for finding in findings if finding.severity == "error"]
        verdicts.append(
            Verdict(not errors, SEPARATOR.join(f"{error.code}: {error.message}" for error in errors))
        )
    return verdicts


LATER = {
    "draft-algorithm-mismatch": "the engine looks at the draft later (SGLang serves it at acceptance length 1.00)",
    "draft-tree-too-large": "the engine dies later, at its first draft: measured",
    "nothing-drafted": "the engine accepts it and can gain nothing",
    "draft-missing": "the engine dies later, while loading the draft: measured",
    "draft-attention-backend-unsupported": "the engine dies later, while starting the draft worker: measured",
    "speculative-numbers-incomplete": "the engine dies later, at start-up: measured",
    "port-out-of-range": "the engine dies later, when it binds the port",
    "port-conflict": "the engine dies later, when it binds the port",
    "memory-fraction": "the engine dies later, when it allocates",
}
"""Errors of ours about deaths after the arguments were read: no disagreement about the arguments."""


MACHINE = {
    "Model Runner V1 does not support": "this machine has no Triton, so vLLM takes its older model runner",
    "requires Hopper": "the engine looked at this machine's GPU (there is none), not at the flags",
}
"""Refusals by the engine that do not come from the command line."""
SEPARATOR = " // "


def explain(ours: Verdict, theirs: Verdict) -> str | None:
    """Why two verdicts may differ, if that is known; ``None``: a fault of ours until shown otherwise."""
    if theirs.ok and not ours.ok:
        codes = {part.split(":")[0] for part in ours.why.split(SEPARATOR)}
        return "; ".join(sorted({LATER[code] for code in codes})) if codes <= set(LATER) else None
    return next((reason for words, reason in MACHINE.items() if words in theirs.why), None)


def compare(engine: str, number: int, seed: int) -> dict[str, Any]:
    cases = {"sglang": sglang_cases, "vllm": vllm_cases}[engine](number, seed)
    started = time.monotonic()
    ours = ask_ourselves(engine, cases)
    our_s = time.monotonic() - started
    theirs = ask_engine(engine, cases)
    rows = []
    for case, our, their in zip(cases, ours, theirs, strict=True):
        words = [word.replace(TARGET, "TARGET").replace(DRAFT, "DRAFT") for word in case]
        same = our.ok == their.ok
        rows.append(
            {
                "argv": words,
                "ours": {"ok": our.ok, "why": our.why.replace(DRAFT, "DRAFT").replace(TARGET, "TARGET")},
                "theirs": {
                    "ok": their.ok,
                    "why": their.why.replace(DRAFT, "DRAFT").replace(TARGET, "TARGET"),
                },
                "agree": same,
                "explanation": None if same else explain(our, their),
            }
        )
    return {
        "engine": engine,
        "version": VERSIONS[engine],
        "number": number,
        "seed": seed,
        "legal": sum(their.ok for their in theirs),
        "agree": sum(row["agree"] for row in rows),
        "explained": sum(row["explanation"] is not None for row in rows),
        "our_s_per_command": our_s / number,
        "rows": rows,
    }


def markdown(result: dict[str, Any]) -> str:
    unexplained = result["number"] - result["agree"] - result["explained"]
    lines = [
        f"## {result['engine']} {result['version']}: {result['number']} command lines, seed {result['seed']}",
        "",
        "| the engine accepts | refuses | same verdict | differs, explained | differs, unexplained |",
        "|---|---|---|---|---|",
        f"| {result['legal']} | {result['number'] - result['legal']} | {result['agree']} "
        f"| {result['explained']} | {unexplained} |",
        "",
        f"Our verdict took {1000 * result['our_s_per_command']:.1f} ms per command.",
        "",
    ]
    differing = [row for row in result["rows"] if not row["agree"]]
    if differing:
        lines += ["| arguments | ours | theirs | explanation |", "|---|---|---|---|"]
    for row in differing:
        argv = " ".join(
            word for word in row["argv"] if word not in ("--device", "cpu", "--host", "127.0.0.1")
        )
        cells = [
            argv,
            row["ours"]["why"] or "accepted",
            row["theirs"]["why"] or "accepted",
            row["explanation"] or "NONE",
        ]
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ")[:260] for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("sglang", "vllm", "both"), default="both")
    parser.add_argument("--number", type=int, default=200, help="command lines per engine (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write every case here")
    parser.add_argument("--judge-as", choices=("sglang", "vllm"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge_as:
        return judge_as(options.judge_as)
    missing = [path for path in (TARGET, DRAFT) if not (Path(path) / "config.json").is_file()]
    if missing:
        print(f"{missing[0]} is not there: run 'make engines' first", file=sys.stderr)
        return 3
    engines = ("sglang", "vllm") if options.engine == "both" else (options.engine,)
    results = [compare(engine, options.number, options.seed) for engine in engines]
    for result in results:
        print(markdown(result))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"schema_version": 1, "results": results}, indent=1), encoding="utf-8"
        )
    return 0 if all(r["agree"] + r["explained"] == r["number"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
