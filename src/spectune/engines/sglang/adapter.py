"""SGLang. Facts measured on, and read in, SGLang 0.5.23."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, FlagValue, Knobs
from spectune.domain.measurement import ServerCounters
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import Cause, Command, FinalFields, HttpCall, Launch, ModelFormat, Rank
from spectune.engines.containers import with_variables
from spectune.engines.death_causes import known_cause
from spectune.engines.flags import flag_args, imposed_length, int_or_none, merge_flags, read_args
from spectune.engines.json_bodies import as_counts, as_dict, as_int, as_str, first_model_id, token_list
from spectune.engines.prometheus import parse_metrics
from spectune.engines.sglang.traits import TRAITS
from spectune.errors import BadInput

_TREE_METHODS = frozenset({"eagle", "eagle3", "mtp", "draft_model"})
_RUNNING_REQUESTS = 48
"""SGLang caps speculative servers at this many running requests, and plain ones much higher: both are pinned."""
_MANAGED = (
    "model-path",
    "model",
    "host",
    "port",
    "speculative-algorithm",
    "speculative-draft-model-path",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
)
_MANAGED_ON_NODES = ("nnodes", "node-rank", "dist-init-addr", "nccl-init-addr")


class Sglang:
    name = TRAITS.name
    traits = TRAITS
    methods: tuple[str, ...] = ("none", *TRAITS.methods)
    model_format: ModelFormat = "hf"
    ready_timeout_s = 1800.0
    settle_s = 2.0
    metrics_path = "/metrics"
    info_paths: tuple[str, ...] = ("/server_info", "/v1/models")
    simulated = False
    salt_field: str | None = "cache_salt"
    optional_flags: Mapping[str, str | None] = {"enable-metrics": None, "enable-cache-report": None}
    one_node_reason: str | None = None

    def command(self, launch: Launch) -> Command:
        setup, arm = launch.setup, launch.arm
        own = {**_imposing(arm), **arm.env}
        if setup.command:
            prefix = with_variables(setup.command, {**setup.env, **own})
        elif setup.python:
            prefix = [setup.python, "-m", "sglang.launch_server"]
        else:
            prefix = [setup.executable or "sglang", "serve"]
        defaults: dict[str, FlagValue] = {
            "enable-metrics": True,
            "enable-cache-report": True,
        }
        if arm.knobs.cuda_graphs is False:
            defaults["disable-cuda-graph"] = True
        managed = _MANAGED if launch.rank is None else (*_MANAGED, *_MANAGED_ON_NODES)
        flags = merge_flags(defaults, setup.flags, arm.flags, managed=managed, engine=self.name)
        if "max-running-requests" not in flags:
            flags["max-running-requests"] = _running_requests(launch, flags)
        fixed: dict[str, FlagValue] = {
            "model-path": launch.target_path,
            "host": launch.host,
            "port": launch.port,  # of a rank above 0: a placeholder that only says that it is healthy
        }
        if launch.rank is not None:
            fixed |= _of_rank(launch.rank, flags)
        argv = (*prefix, *flag_args(fixed), *flag_args(flags), *flag_args(self._speculation(launch)))
        return Command(argv=argv, env={**setup.env, **own})

    def _speculation(self, launch: Launch) -> dict[str, FlagValue]:
        knobs = launch.arm.knobs
        if knobs.method == "none":
            return {}
        algorithm = TRAITS.methods.get(knobs.method)
        if algorithm is None:
            raise BadInput(f"method: SGLang does not know {knobs.method!r}; valid: {', '.join(self.methods)}")
        flags: dict[str, FlagValue] = {"speculative-algorithm": algorithm}
        if knobs.method in TRAITS.needs_drafter and launch.drafter_path is None:
            raise BadInput(f"drafter: method {knobs.method} needs one (a folder or a hub id)")
        if launch.drafter_path is not None:
            flags["speculative-draft-model-path"] = launch.drafter_path
        if knobs.method in _TREE_METHODS:
            steps, topk, tokens = _tree(knobs)
            if steps is not None:
                flags["speculative-num-steps"] = steps
                flags["speculative-eagle-topk"] = topk
                flags["speculative-num-draft-tokens"] = tokens
        elif knobs.num_draft_tokens is not None:
            flags["speculative-num-draft-tokens"] = knobs.num_draft_tokens + 1
        return flags

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        args = read_args(argv)
        drafter = args.get("speculative-draft-model-path", args.get("speculative-draft-model"))
        return _knobs(
            algorithm=as_str(args.get("speculative-algorithm")),
            drafter=as_str(drafter),
            steps=int_or_none(args.get("speculative-num-steps")),
            topk=int_or_none(args.get("speculative-eagle-topk")),
            tokens=int_or_none(args.get("speculative-num-draft-tokens")),
            cuda_graphs=False if "disable-cuda-graph" in args else None,
        )

    def phase_of(self, line: str) -> str | None:
        if "Load weight begin" in line:
            return "load"
        if "Load weight end" in line:
            return "cache"
        if "CUDA graph begin" in line or "Capture cuda graph begin" in line:
            return "capture"
        if "Application startup complete" in line or "Uvicorn running on" in line:
            return "warm-up"
        return None

    def version_in(self, line: str) -> str | None:
        return None

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        return known_cause(log_tail)

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        fields: dict[str, Any] = {"return_spec_tokens_details": True}
        if sampling.ignore_eos:
            fields["ignore_eos"] = True
        return fields

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        """``sglext.spec_tokens_details``: steps by number of kept drafts."""
        for payload in reversed(payloads):
            details = as_dict(as_dict(payload.get("sglext")).get("spec_tokens_details"))
            counts = _counts(details)
            if counts is not None:
                return FinalFields(acceptance=counts, server_timings=dict(details))
        return FinalFields()

    def read_counters(self, metrics_text: str) -> ServerCounters:
        """SGLang counts verify steps but not accepted tokens: acceptance comes per request."""
        metrics = parse_metrics(metrics_text)
        return ServerCounters(
            generation_tokens=metrics.count("sglang:generation_tokens_total"),
            prompt_tokens=metrics.count("sglang:prompt_tokens_total"),
            cached_tokens=metrics.count("sglang:cached_tokens_total"),
            requests_running=metrics.count("sglang:num_running_reqs"),
            requests_waiting=metrics.count("sglang:num_queue_reqs"),
            verify_calls=metrics.count("sglang:spec_verify_calls_total"),
        )

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        info = as_dict(bodies.get("/server_info"))
        effective = None
        if "speculative_algorithm" in info:
            effective = _knobs(
                algorithm=as_str(info.get("speculative_algorithm")),
                drafter=as_str(info.get("speculative_draft_model_path")),
                steps=as_int(info.get("speculative_num_steps")),
                topk=as_int(info.get("speculative_eagle_topk")),
                tokens=as_int(info.get("speculative_num_draft_tokens")),
                cuda_graphs=None,
            )
        kept = (
            "attention_backend",
            "context_length",
            "max_running_requests",
            "mem_fraction_static",
            "max_total_tokens",
            "chunked_prefill_size",
            "page_size",
            "kv_cache_dtype",
            "dtype",
            "quantization",
            "tp_size",
            "disable_radix_cache",
            "disable_overlap_schedule",
            "random_seed",
        )
        reported = {key: info[key] for key in info if key in kept or key.startswith("speculative_")}
        states = info.get("internal_states")
        state = as_dict(states[0]) if isinstance(states, list) and len(states) == 1 else {}
        length = state.get("avg_spec_accept_length")
        return ServerFacts(
            engine=self.name,
            version=as_str(info.get("version")),
            model=as_str(info.get("served_model_name")) or first_model_id(bodies.get("/v1/models")),
            effective=effective,
            reported={k: v for k, v in reported.items() if not isinstance(v, list | dict)},
            acceptance_length=length if isinstance(length, float) and 1 <= length < math.inf else None,
        )

    def flush_call(self) -> HttpCall | None:
        advice = "Start the server with --disable-radix-cache, or look in its log for why it did not flush"
        return HttpCall("POST", "/flush_cache?timeout=10", advice=advice)

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if model is not None:
            body["model"] = model
        return HttpCall("POST", "/tokenize", body)

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        return token_list(body)


def _imposing(arm: Arm) -> dict[str, str]:
    """Variables that impose an acceptance length.

    SGLang writes one and the same token in place of what it accepts unless told to keep the drafted ones, and the
    experts of a mixture are then chosen alike in every step: verification is cheaper than real text's. Only chains can
    keep them; SGLang refuses trees, which its n-gram drafts are. Older versions know the first variable alone.
    """
    length = imposed_length(arm)
    if length is None:
        return {}
    variables = {"SGLANG_SIMULATE_ACC_LEN": f"{length:g}"}
    if (arm.knobs.topk or 1) == 1 and arm.knobs.method != "ngram":
        variables["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"  # noqa: S105
    return variables


def _running_requests(launch: Launch, flags: Mapping[str, FlagValue]) -> int:
    """The limit of running requests, which SGLang divides by the groups of data parallel attention."""
    division = TRAITS.division(flags)
    groups = 1 if division is None else division.attention
    return max(_RUNNING_REQUESTS, launch.max_concurrency) * groups


def _of_rank(rank: Rank, flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    division = TRAITS.division(flags)
    if division is not None and division.replicas > 1:
        raise BadInput(
            f"flags.dp-size: SGLang refuses {division.replicas} copies of a server over several nodes, unless with "
            "enable-dp-attention; give tp-size and pp-size only, or leave out `ray.nodes`"
        )
    return {"nnodes": rank.of, "node-rank": rank.number, "dist-init-addr": rank.meeting_point}


def _tree(knobs: Knobs) -> tuple[int | None, int, int]:
    """(steps, topk, tokens with the root), all three, since SGLang fails or guesses on a part of them."""
    topk = knobs.topk or 1
    steps, drafted = knobs.num_steps, knobs.num_draft_tokens
    if topk == 1:
        if steps is not None and drafted is not None and steps != drafted:
            raise BadInput(
                f"num_draft_tokens: with topk 1 SGLang drafts one token per step, so it must equal "
                f"num_steps ({steps}), got {drafted}"
            )
        length = steps if steps is not None else drafted
        return (None, 1, 0) if length is None else (length, 1, length + 1)
    if steps is None or drafted is None:
        raise BadInput("num_steps: with topk > 1 SGLang needs num_steps and num_draft_tokens too")
    most = topk + (steps - 1) * topk * topk
    if drafted > most:
        raise BadInput(
            f"num_draft_tokens: {drafted} is more than the {most} candidates of topk {topk} and "
            f"{steps} steps (topk + (num_steps - 1) * topk^2)"
        )
    return steps, topk, drafted + 1


def _knobs(
    *,
    algorithm: str | None,
    drafter: str | None,
    steps: int | None,
    topk: int | None,
    tokens: int | None,
    cuda_graphs: bool | None,
) -> Knobs:
    if algorithm is None:
        return Knobs(cuda_graphs=cuda_graphs)
    native = algorithm.upper()
    method = next((name for name, value in TRAITS.methods.items() if value == native), native.lower())
    is_tree = method in _TREE_METHODS
    return Knobs(
        method=method,
        drafter=drafter,
        num_steps=steps if is_tree and steps else None,
        topk=topk if is_tree and topk else None,
        num_draft_tokens=tokens - 1 if tokens and tokens > 1 else None,
        cuda_graphs=cuda_graphs,
    )


def _counts(details: Mapping[str, Any]) -> AcceptanceCounts | None:
    steps = as_int(details.get("spec_verify_ct"))
    accepted = as_int(details.get("spec_num_correct_drafts"))
    drafted = as_int(details.get("spec_num_proposed_drafts"))
    if steps is None or accepted is None or drafted is None or accepted > drafted:
        return None
    histogram = as_counts(details.get("spec_correct_drafts_histogram"))
    if histogram is not None and sum(histogram) == steps:
        counts = AcceptanceCounts.from_histogram(histogram, num_draft_tokens=drafted)
        if counts.num_accepted_tokens == accepted:
            return counts
    return AcceptanceCounts(num_drafts=steps, num_draft_tokens=drafted, num_accepted_tokens=accepted)
