"""Lines that are no figures: what engines change, skip, complain about and die of.

Each kind is a pattern over cleaned text. The strings were read in the engines'
sources or in public issues; where one was seen in a recorded log only, the
recording is in ``tests/recorded``.
"""

from __future__ import annotations

import re

NOTICES: dict[str, re.Pattern[str]] = {
    "tokens-rewritten": re.compile(r"num_draft_tokens is (?:adjusted|set|reset|changed) to"),
    "running-reset": re.compile(r"[Mm]ax.running.requests is (?:reset|adjusted|set) to (\d+)"),
    "adaptive-off": re.compile(r"speculative_adaptive disabled|adaptive.{0,80}[Ff]alling back to static"),
    "speculation-off": re.compile(
        r"failed to initialize speculative decoding|failed to (?:create|load|init\w*) (?:the )?draft"
        r"|[Ss]peculative decoding (?:is|was|has been|will be|gets)? ?(?:disabled|turned off|not used|ignored)"
        r"|[Dd]isabl(?:e|ing) speculative decoding|draft model .{0,80}(?:disabled|not (?:be )?used)"
        r"|without speculative decoding"
    ),
    "draft-failed": re.compile(
        r"ctx_dft\) failed|failed to process speculative batch|inconsistent sequence positions"
        r"|draft (?:model )?(?:forward|decode|step) failed"
    ),
    "vocab-mismatch": re.compile(
        r"draft model vocab\w*(?: type)? must match|vocab.{0,60}draft.{0,60}(?:differ|match)"
    ),
    "weights-skipped": re.compile(
        r"not found in params_dict|(?i:skip(?:ping|ped)?\b.{0,60}\b(?:weights?|tensors?|params?|parameters?)\b)"
        r"|(?:weights?|tensors?|parameters?) .{0,200}(?:were|was|are|is) not (?:initialized|loaded|used)"
        r"|(?i:(?:unexpected|missing) (?:keys?|weights?|tensors?)\b)|(?i:ignoring .{0,40}\b(?:weights?|tensors?)\b)"
        r"|draft\S* weights .{0,60}(?:dropped|discarded|ignored)"
    ),
    "jit": re.compile(
        r"JIT (?:kernel )?compil\w+ during inference|JIT [Pp]re-?[Cc]ompile session|DeepGEMM warmup"
    ),
    "health-failed": re.compile(r"[Hh]ealth check failed"),
    "hang": re.compile(r"No available shared memory broadcast block"),
    "retracted": re.compile(
        r"[Rr]etract requests|KV cache pool is full|is preempted by|[Pp]reempting request"
    ),
    "grammar": re.compile(
        r"LLMatcher error|doesn't satisfy the grammar|[Gg]rammar.{0,60}(?:rejected|failed to advance)"
    ),
    "simulated": re.compile(
        r"SIMULATE_ACC_LEN['\"]?\s?[=:]\s?['\"]?\d|simulate_acc_len['\"]?\s?[=:]\s?['\"]?[1-9]"
        r"|rejection_sample_method\\?['\"]?\s?[=:]\s?\\?['\"]synthetic"
        r"|synthetic_acceptance_(?:length|rates)\\?['\"]?\s?[=:]\s?[\[\d]"
        r"|FORCE_NUM_ACCEPTED_TOKENS['\"]?\s?[=:]\s?['\"]?[1-9]|spec-synth-(?:len|rates)[= ]"
        r"|(?i:simulat\w+ accept\w*|synthetic acceptance)"
    ),
    "port-taken": re.compile(
        r"[Aa]ddress already in use|couldn't bind HTTP server socket|port \d+ .{0,40}is (?:already )?in use|EADDRINUSE"
    ),
    "position-limit": re.compile(
        r"greater than the derived context_length|exceeds? .{0,40}max_position_embeddings"
    ),
    "parameters-ignored": re.compile(
        r"parameters? (?:won't|will not|do(?:es)? not) work with speculative|penalt\w+ .{0,60}(?:ignored|not supported)"
    ),
}
"""Name -> pattern. A line may be several of them."""

CHANGED = re.compile(
    r"\b(?:is|are|was|were|been|be|gets?) (?:now )?(?:automatically |silently )?"
    r"(?:adjusted|reset|disabled|overridden|turned o(?:ff|n)|capped|clamped|ignored|forced|lowered|set to|enabled)\b"
    r"|\b(?:Overriding|Disabling|Resetting|Adjusting|Lowering|Capping) |\b[Ff]all(?:ing|s)? back\b"
    r"|\bfallback to \w+ backend\b|^(?:.{0,80}\] )?(?:Disable|Reset|Enforce eager set)\b|, disabling\b|\binstead\.?$"
)
"""An engine says that it does otherwise than asked."""

DEATHS = re.compile(
    r"Received sigquit from a child proces|SIGQUIT received|Scheduler hit an exception|Capture cuda graph failed"
    r"|scheduler died during initialization|crashed with exit code|Child process unexpectedly failed"
    r"|EngineCore (?:encountered a fatal error|failed to start)|EngineDeadError|Engine core initialization failed"
    r"|Engine process failed to start|GGML_ASSERT|exiting due to|Segmentation fault|core dumped|Fatal Python error"
    r"|terminate called after|no kernel image is available|memory leak detected|warmup error:|Watchdog .*timeout"
    r"|Worker failed with error|CUDA out of memory|OutOfMemoryError|cudaMalloc failed|^\s*Killed\s*$|oom-kill"
    r"|error: draft model vocab|Illegal instruction|failed to open draft model"
)
"""The server, or a part without which it cannot go on, has died."""

LAST_WORDS = re.compile(
    r"^(?:\w+[\w.]*)?(?:Error|Exception|Interrupt)\b(?::|$)|\berror: |^Traceback \(most recent call last\)"
    r"|^ *\[type=\w+_error"
)
"""At the end of a log that never became ready: it did not become ready because of this."""
