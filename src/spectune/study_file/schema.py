"""The study file as a schema. Docs: ``docs/study-file.md`` is generated from the descriptions here."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spectune.domain.arm import FACTORS, FlagValue
from spectune.domain.secrets import redacted
from spectune.domain.study import LaunchOrder
from spectune.domain.workload import too_few_requests
from spectune.engines.containers import why_not_ours
from spectune.engines.registry import ENGINE_NAMES, adapter_for
from spectune.errors import BadInput


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _as_engine(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _as_model(value: Any) -> Any:
    return {"any": value} if isinstance(value, str) else value


def _as_words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _kinds(annotation: Any) -> set[Any]:
    """The plain types somewhere inside ``X | None``, ``tuple[X, ...]``, ``dict[str, X]``."""
    parts = get_args(annotation)
    return set().union(*map(_kinds, parts)) if parts else {annotation}


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes ``true`` for 1, and YAML reads ``yes`` and ``on`` as ``true``."""
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        if bool in kinds or not kinds & {int, float}:
            return value
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) for item in items):
            raise ValueError(
                "a number is wanted, got true or false; YAML reads yes, no, on and off as these too"
            )
        return value

    @field_validator("*")
    @classmethod
    def _no_secrets(cls, value: Any) -> Any:
        return _without_secrets(value)


class EngineRun(_Spec):
    """How an engine is started on this machine."""

    python: str | None = Field(
        default=None, description="Interpreter of the engine's own environment; spectune adds `-m MODULE`."
    )
    executable: str | None = Field(
        default=None, description="Server program, e.g. `llama-server`, `vllm`, `sglang`."
    )
    command: Annotated[tuple[str, ...], BeforeValidator(_as_words)] = Field(
        default=(),
        description="A prefix used as it is, e.g. a container command (a list; a string is split at spaces).",
    )
    flags: dict[str, FlagValue] = Field(
        default_factory=dict,
        description="Engine flags of every arm, without dashes; `true`: the bare flag, `false`: removes a default.",
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every arm.")
    ready_timeout_s: float | None = Field(
        default=None, gt=0, description="How long a launch may take; default: the engine's."
    )

    stuck_after_s: float | None = Field(
        default=None,
        gt=0,
        description="A server that lives but logs nothing and uses no processor, disk or GPU for so long is given "
        "up; default 300.",
    )
    allow_busy_gpus: bool = Field(
        default=False,
        description="Launch although other processes hold memory of the GPUs that will be used.",
    )

    @field_validator("command")
    @classmethod
    def _can_be_watched(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        reason = why_not_ours(value)
        if reason is not None:
            raise ValueError(reason)
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _env_values_as_text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v if isinstance(v, str) else _scalar_text(v) for k, v in value.items()}
        return value

    @model_validator(mode="after")
    def _one_way(self) -> EngineRun:
        given = [name for name in ("python", "executable", "command") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"give one of python, executable, command; got {' and '.join(given)}")
        return self


class EngineSpec(EngineRun):
    """The engine of the study; a bare name is enough."""

    name: str = Field(description=f"One of: {', '.join(ENGINE_NAMES)}.")

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return _checked_engine(value)


class ModelSpec(_Spec):
    """A model: a path, name or hub id, or one for each form (`gguf`: llama.cpp, `hf`: vLLM and SGLang)."""

    any: str | None = Field(default=None, description="Path, hub id or built-in name used by every engine.")
    gguf: str | None = Field(default=None, description="GGUF file, for llama.cpp.")
    hf: str | None = Field(default=None, description="Hugging Face folder or hub id, for vLLM and SGLang.")

    @model_validator(mode="after")
    def _something(self) -> ModelSpec:
        if not (self.any or self.gguf or self.hf):
            raise ValueError("give a path, a hub id or a built-in name")
        return self

    def for_format(self, model_format: str) -> str | None:
        own = self.gguf if model_format == "gguf" else self.hf
        return own if own is not None else self.any


_Model = Annotated[ModelSpec, BeforeValidator(_as_model)]


class ArmSpec(_Spec):
    """One configuration to measure."""

    only_engines: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(
        default=(),
        description="Measure this arm only when the study's engine is one of these; otherwise it is skipped.",
    )
    name: str | None = Field(
        default=None, min_length=1, max_length=60, description="Default: made from the factors."
    )
    method: str = Field(
        description="`none`, `ngram`, `draft_model`, `eagle`, `eagle3`, `mtp`, or one of the engine's own."
    )
    drafter: _Model | None = Field(default=None, description="The draft model, where the method needs one.")
    num_steps: int | None = Field(default=None, ge=1, description="Draft passes per verify step.")
    topk: int | None = Field(default=None, ge=1, description="Branching of the draft tree; 1 is a chain.")
    num_draft_tokens: int | None = Field(
        default=None, ge=1, description="Tokens proposed per verify step, without the root."
    )
    cuda_graphs: bool | None = Field(default=None, description="Default: the engine's.")
    synthetic_acceptance_length: float | None = Field(
        default=None,
        ge=1,
        description="The engine accepts drafts by lot at this mean length (bonus token included): measures what a step "
        "costs whatever the drafter is worth; never compared as a result.",
    )
    synthetic_acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None,
        description="The same by position: the share of steps in which each drafted token is kept, never rising. A "
        "shorter draft uses the first of them. Chains on vLLM and llama.cpp; SGLang imposes their sum.",
    )
    flags: dict[str, FlagValue] = Field(default_factory=dict, description="Engine flags of this arm.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of this arm.")
    request: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of the body of each of its requests, for what the engine changes without a restart, e.g. "
        "`speculative.n_max` of llama.cpp builds that heed it; `null` leaves a field out.",
    )
    expect: Literal["faster", "slower", "same"] | None = Field(
        default=None, description="What you expect against the baseline; judged afterwards."
    )
    why: str | None = Field(default=None, description="Why you expect it.")

    @field_validator("request")
    @classmethod
    def _an_arms_own_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _request_fields(value)

    @field_validator("synthetic_acceptance_length", "synthetic_acceptance_rates")
    @classmethod
    def _something_to_accept(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("method") == "none":
            raise ValueError(
                "plain decoding drafts nothing to accept: leave it out, or give a method that drafts"
            )
        return value

    @field_validator("only_engines")
    @classmethod
    def _known_engines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            _checked_engine(name)
        return value

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str, info: ValidationInfo) -> str:
        engine = (info.context or {}).get("engine")
        only = info.data.get("only_engines") or ()
        if engine is not None and (not only or engine in only):
            methods = adapter_for(engine).methods
            if value not in methods:
                raise ValueError(f"{engine} does not know {value!r}; valid: {', '.join(methods)}")
        return value


