"""llama.cpp: ``llama-server``, or the embedded launcher that takes the same flags.

Facts read and measured on package ``xllamacpp`` 2026.10.11549.
"""

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
from spectune.engines.containers import with_variables
from spectune.engines.death_causes import known_cause
from spectune.engines.flags import (
    chain_draft_tokens,
    flag_args,
    imposed_length,
    imposed_rates,
    int_or_none,
    merge_flags,
    normalise,
    read_args,
)
from spectune.engines.json_bodies import as_dict, as_int, as_str, first_model_id, token_list
from spectune.engines.llamacpp.traits import TRAITS
from spectune.engines.prometheus import parse_metrics, read_spec_counters
from spectune.errors import BadInput

_VERSION_LINE = re.compile(r"llama_server: xllamacpp \S+|build: \d+ \(\w+\)")
_LENGTH_FLAGS = {
    "ngram-simple": "spec-ngram-simple-size-m",
    "ngram-map-k": "spec-ngram-map-k-size-m",
    "ngram-map-k4v": "spec-ngram-map-k4v-size-m",
    "ngram-mod": "spec-ngram-mod-n-max",
}
_NGRAM_SIZE_FLAG = "spec-ngram-simple-size-n"
_MANAGED = ("model", "host", "port", "spec-type", "model-draft", "spec-draft-model", "spec-draft-n-max")


