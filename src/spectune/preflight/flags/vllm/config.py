"""vLLM: --speculative-config itself: keys, method, numbers, what excludes what."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from typing import Any

from spectune.domain.findings import Finding, Severity
from spectune.findings.catalogue import FindingKind
from spectune.preflight.flags.every_engine import (
    SYNTHETIC_ACCEPTANCE,
    Flags,
    flag_evidence,
    found,
    version_words,
)
from spectune.preflight.flags.speculative import guessed_method, parsed_config, speculation_of
from spectune.preflight.flags.table import table_for
from spectune.preflight.flags.vllm import kinds
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation

CONFIG = "speculative-config"
SHORT = (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens"))
_WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix", "mtp", "dspark", "extract_hidden_states"})
_EAGLE_LIKE = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
_OLDER_RUNNER = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
_PLAIN_FAMILIES = frozenset(
    {"llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mistral", "gemma2", "phi3"}
)
_BRINGS_LENGTH = {
    "mtp": ("n_predict", "num_nextn_predict_layers"),
    "mlp_speculator": ("n_predict",),
    "dspark": ("block_size", "dspark_block_size"),
}
"""Methods whose drafts may bring num_speculative_tokens, and the keys of their config that do."""
_LOOKUP_LENGTH = 5
_POSITIVE = (
    "num_speculative_tokens",
    "draft_tensor_parallel_size",
    "max_model_len",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "dspark_draft_topk",
)


_WORDS = {
    "rejection_sample_method": ("standard", "synthetic", "block"),
    "draft_sample_method": ("greedy", "probabilistic"),
}


def method_of(config: Mapping[str, Any]) -> str | None:
    """The method vLLM will use: ``mtp`` for all its older names, a guess where none is written."""
    method = config.get("method")
    if method is None:
        return guessed_method(config)
    if not isinstance(method, str):
        return None
    return "mtp" if method.endswith("_mtp") else method.strip("[]")


def config_is_readable(situation: Situation) -> Judgement:
    """The JSON can be read, and its keys and methods exist."""
    flags = Flags(situation)
    if not flags.given(CONFIG):
        return Judgement()
    if flags.unclear(CONFIG):
        return found(not_checked=[f"--{CONFIG}: a value only a shell knows"])
    text = flags.text(CONFIG)
    config = parsed_config(text)
    if config is None:
        return found(
            kinds.CONFIG_UNREADABLE.found(
                situation.subject,
                f"--{CONFIG} {(text or '(no value)')[:120]}: not a JSON object",
                evidence=flag_evidence(situation, CONFIG),
            )
        )
    table = table_for("vllm", situation.version.text)
    if situation.version.text is not None and situation.version.text != table.version:
        unknown = [key for key in config if key.replace("-", "_") not in table.speculative_keys]
        return found(not_checked=[f"{CONFIG}.{key}: not a key of {table.version}" for key in unknown])
    findings = []
    for key in config:
        if key.replace("-", "_") not in table.speculative_keys:
            near = difflib.get_close_matches(key, table.speculative_keys, n=1, cutoff=0.6)
            findings.append(
                kinds.KEY_UNKNOWN.found(
                    situation.subject,
                    f"{version_words(situation)}: --{CONFIG} has no key {key!r}"
                    + (f"; did you mean {near[0]!r}?" if near else ""),
                    evidence=flag_evidence(situation, CONFIG),
                    remedy=f"write {near[0]!r}" if near else f"valid: {', '.join(table.speculative_keys)}",
                    severity=None if situation.version.text else "warning",
                )
            )
    return Judgement(tuple(findings))


def method_is_right(situation: Situation) -> Judgement:
    """The method exists, is written rather than guessed, and has the model it needs."""
    config = speculation_of(situation.flags)
    if config is None:
        return Judgement()
    method = config.get("method")
    if method is None:
        if isinstance(config.get("model"), str):
            return _guessed(situation, config)
        message = "neither method nor model is given"
        return found(_refused(situation, kinds.MODEL_MISSING, message, remedy='add "method" and "model"'))
    choices = table_for("vllm").flags["spec-method"].choices or ()
    if not isinstance(method, str) or (method not in choices and method != "[ngram]"):
        if situation.version.text not in (None, table_for("vllm").version):
            return found(not_checked=[f"method {method!r}: not one of {table_for('vllm').version}"])
        near = difflib.get_close_matches(str(method), choices, n=1, cutoff=0.5)
        return found(
            _refused(
                situation,
                kinds.METHOD_UNKNOWN,
                f"{version_words(situation)} has no method {method!r}"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                remedy=f"write {near[0]!r}" if near else f"valid: {', '.join(sorted(choices))}",
                severity=None if situation.version.text else "warning",
            )
        )
    if method_of(config) == "mtp" and _never_has_mtp(situation, config):
        message = f"method {method} with {config['model']}, which has no multi-token-prediction layers"
        return found(_refused(situation, kinds.METHOD_UNSUPPORTED, message))
    if method == "custom_class" and config.get("model") is None:
        return found(_refused(situation, kinds.MODEL_MISSING, "method custom_class names no class in model"))
    return Judgement()


def _never_has_mtp(situation: Situation, config: Mapping[str, Any]) -> bool:
    """A plain language model is named as the MTP draft."""
    draft = situation.draft
    if config.get("model") is None or draft is None or draft.model_type not in _PLAIN_FAMILIES:
        return False
    return not draft.num_nextn_layers and not any("mtp" in key or "nextn" in key for key in draft.config)


def _guessed(situation: Situation, config: Mapping[str, Any]) -> Judgement:
    """From the name alone, while the draft's files are not known: the draft rules judge the files."""
    if situation.draft is not None and situation.draft.kind != "absent":
        return Judgement()
    guess = guessed_method(config)
    return found(
        kinds.METHOD_OMITTED.found(
            situation.subject,
            f"no method is given: vLLM guesses {guess} from the name {config['model']}",
            evidence=flag_evidence(situation, CONFIG, "spec-model"),
            remedy=f'add "method": "{guess}"',
            severity="note" if guess == "draft_model" else None,
        ),
        not_checked=[f"{config['model']}: whether it is what its name says"],
    )