class WorkloadSpec(_Spec):
    """What every arm is asked to do."""

    prompts: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(
        default=("builtin",),
        min_length=1,
        description="`builtin`, `builtin:code,maths` (categories: code, maths, chat, summary, translation, "
        "structured), or files: JSONL with `prompt`, MT-Bench `turns`, chat `messages`, ShareGPT JSON.",
    )
    num_prompts: int | None = Field(default=None, ge=1, description="Use only the first so many.")
    turns: Literal["first", "all"] = Field(
        default="first", description="For prompts with several user turns."
    )
    api: Literal["chat", "completions"] = Field(
        default="chat", description="Which OpenAI-compatible endpoint."
    )
    max_tokens: int = Field(default=128, ge=1, description="Most tokens per answer.")
    temperature: float = Field(
        default=0.0, ge=0, le=2, description="0 is greedy, and lets outputs be compared."
    )
    seed: int | None = Field(
        default=None,
        description="Sampling seed sent with every request; default: none, since a seeded request takes vLLM's whole "
        "batch off its fast sampler.",
    )
    ignore_eos: bool = Field(default=False, description="Generate `max_tokens` whatever the model says.")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Merged into every request body.")
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(_as_list)] = (
        Field(
            default=(),
            description="Closed loop: requests kept in flight; a list measures each, and the answer is about the "
            "first. Default 1.",
        )
    )
    request_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_as_list)] = Field(
        default=(), description="Open loop: Poisson arrivals per second; a list measures each."
    )
    requests_per_load: int | None = Field(
        default=None,
        ge=1,
        description="Requests at each load point, at least as many as are kept in flight; default: each prompt once, "
        "and from c=2 on at least 5 times the concurrency. Prompts repeat in order.",
    )
    request_timeout_s: float = Field(
        default=600.0, gt=0, description="After this a request counts as failed."
    )
    warmup_requests: int | None = Field(
        default=None,
        ge=0,
        description="Before measuring, at the load's own concurrency; default: twice it, at least 3.",
    )

    @model_validator(mode="after")
    def _enough_requests(self) -> WorkloadSpec:
        most = max(self.concurrency, default=1)
        if self.requests_per_load is not None and self.requests_per_load < most:
            raise ValueError(f"requests_per_load: {too_few_requests(self.requests_per_load, most)}")
        return self

    @field_validator("concurrency", "request_rate")
    @classmethod
    def _each_once(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        twice = next((v for i, v in enumerate(value) if v in value[:i]), None)
        if twice is not None:
            raise ValueError(f"{twice:g} is there twice; each load point is measured once")
        return value


class BudgetSpec(_Spec):
    """Limits; reaching one ends the study cleanly, and a larger one resumes it."""

    max_trials: int | None = Field(default=None, ge=1, description="Launches, those already made included.")
    max_minutes: float | None = Field(default=None, gt=0, description="Wall time of one `spectune run`.")


class RaySpec(_Spec):
    """What one trial asks a node of a Ray cluster for. Arms run side by side, each trial on nodes of its own."""

    nodes: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Nodes that one server spans (vLLM, SGLang): its tensor and pipeline parallel ranks are divided "
        "evenly over them. The other numbers here are then those of each node.",
    )
    gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs of one trial on a node; default: what the engine's parallel flags multiply to, divided by "
        "`nodes` (vLLM, SGLang), all of the node's for llama.cpp.",
    )
    cpus: float | None = Field(
        default=None,
        ge=0,
        description="Processors of one trial on a node; default: all of the node's, so that nobody else's Ray work "
        "runs beside a measurement.",
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Custom resources of one trial on a node; they also say which nodes may be used, e.g. "
        "`{'accelerator_type:H100': 0.001}`.",
    )
    trials_per_node: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Trials side by side on one node: more is faster, and they may disturb each other.",
    )
    max_nodes: int | None = Field(default=None, ge=1, description="Use at most so many nodes.")

    @model_validator(mode="after")
    def _whole_nodes_for_a_server(self) -> RaySpec:
        if self.nodes > 1 and self.trials_per_node > 1:
            raise ValueError(
                f"a server over {self.nodes} nodes has them to itself: leave out trials_per_node, or give nodes: 1"
            )
        if self.max_nodes is not None and self.max_nodes < self.nodes:
            raise ValueError(
                f"max_nodes: {self.max_nodes} are fewer than the {self.nodes} nodes that one server spans; give "
                f"{self.nodes} or more, or fewer nodes"
            )
        return self