class LlamaCpp:
    name = TRAITS.name
    traits = TRAITS
    methods: tuple[str, ...] = ("none", *TRAITS.methods)
    model_format: ModelFormat = "gguf"
    ready_timeout_s = 600.0
    settle_s = 0.5
    metrics_path = "/metrics"
    info_paths: tuple[str, ...] = ("/props", "/slots", "/v1/models")
    simulated = False
    salt_field: str | None = None
    optional_flags: Mapping[str, str | None] = {"metrics": None, "slots": None, "cache-ram": None}
    one_node_reason: str | None = (
        "llama.cpp spans nodes only with its RPC backend: `rpc-server` on each and `--rpc` on the first. The embedded "
        "package has neither, and spectune does not start them"
    )

    def command(self, launch: Launch) -> Command:
        setup, arm = launch.setup, launch.arm
        if launch.rank is not None:
            raise BadInput(f"ray.nodes: {self.one_node_reason}")
        own = dict(arm.env)
        if arm.knobs.cuda_graphs is False:
            own["GGML_CUDA_DISABLE_GRAPHS"] = "1"
        if setup.command:
            prefix = with_variables(setup.command, {**setup.env, **own})
        elif setup.executable:
            prefix = [setup.executable]
        else:
            prefix = [setup.python or sys.executable, "-u", "-m", "spectune.embedded.llama_server"]
        defaults: dict[str, FlagValue] = {
            "parallel": launch.max_concurrency,
            "ctx-size": 4096 * launch.max_concurrency,
            "metrics": True,
            "slots": True,
            "cache-ram": 0,
        }
        flags = merge_flags(defaults, setup.flags, arm.flags, managed=_MANAGED, engine=self.name)
        fixed: dict[str, FlagValue] = {"model": launch.target_path, "host": launch.host, "port": launch.port}
        return Command(
            argv=(*prefix, *flag_args(fixed), *flag_args(flags), *flag_args(self._speculation(launch))),
            env={**setup.env, **own},
        )

    def _speculation(self, launch: Launch) -> dict[str, FlagValue]:
        knobs = launch.arm.knobs
        if knobs.method == "none":
            return {}
        spec_type = TRAITS.methods.get(knobs.method)
        if spec_type is None:
            raise BadInput(
                f"method: llama.cpp does not know {knobs.method!r}; valid: {', '.join(self.methods)}"
            )
        flags: dict[str, FlagValue] = {"spec-type": spec_type}
        if knobs.method in TRAITS.needs_drafter:
            if launch.drafter_path is None:
                raise BadInput(f"drafter: method {knobs.method} needs one (a GGUF file)")
            flags["spec-draft-model"] = launch.drafter_path
        length = chain_draft_tokens(
            num_steps=knobs.num_steps,
            topk=knobs.topk,
            num_draft_tokens=knobs.num_draft_tokens,
            engine="llama.cpp",
        )
        if length is not None:
            if spec_type in _LENGTH_FLAGS:
                flags[_LENGTH_FLAGS[spec_type]] = length
            given = {normalise(name) for name in (*launch.setup.flags, *launch.arm.flags)}
            if spec_type == "ngram-simple" and _NGRAM_SIZE_FLAG not in given:
                # llama.cpp's own 12 hardly ever matches in short answers, and it drafts nothing if m < n.
                flags[_NGRAM_SIZE_FLAG] = min(3, length)
            flags["spec-draft-n-max"] = length
        length_imposed, rates = imposed_length(launch.arm), imposed_rates(launch.arm)
        if rates is not None:
            flags["spec-synth-rates"] = ",".join(f"{rate:g}" for rate in rates)
        elif length_imposed is not None:
            flags["spec-synth-len"] = length_imposed
        return flags

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        args = read_args(argv)
        spec_type = str(args.get("spec-type", "none"))
        method = next((name for name, native in TRAITS.methods.items() if native == spec_type), spec_type)
        drafter = args.get("spec-draft-model", args.get("model-draft", args.get("md")))
        length = int_or_none(args.get(_LENGTH_FLAGS.get(spec_type, "spec-draft-n-max")))
        return Knobs(
            method=method,
            drafter=drafter if isinstance(drafter, str) else None,
            num_draft_tokens=length if method != "none" else None,
        )

    def phase_of(self, line: str) -> str | None:
        if "loading model" in line or "loading draft model" in line:
            return "load"
        if "initializing, n_slots" in line or "warming up the model" in line:
            return "warm-up"
        return None

    def version_in(self, line: str) -> str | None:
        """``llama_server: xllamacpp 2026.10.11549`` of the launcher; ``build: 7123 (abc1234)`` of llama-server."""
        found = _VERSION_LINE.search(line)
        return found.group(0).removeprefix("llama_server: ") if found else None

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        return known_cause(log_tail)

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        fields: dict[str, Any] = {"cache_prompt": False}
        if sampling.ignore_eos:
            fields["ignore_eos"] = True
        return fields

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        """``draft_n`` is absent when nothing was drafted; verify steps are not reported per request."""
        timings = next((p["timings"] for p in payloads if isinstance(p.get("timings"), dict)), None)
        if timings is None:
            return FinalFields()
        acceptance = None
        drafted, accepted = as_int(timings.get("draft_n")), as_int(timings.get("draft_n_accepted"))
        if drafted is not None and accepted is not None and 0 <= accepted <= drafted:
            acceptance = AcceptanceCounts(
                num_drafts=None, num_draft_tokens=drafted, num_accepted_tokens=accepted
            )
        return FinalFields(
            acceptance=acceptance,
            cached_tokens=as_int(timings.get("cache_n")),
            server_timings=dict(timings),
        )

    def read_counters(self, metrics_text: str) -> ServerCounters:
        metrics = parse_metrics(metrics_text)
        return ServerCounters(
            generation_tokens=metrics.count("llamacpp:tokens_predicted_total"),
            prompt_tokens=metrics.count("llamacpp:prompt_tokens_total"),
            cached_tokens=metrics.count("llamacpp:prompt_tokens_cached_total"),
            requests_running=metrics.count("llamacpp:requests_processing"),
            requests_waiting=metrics.count("llamacpp:requests_deferred"),
            acceptance=read_spec_counters(metrics, "llamacpp:"),
        )

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        props = as_dict(bodies.get("/props"))
        slots = bodies.get("/slots")
        slot = as_dict(slots[0]) if isinstance(slots, list) and slots else {}
        spec_types = as_str(as_dict(slot.get("params")).get("speculative.types"))
        effective = None
        if slot.get("speculative") is False:
            # With a draft it could not use, the server goes on without one and still names the type.
            effective = Knobs()
        elif spec_types is not None:
            effective = self.read_flags(["--spec-type", spec_types])
        reported = {
            key: props[key]
            for key in (
                "model_path",
                "model_alias",
                "model_ftype",
                "total_slots",
                "build_info",
                "chat_template",
            )
            if key in props
        }
        if slot:
            reported["n_ctx_slot"] = slot.get("n_ctx")
        return ServerFacts(
            engine=self.name,
            version=as_str(props.get("build_info")),
            model=as_str(props.get("model_path")) or first_model_id(bodies.get("/v1/models")),
            effective=effective,
            reported=reported,
        )

    def flush_call(self) -> HttpCall | None:
        """Not needed: every request asks for ``cache_prompt: false``."""
        return None

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        return HttpCall("POST", "/tokenize", {"content": text, "add_special": False})

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        return token_list(body)
