"""vLLM (V1 engine). Facts measured on vLLM 0.32.0."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import FlagValue, Knobs
from spectune.domain.measurement import ServerCounters
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import Cause, Command, FinalFields, HttpCall, Launch, ModelFormat, Rank
from spectune.engines.containers import with_variables
from spectune.engines.death_causes import known_cause
from spectune.engines.flags import (
    chain_draft_tokens,
    flag_args,
    imposed_length,
    imposed_rates,
    merge_flags,
    read_args,
)
from spectune.engines.json_bodies import as_counts, as_dict, as_int, as_str, first_model_id, token_list
from spectune.engines.prometheus import parse_metrics, read_spec_counters
from spectune.engines.vllm.traits import TRAITS
from spectune.errors import BadInput

_SERVER_INFO = "/server_info?config_format=json"
_MANAGED = ("model", "host", "port", "speculative-config")
_MANAGED_ON_NODES = (
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "headless",
    "distributed-executor-backend",
)
_POINTS_UP = re.compile(r"See root cause above|See stack trace \(above\) for the root cause")
_SPEC_PREFIX = "speculative."
"""``flags`` beginning so become keys of ``--speculative-config``: ``speculative.prompt_lookup_max``."""


class Vllm:
    name = TRAITS.name
    traits = TRAITS
    methods: tuple[str, ...] = ("none", *TRAITS.methods)
    model_format: ModelFormat = "hf"
    ready_timeout_s = 1800.0
    settle_s = 2.0
    metrics_path = "/metrics"
    info_paths: tuple[str, ...] = ("/version", "/v1/models", _SERVER_INFO)
    simulated = False
    salt_field: str | None = "cache_salt"
    optional_flags: Mapping[str, str | None] = {
        "per-request-spec-decode-metrics": "0.29.0",
        "enable-prompt-tokens-details": None,
    }
    one_node_reason: str | None = None

    def command(self, launch: Launch) -> Command:
        setup, arm, rank = launch.setup, launch.arm, launch.rank
        answers = rank is None or rank.number == 0
        # The development routes hold /reset_prefix_cache and /server_info; the server listens on loopback.
        own_address = {} if rank is None else {"VLLM_HOST_IP": rank.address}
        added = {"VLLM_SERVER_DEV_MODE": "1", **own_address}
        if setup.command:
            prefix = [
                *with_variables(setup.command, {**added, **setup.env, **arm.env}),
                "--model",
                launch.target_path,
            ]
        elif setup.python and not answers:
            # Only `vllm serve` knows --headless; the API server's own module would start a second API.
            prefix = [setup.python, "-m", "vllm.entrypoints.cli.main", "serve", launch.target_path]
        elif setup.python:
            module = "vllm.entrypoints.openai.api_server"
            prefix = [setup.python, "-m", module, "--model", launch.target_path]
        else:
            prefix = [setup.executable or "vllm", "serve", launch.target_path]
        defaults: dict[str, FlagValue] = {"enable-prompt-tokens-details": True}
        if arm.knobs.method != "none":
            defaults["per-request-spec-decode-metrics"] = "summary"
        if arm.knobs.cuda_graphs is False:
            defaults["enforce-eager"] = True
        shared = {k: v for k, v in setup.flags.items() if not k.startswith(_SPEC_PREFIX)}
        own = {k: v for k, v in arm.flags.items() if not k.startswith(_SPEC_PREFIX)}
        managed = _MANAGED if rank is None else (*_MANAGED, *_MANAGED_ON_NODES)
        flags = merge_flags(defaults, shared, own, managed=managed, engine=self.name)
        speculation = self._speculation(launch)
        fixed: dict[str, FlagValue] = {"host": launch.host, "port": launch.port} if answers else {}
        if rank is not None:
            fixed |= _of_rank(rank, flags)
        argv = [*prefix, *flag_args(fixed), *flag_args(flags)]
        if speculation:
            argv += ["--speculative-config", json.dumps(speculation, separators=(",", ":"))]
        return Command(argv=tuple(argv), env={**added, **setup.env, **arm.env}, listens=answers)

    def _speculation(self, launch: Launch) -> dict[str, Any]:
        knobs = launch.arm.knobs
        if knobs.method == "none":
            return {}
        if knobs.method not in self.methods:
            raise BadInput(f"method: vLLM does not know {knobs.method!r}; valid: {', '.join(self.methods)}")
        config: dict[str, Any] = {"method": knobs.method}
        if knobs.method in TRAITS.needs_drafter:
            if launch.drafter_path is None:
                raise BadInput(f"drafter: method {knobs.method} needs one (a folder or a hub id)")
            config["model"] = launch.drafter_path
        length = chain_draft_tokens(
            num_steps=knobs.num_steps,
            topk=knobs.topk,
            num_draft_tokens=knobs.num_draft_tokens,
            engine="vLLM",
        )
        if length is not None:
            config["num_speculative_tokens"] = length
        elif knobs.method == "ngram":
            raise BadInput("num_draft_tokens: vLLM's ngram has no default; give a number, e.g. 3")
        for layer in (launch.setup.flags, launch.arm.flags):
            for key, value in layer.items():
                if key.startswith(_SPEC_PREFIX):
                    config[key.removeprefix(_SPEC_PREFIX)] = _json_or_text(value, key)
        if knobs.method == "ngram":
            # Without bounds vLLM looks up n-grams of one length only; these are its documentation's.
            config.setdefault("prompt_lookup_max", 4)
            config.setdefault("prompt_lookup_min", 2)
        length_imposed, rates = imposed_length(launch.arm), imposed_rates(launch.arm)
        if length_imposed is not None:
            config["rejection_sample_method"] = "synthetic"
        if rates is not None:
            config["synthetic_acceptance_rates"] = list(rates)
        elif length_imposed is not None:
            config["synthetic_acceptance_length"] = length_imposed
        return config

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        args = read_args(argv)
        text = args.get("speculative-config")
        graphs = False if args.get("enforce-eager") else None
        try:
            config = as_dict(json.loads(text)) if isinstance(text, str) else {}
        except json.JSONDecodeError:
            config = {}
        return _knobs(config, cuda_graphs=graphs)

    def phase_of(self, line: str) -> str | None:
        if "Starting to load model" in line or "Loading drafter model" in line:
            return "load"
        if "Warming up model for the compilation" in line or "Start compiling function" in line:
            return "compile"
        if "Available KV cache memory" in line or "KV cache size:" in line:
            return "cache"
        if "Capturing CUDA graph" in line or "Capturing cudagraphs" in line:
            return "capture"
        if "Application startup complete" in line:
            return "warm-up"
        return None

    def version_in(self, line: str) -> str | None:
        return None

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        # The last to die only point at the first; a worker's own reason is repeated by the engine core.
        useful = [line for line in log_tail if not _POINTS_UP.search(line)]
        final = [
            line for line in useful if "Error retrieving file list" not in line
        ]  # tried again, then given up
        return known_cause(final) or known_cause(useful)

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        return {"ignore_eos": True} if sampling.ignore_eos else {}

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        """``metrics.speculative_decoding`` of the usage chunk (``--per-request-spec-decode-metrics``)."""
        for payload in reversed(payloads):
            metrics = as_dict(payload.get("metrics"))
            stats = as_dict(metrics.get("speculative_decoding"))
            histogram, drafted = (
                as_counts(stats.get("acceptance_histogram")),
                as_int(stats.get("num_draft_tokens")),
            )
            if histogram is not None and drafted is not None:
                counts = AcceptanceCounts.from_histogram(histogram, num_draft_tokens=drafted)
                return FinalFields(acceptance=counts, server_timings=dict(metrics))
        return FinalFields()

    def read_counters(self, metrics_text: str) -> ServerCounters:
        metrics = parse_metrics(metrics_text)
        return ServerCounters(
            generation_tokens=metrics.count("vllm:generation_tokens_total"),
            prompt_tokens=metrics.count("vllm:prompt_tokens_total"),
            cached_tokens=metrics.count("vllm:prefix_cache_hits_total"),
            requests_running=metrics.count("vllm:num_requests_running"),
            requests_waiting=metrics.count("vllm:num_requests_waiting"),
            acceptance=read_spec_counters(metrics, "vllm:"),
        )

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        config = as_dict(as_dict(bodies.get(_SERVER_INFO)).get("vllm_config"))
        effective = None
        reported: dict[str, Any] = {}
        if config:
            effective = _knobs(as_dict(config.get("speculative_config")), cuda_graphs=None)
            for section in ("model_config", "cache_config", "scheduler_config", "parallel_config"):
                reported[section] = _scalars(as_dict(config.get(section)))
            reported["speculative_config"] = _scalars(as_dict(config.get("speculative_config")))
        return ServerFacts(
            engine=self.name,
            version=as_str(as_dict(bodies.get("/version")).get("version")),
            model=first_model_id(bodies.get("/v1/models")),
            effective=effective,
            reported=reported,
        )

    def flush_call(self) -> HttpCall | None:
        advice = (
            "Set VLLM_SERVER_DEV_MODE=1 for the server (in a container: -e VLLM_SERVER_DEV_MODE=1), or start it with "
            "--no-enable-prefix-caching"
        )
        return HttpCall("POST", "/reset_prefix_cache", advice=advice)

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if model is not None:
            body["model"] = model
        return HttpCall("POST", "/tokenize", body)

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        return token_list(body)


def _of_rank(rank: Rank, flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    division = TRAITS.division(flags)
    if division is not None and division.replicas > 1:
        raise BadInput(
            f"flags.data-parallel-size: {division.replicas} copies of a server over several nodes is not supported; "
            "give tensor and pipeline parallel sizes only, or leave out `ray.nodes`"
        )
    return {
        "nnodes": rank.of,
        "node-rank": rank.number,
        "master-addr": rank.head,
        "master-port": rank.head_port,
        "distributed-executor-backend": "mp",
        "headless": rank.number > 0,
    }


def _json_or_text(value: FlagValue, key: str) -> Any:
    """A part of the speculative config; lists and objects come as JSON text, e.g. a schedule by batch size."""
    if not isinstance(value, str) or not value.startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise BadInput(f"{key}: not JSON (character {error.pos}): {value}") from error


def _knobs(config: Mapping[str, Any], *, cuda_graphs: bool | None) -> Knobs:
    method = as_str(config.get("method"))
    if method is None:
        return Knobs(cuda_graphs=cuda_graphs)
    length = as_int(config.get("num_speculative_tokens"))
    drafter = as_str(config.get("model"))
    return Knobs(
        method=method,
        drafter=None if method == "ngram" else drafter,
        num_draft_tokens=length if length and length > 0 else None,
        cuda_graphs=cuda_graphs,
    )


def _scalars(section: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if v is None or isinstance(v, bool | int | float | str)}