def numbers_are_given(situation: Situation) -> Judgement:
    """num_speculative_tokens: there, and a number vLLM takes."""
    config = speculation_of(situation.flags)
    if config is None:
        return Judgement()
    method = method_of(config)
    tokens = config.get("num_speculative_tokens")
    findings: list[Finding | None] = []
    for key in _POSITIVE:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | str) or not _is_positive(value):
            kind = kinds.TOKENS_REFUSED if key == "num_speculative_tokens" else kinds.CONFIG_CONFLICT
            findings.append(
                _refused(situation, kind, f"{key} must be a whole number of 1 or more, got {value!r}")
            )
    if findings or tokens is not None or method is None:
        return found(*findings, _divisible(situation, tokens) if not findings else None)
    if method == "suffix":
        return Judgement()
    if config.get("model") is not None and method not in (
        "ngram",
        "ngram_gpu",
        "custom_class",
        "extract_hidden_states",
    ):
        return _tokens_from_draft(situation, method)
    if method in _WITHOUT_MODEL:
        message = f"method {method} has no default for num_speculative_tokens"
        return found(_refused(situation, kinds.TOKENS_MISSING, message))
    return Judgement()  # the missing model is said elsewhere


def _is_positive(value: int | str) -> bool:
    try:
        return int(value) >= 1
    except ValueError:
        return False


def _tokens_from_draft(situation: Situation, method: str) -> Judgement:
    """A default exists only where the draft's config brings one."""
    draft = situation.draft
    bringing = _BRINGS_LENGTH.get(method, ("n_predict",))
    if draft is not None and draft.config:
        if draft.format == "speculators" or method == "mtp" or any(key in draft.config for key in bringing):
            return Judgement()
    elif method in _BRINGS_LENGTH:
        return found(
            not_checked=["num_speculative_tokens is not given: fine only if the draft's config brings it"]
        )
    return found(
        kinds.TOKENS_MISSING.found(
            situation.subject,
            f"num_speculative_tokens is not given, and a draft for {method} rarely brings a default",
            evidence=flag_evidence(situation, CONFIG),
        )
    )