class StudySpec(_Spec):
    """A study file."""

    question: str = Field(min_length=1, description="What the study is to answer, in a sentence.")
    name: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$", description="Default: the file's name."
    )
    engine: Annotated[EngineSpec, BeforeValidator(_as_engine)] = Field(
        description="Engine name, or how to run it."
    )
    engines: dict[str, EngineRun] = Field(
        default_factory=dict,
        description="How each engine is run, by name, so that `engine:` is the one line to change.",
    )
    target: _Model = Field(description="The model to serve. Built in: `smollm2-135m-instruct`.")
    drafter: _Model | None = Field(
        default=None,
        description="Drafter of arms that need one and name none. Built in: `smollm2-135m-eagle3`.",
    )
    arms: tuple[ArmSpec, ...] = Field(
        default=(), description="Configurations; the baseline is added by spectune."
    )
    factors: dict[str, Annotated[tuple[Any, ...], BeforeValidator(_as_list)]] = Field(
        default_factory=dict,
        description="Values per factor; every combination becomes an arm. Factors: "
        + ", ".join(f"`{name}`" for name in FACTORS)
        + ", `flags.NAME`, `request.NAME`.",
    )
    workload: WorkloadSpec = Field(default=WorkloadSpec(), description="Prompts, sampling and load.")
    search: Literal["predict", "one-factor", "grid", "all"] | None = Field(
        default=None,
        description="Which arms are launched: `predict` (a model learns from each launch and asks for the next; the "
        "default with `factors`), `one-factor` (change one factor of the best so far, keep or revert), `grid` (every "
        "arm once, shuffled in blocks), `all` (every arm, `repetitions` times; the default with `arms`).",
    )
    repetitions: int = Field(
        default=1, ge=1, le=100, description="Launches per arm: restarts alone move speeds by 10-20 %."
    )
    baseline_every: int = Field(
        default=2,
        ge=1,
        description="The baseline is launched again after so many arms, to cancel drift. "
        "Arms that differ in `request` alone share a launch and count as one.",
    )
    order: LaunchOrder = Field(
        default="interleaved",
        description="`interleaved`: the baseline around every `baseline_every` arms, odd repetitions backwards; "
        "`abba`: baseline, arm, arm, baseline for each pair of an arm's repetitions, so that a linear drift cancels "
        "within each four launches (an odd last one: baseline, arm). Not for a search.",
    )
    noise_floor: bool = Field(
        default=True,
        description="Launch plain decoding twice before anything else: what two equal launches differ by is the "
        "smallest difference the study can tell, and it says so at its start.",
    )
    precision: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="After the repetitions, launch on until each speedup (in a search, the winner's) is known within "
        "this share of itself, e.g. 0.03; up to the budget, at most 20 launches of an arm.",
    )
    budget: BudgetSpec = Field(default=BudgetSpec(), description="Limits.")
    host: str = Field(
        default="local",
        pattern=r"^(?:(?:ssh|ray)://)?[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]*$",
        description="Where servers run: `local`; a destination of your OpenSSH client (`user@name`), which needs "
        "nothing but python3; `ray`, the Ray cluster of this machine, or `ray://HEAD:10001` (extra `ray`, spectune "
        "installed on every node). Paths of programs and models are then paths there.",
    )
    ray: RaySpec | None = Field(default=None, description="What a trial asks a Ray cluster for.")
    lease_s: float | None = Field(
        default=None,
        ge=1,
        le=86400,
        description="A server whose spectune has gone silent for so long is stopped by its supervisor; default 30, "
        "over ssh 120.",
    )
    soak_s: float | None = Field(
        default=None, gt=0, description="The best arm is run under load for so long before it is recommended."
    )
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of every interval.")
    margin: float = Field(default=0.02, ge=0, lt=0.5, description="Speedups within it count as SAME.")

    @field_validator("engines")
    @classmethod
    def _known_engines(cls, value: dict[str, EngineRun]) -> dict[str, EngineRun]:
        for name in value:
            _checked_engine(name)
        return value

    @field_validator("host", mode="before")
    @classmethod
    def _no_password(cls, value: Any) -> Any:
        if isinstance(value, str) and ":" in value.rpartition("://")[2].rpartition("@")[0]:
            raise ValueError("a host with a password looks like a credential: give user@name")
        return value

    @model_validator(mode="after")
    def _a_cluster_for_ray(self) -> StudySpec:
        on_ray = self.host == "ray" or self.host.startswith("ray://")
        if self.ray is not None and not on_ray:
            raise ValueError(f"ray: is for `host: ray` or `host: ray://HEAD:10001`; the host is {self.host}")
        if on_ray and self.order == "abba":
            raise ValueError(
                "order: abba is for one host; on a cluster each node launches the baseline around its own arms"
            )
        return self

    @field_validator("factors")
    @classmethod
    def _known_factors(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for name, values in value.items():
            if name not in FACTORS and not name.startswith(("flags.", "request.")):
                raise ValueError(
                    f"unknown factor {name!r}; valid: {', '.join(FACTORS)}, flags.NAME, request.NAME"
                )
            if not values:
                raise ValueError(f"factor {name!r} has no values")
            twice = next((v for i, v in enumerate(values) if repr(v) in map(repr, values[:i])), None)
            if twice is not None:
                raise ValueError(f"factor {name!r} has the value {twice!r} twice")
            kind, dot, field = name.partition(".")
            if dot and not field.strip():
                raise ValueError(f"factor {name!r} names nothing, e.g. {kind}.NAME")
            for chosen in values:
                _without_secrets({field: chosen})
                if kind == "request":
                    _request_fields({field: chosen})
        if value and "method" not in value:
            raise ValueError("factors need a method, e.g. `method: [eagle3]`")
        return value


def _checked_engine(name: str) -> str:
    try:
        adapter_for(name)
    except BadInput as error:
        raise ValueError(str(error).removeprefix("engine: ")) from error
    return name


_OF_THE_WORKLOAD = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "n"),
        *("max_tokens", "max_completion_tokens", "temperature", "seed", "ignore_eos"),
    }
)


def _request_fields(value: dict[str, Any]) -> dict[str, Any]:
    """``value`` unless it holds what every arm is asked alike, or what no JSON can say."""
    for name in value:
        if name in _OF_THE_WORKLOAD:
            raise ValueError(f"{name} is the workload's, the same for every arm: arms differ in other fields")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a request body is JSON: {error}") from error
    return value


def _without_secrets(value: Any) -> Any:
    """``value``, unless a name or a text in it gives a credential away."""
    shown = redacted(value)
    if shown == value:
        return value
    what = ", ".join(_names_of_secrets(value, shown)) or json.dumps(shown, ensure_ascii=False, default=str)
    raise ValueError(
        f"{what:.200} looks like a credential, and a study file is made to be shared: leave it out and set it in "
        "your own environment, which the server inherits (a container: `-e NAME` without a value passes it on)"
    )


def _names_of_secrets(value: Any, shown: Any) -> list[str]:
    """The innermost names in ``value`` whose values ``shown`` hides."""
    if not isinstance(value, dict) or not isinstance(shown, dict):
        return []
    hidden = [name for name in value if shown[name] != value[name]]
    return [inner for name in hidden for inner in _names_of_secrets(value[name], shown[name]) or [str(name)]]


def _scalar_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value
