"""Any OpenAI-compatible server of which nothing more is known: measured, never launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spectune.domain.arm import Knobs
from spectune.domain.measurement import ServerCounters
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import Cause, Command, FinalFields, HttpCall, Launch, ModelFormat
from spectune.engines.json_bodies import first_model_id
from spectune.engines.traits import EngineTraits
from spectune.errors import BadInput

TRAITS = EngineTraits(name="openai", title="an OpenAI-compatible server", port=8000)


class OpenAICompatible:
    name = TRAITS.name
    traits = TRAITS
    methods: tuple[str, ...] = ("none",)
    model_format: ModelFormat = "hf"
    ready_timeout_s = 600.0
    settle_s = 0.0
    metrics_path = "/metrics"
    info_paths: tuple[str, ...] = ("/v1/models",)
    simulated = False
    salt_field: str | None = None
    optional_flags: Mapping[str, str | None] = {}
    one_node_reason: str | None = "spectune starts no server of this kind"

    def command(self, launch: Launch) -> Command:
        raise BadInput("engine: spectune does not know how to launch this server; it can only measure it")

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        return Knobs()

    def phase_of(self, line: str) -> str | None:
        return None

    def version_in(self, line: str) -> str | None:
        return None

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        return None

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        return {"ignore_eos": True} if sampling.ignore_eos else {}

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        return FinalFields()

    def read_counters(self, metrics_text: str) -> ServerCounters:
        return ServerCounters()

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        return ServerFacts(engine=self.name, model=first_model_id(bodies.get("/v1/models")))

    def flush_call(self) -> HttpCall | None:
        return None

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        return None

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        return None
