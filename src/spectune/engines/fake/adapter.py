"""The fake engine's adapter: the whole contract, over a server that only plays a script."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import FlagValue, Knobs
from spectune.domain.measurement import ServerCounters
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import Cause, Command, FinalFields, HttpCall, Launch, ModelFormat
from spectune.engines.death_causes import known_cause
from spectune.engines.fake.options import METHODS, PHASE_LINES, build_parser
from spectune.engines.flags import flag_args, imposed_length, imposed_rates
from spectune.engines.json_bodies import as_counts, as_dict, as_int, token_list
from spectune.engines.prometheus import parse_metrics, read_spec_counters
from spectune.engines.traits import EngineTraits
from spectune.errors import BadInput

_MODULE = "spectune.engines.fake.server"
_PREFIX = "vllm:"
TRAITS = EngineTraits(
    name="fake",
    title="the fake engine",
    port=0,
    needs_drafter=frozenset({"draft_model", "eagle", "eagle3"}),
    token_id_fields={"return_token_ids": True},
)
_ERROR_LINE = re.compile(r"[A-Za-z_.]*(?:Error|Exception): .+")


class FakeAdapter:
    """Knowledge of ``spectune.engines.fake.server``; its flags are that program's options."""

    name = TRAITS.name
    traits = TRAITS
    methods: tuple[str, ...] = METHODS
    model_format: ModelFormat = "hf"
    ready_timeout_s = 30.0
    settle_s = 0.2
    metrics_path = "/metrics"
    info_paths: tuple[str, ...] = ("/server_info", "/v1/models")
    simulated = True
    salt_field: str | None = "cache_salt"
    optional_flags: Mapping[str, str | None] = {}
    one_node_reason: str | None = None

    def command(self, launch: Launch) -> Command:
        setup, arm = launch.setup, launch.arm
        program = setup.command or (setup.python or sys.executable, "-m", _MODULE)
        flags: dict[str, FlagValue] = {
            "host": launch.host,
            "port": launch.port,
            "model": launch.target_path,
            **_speculation_flags(arm.knobs, launch.drafter_path),
            **setup.flags,
            **arm.flags,
        }
        rank = launch.rank
        if rank is not None:
            flags |= {"nnodes": rank.of, "node-rank": rank.number, "head": rank.meeting_point}
        length, rates = imposed_length(arm), imposed_rates(arm)
        if rates is not None:
            flags["accept"] = ",".join(f"{c:g}" for c in _conditional(rates))
        elif length is not None:
            flags["accept"] = _imposed(length)
        answers = rank is None or rank.number == 0
        return Command((*program, *flag_args(flags)), {**setup.env, **arm.env}, listens=answers)

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        program_end = argv.index(_MODULE) + 1 if _MODULE in argv else 0
        try:
            options, _ = build_parser().parse_known_args(list(argv[program_end:]))
        except SystemExit:
            raise BadInput(f"not a command of the fake engine: {' '.join(argv)}") from None
        speculates = options.method != "none"
        return Knobs(
            method=options.method,
            drafter=options.draft_model,
            num_steps=options.num_steps,
            topk=options.topk,
            num_draft_tokens=options.num_draft_tokens if speculates else None,
            cuda_graphs=False if options.enforce_eager else None,
        )

    def phase_of(self, line: str) -> str | None:
        for phase, announcement in PHASE_LINES.items():
            if line.startswith(announcement):
                return phase
        return None

    def version_in(self, line: str) -> str | None:
        return None

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        for line in reversed(log_tail):
            if _ERROR_LINE.fullmatch(line.strip()):
                known = known_cause([line])
                return Cause(line.strip(), known.remedy if known is not None else None)
        return None

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        return {"ignore_eos": True} if sampling.ignore_eos else {}

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        for payload in reversed(payloads):
            counts = as_dict(as_dict(payload.get("metrics")).get("speculative_decoding"))
            if counts:
                return FinalFields(acceptance=_acceptance(counts))
        return FinalFields()

    def read_counters(self, metrics_text: str) -> ServerCounters:
        metrics = parse_metrics(metrics_text)
        return ServerCounters(
            generation_tokens=metrics.count(f"{_PREFIX}generation_tokens_total"),
            prompt_tokens=metrics.count(f"{_PREFIX}prompt_tokens_total"),
            cached_tokens=metrics.count(f"{_PREFIX}prefix_cache_hits_total"),
            requests_running=metrics.count(f"{_PREFIX}num_requests_running"),
            requests_waiting=metrics.count(f"{_PREFIX}num_requests_waiting"),
            acceptance=read_spec_counters(metrics, _PREFIX),
        )

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        info = bodies.get("/server_info")
        if not isinstance(info, dict):
            return ServerFacts(engine=self.name, reported=dict(bodies))
        effective = Knobs(
            method=info.get("method", "none"),
            drafter=info.get("draft_model"),
            num_steps=info.get("num_steps"),
            topk=info.get("topk"),
            num_draft_tokens=info.get("num_draft_tokens"),
            cuda_graphs=False if info.get("enforce_eager") else None,
        )
        return ServerFacts(
            engine=self.name,
            version=info.get("version"),
            model=info.get("model"),
            effective=effective,
            reported=dict(bodies),
        )

    def flush_call(self) -> HttpCall | None:
        return HttpCall("POST", "/reset_prefix_cache", advice="Start it with --no-prefix-caching")

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        return HttpCall("POST", "/tokenize", {"prompt": text, **({"model": model} if model else {})})

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        return token_list(body)


def _imposed(length: float) -> str:
    """Chances that give this mean length: whole positions, then one fraction, then nothing."""
    whole, fraction = int(length - 1), (length - 1) % 1
    return ",".join([*["1"] * whole, f"{fraction:.6g}", "0"])


def _conditional(rates: Sequence[float]) -> list[float]:
    """From marginal rates by position, each given that all before were kept."""
    before = [1.0, *rates]
    return [*(rate / base if base else 0.0 for base, rate in zip(before, rates, strict=False)), 0.0]


def _speculation_flags(knobs: Knobs, drafter_path: str | None) -> dict[str, FlagValue]:
    if knobs.method not in METHODS:
        raise BadInput(f"method {knobs.method!r}: the fake engine knows {', '.join(METHODS)}")
    flags: dict[str, FlagValue] = {"enforce-eager": knobs.cuda_graphs is False}
    if knobs.method != "none":
        flags |= {
            "method": knobs.method,
            "draft-model": drafter_path,
            "num-draft-tokens": knobs.num_draft_tokens or knobs.num_steps,
            "num-steps": knobs.num_steps,
            "topk": knobs.topk,
        }
    return flags


def _acceptance(counts: Mapping[str, Any]) -> AcceptanceCounts | None:
    histogram, drafted = as_counts(counts.get("acceptance_histogram")), as_int(counts.get("num_draft_tokens"))
    if histogram is None or drafted is None or sum(j * n for j, n in enumerate(histogram)) > drafted:
        return None
    return AcceptanceCounts.from_histogram(histogram, num_draft_tokens=drafted)