def _divisible(situation: Situation, tokens: Any) -> Finding | None:
    """MTP drafts a multiple of the layers it has."""
    config = speculation_of(situation.flags) or {}
    holder = situation.draft if config.get("model") is not None else situation.target
    layers = holder.num_nextn_layers if holder is not None else None
    if method_of(config) != "mtp" or not isinstance(tokens, int) or not layers:
        return None
    if tokens > layers and tokens % layers:
        message = f"num_speculative_tokens {tokens} is not a multiple of the {layers} MTP layers"
        return _refused(
            situation, kinds.TOKENS_REFUSED, message, remedy=f'"num_speculative_tokens": {layers}'
        )
    return None


def settings_agree(situation: Situation) -> Judgement:
    """Keys that exclude each other."""
    config, flags = speculation_of(situation.flags), Flags(situation)
    if config is None:
        return Judgement()
    method = method_of(config)
    written = parsed_config(flags.flags.get(CONFIG)) or {}
    findings: list[Finding | None] = []
    for name, key in SHORT:
        if flags.given(name) and key in written:
            findings.append(_conflict(situation, f"--{name} and {CONFIG}.{key} are both given", name))
    if "tensor_parallel_size" in config:
        message = "tensor_parallel_size is no key for the draft"
        findings.append(_conflict(situation, message, remedy="write draft_tensor_parallel_size"))
    tp = flags.integer("tensor-parallel-size") if flags.given("tensor-parallel-size") else 1
    draft_tp = config.get("draft_tensor_parallel_size")
    if isinstance(draft_tp, int) and tp is not None and draft_tp not in (1, tp) and draft_tp > 0:
        message = f"draft_tensor_parallel_size {draft_tp} is neither 1 nor the target's {tp}"
        if method not in ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"):
            findings.append(_refused(situation, kinds.DRAFT_TP, message, remedy=f"1 or {tp}"))
    if config.get("use_heterogeneous_vocab") is True:
        if method != "draft_model":
            findings.append(
                _conflict(situation, "use_heterogeneous_vocab works with method draft_model only")
            )
        elif config.get("draft_sample_method", "greedy") != "greedy":
            findings.append(_conflict(situation, "use_heterogeneous_vocab works with greedy drafts only"))
    if config.get("dspark_draft_topk") is not None and method not in (
        "dspark",
        "ngram",
        "ngram_gpu",
        "suffix",
    ):
        findings.append(_conflict(situation, "dspark_draft_topk works with method dspark only"))
    exclusive = ("enable_adaptive_verification", "use_local_argmax_reduction")
    if method != "dspark" and all(config.get(key) is True for key in exclusive):
        findings.append(_conflict(situation, f"{' and '.join(exclusive)} exclude each other"))
    for key, allowed in _WORDS.items():
        if config.get(key) is not None and config[key] not in allowed:
            findings.append(
                _conflict(
                    situation,
                    f"{key} must be one of {', '.join(allowed)}, got {config[key]!r}",
                    remedy=f"write {allowed[0]!r}",
                )
            )
    if config.get("index_share_for_mtp_iteration") is not None and method != "mtp":
        findings.append(_conflict(situation, "index_share_for_mtp_iteration works with method mtp only"))
    if flags.on("kv-sharing-fast-prefill") and method in _EAGLE_LIKE:
        findings.append(
            _conflict(
                situation, "--kv-sharing-fast-prefill does not work with EAGLE", "kv-sharing-fast-prefill"
            )
        )
    return found(*findings)


