"""What the vLLM flag rules can find."""

from __future__ import annotations

from spectune.findings.catalogue import finding_kind

CONFIG_UNREADABLE = finding_kind("speculative-config-unreadable")
KEY_UNKNOWN = finding_kind("speculative-config-key-unknown")
METHOD_UNKNOWN = finding_kind("speculative-method-unknown")
METHOD_UNSUPPORTED = finding_kind("speculative-method-unsupported")
METHOD_OMITTED = finding_kind("speculative-method-omitted")
HEADS = finding_kind("heads-not-divisible")
TOKENS_MISSING = finding_kind("num-speculative-tokens-missing")
TOKENS_REFUSED = finding_kind("num-speculative-tokens-refused")
MODEL_MISSING = finding_kind("speculative-model-missing")
CONFIG_CONFLICT = finding_kind("speculative-config-conflict")
LOOKUP_RANGE = finding_kind("prompt-lookup-range")
LOOKUP_DEFAULT = finding_kind("prompt-lookup-default")
DRAFT_TP = finding_kind("draft-tensor-parallel-size")
METRICS_WITHOUT = finding_kind("spec-metrics-without-speculation")
SYNTHETIC_REFUSED = finding_kind("synthetic-acceptance-refused")
ASYNC_REFUSED = finding_kind("async-scheduling-refused")
ASYNC_OFF = finding_kind("async-scheduling-switched-off")
PIPELINE = finding_kind("speculation-with-pipeline-parallelism")
TOO_FEW_SLOTS = finding_kind("batched-tokens-below-draft")
SCHEDULED_TOKENS = finding_kind("scheduled-tokens-low")
SAMPLING_REFUSED = finding_kind("sampling-parameter-refused")
PENALTIES_IGNORED = finding_kind("penalties-ignored")
READY_TIMEOUT = finding_kind("engine-ready-timeout-short")
EAGLE_LIMIT = finding_kind("speculation-near-context-end")