def model_runner_takes_it(situation: Situation) -> Judgement:
    """What only vLLM's newer model runner (V2) does, with what only the older one (V1) does."""
    config = speculation_of(situation.flags)
    if config is None:
        return Judgement()
    method = method_of(config)
    newer = [f"method {method}"] if method == "dspark" else []
    newer += ["enable_adaptive_verification"] if config.get("enable_adaptive_verification") is True else []
    older = [f"method {method}"] if method in _OLDER_RUNNER else []
    if config.get("parallel_drafting") is True and method not in ("dflash", "dspark"):
        older.append("parallel_drafting")
    if config.get("use_heterogeneous_vocab") is True:
        older.append("use_heterogeneous_vocab")
    if situation.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        older.append("VLLM_USE_V2_MODEL_RUNNER=0")
    if not newer or not older:
        return Judgement()
    message = f"{newer[0]} needs the V2 model runner, {older[0]} the V1 one"
    return found(_conflict(situation, message))


def lookup_range_is_sane(situation: Situation) -> Judgement:
    """The n-gram bounds."""
    config = speculation_of(situation.flags)
    if config is None or method_of(config) not in ("ngram", "ngram_gpu"):
        return Judgement()
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        message = f"prompt_lookup_min {low} is above prompt_lookup_max {high}"
        return found(_refused(situation, kinds.LOOKUP_RANGE, message))
    if low is None or high is None:
        only = low if low is not None else high
        length = _LOOKUP_LENGTH if only is None else only
        return found(
            kinds.LOOKUP_DEFAULT.found(
                situation.subject,
                f"only n-grams of length {length} are looked up",
                evidence=flag_evidence(situation, CONFIG),
            )
        )
    return Judgement()


def acceptance_is_real(situation: Situation) -> Judgement:
    """Imposed acceptance: a warning where it is right, an error where it is not."""
    config = speculation_of(situation.flags)
    if config is None:
        return Judgement()
    length, rates = config.get("synthetic_acceptance_length"), config.get("synthetic_acceptance_rates")
    if config.get("rejection_sample_method") != "synthetic":
        if length is None and rates is None:
            return Judgement()
        message = "synthetic_acceptance_* without rejection_sample_method synthetic"
        return found(_refused(situation, kinds.SYNTHETIC_REFUSED, message))
    problem = _synthetic_problem(config.get("num_speculative_tokens"), length, rates)
    if problem:
        return found(_refused(situation, kinds.SYNTHETIC_REFUSED, problem))
    return found(
        SYNTHETIC_ACCEPTANCE.found(
            situation.subject,
            f"rejection_sample_method synthetic imposes {length if length is not None else rates}",
            evidence=flag_evidence(situation, CONFIG),
            remedy="remove rejection_sample_method and synthetic_acceptance_*",
        )
    )


def _synthetic_problem(tokens: Any, length: Any, rates: Any) -> str | None:
    if (length is None) == (rates is None):
        return "exactly one of synthetic_acceptance_length and synthetic_acceptance_rates must be given"
    if not isinstance(tokens, int):
        return None
    if length is not None:
        if not isinstance(length, int | float) or not 1 <= length <= tokens + 1:
            return f"synthetic_acceptance_length must be in 1..{tokens + 1}, got {length!r}"
        return None
    if not isinstance(rates, list) or len(rates) != tokens:
        return f"synthetic_acceptance_rates must be {tokens} numbers, got {rates!r}"
    if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
        return f"synthetic_acceptance_rates must lie in 0..1, got {rates!r}"
    if any(later > earlier for earlier, later in itertools.pairwise(rates)):
        return f"synthetic_acceptance_rates must not rise, got {rates!r}"
    return None


def _refused(
    situation: Situation,
    kind: FindingKind,
    message: str,
    *,
    remedy: str | None = None,
    severity: Severity | None = None,
) -> Finding:
    evidence = flag_evidence(situation, CONFIG, *(name for name, _ in SHORT))
    return kind.found(situation.subject, message, evidence=evidence, remedy=remedy, severity=severity)


def _conflict(situation: Situation, message: str, *names: str, remedy: str | None = None) -> Finding:
    evidence = flag_evidence(situation, *names, CONFIG)
    return kinds.CONFIG_CONFLICT.found(
        situation.subject, message, evidence=evidence, remedy=remedy or "keep one of them"
    )


RULES = (
    config_is_readable,
    method_is_right,
    numbers_are_given,
    settings_agree,
    model_runner_takes_it,
    lookup_range_is_sane,
    acceptance_is_real,
)
