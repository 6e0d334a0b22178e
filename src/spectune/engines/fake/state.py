"""What all connections of one fake server share, and what it publishes about itself."""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from spectune.engines.fake.faults import say, stamp
from spectune.engines.fake.generation import Counters, Generation, Question, Speed
from spectune.engines.fake.options import Speculation
from spectune.engines.fake.script import PrefixCache


class ServerState:
    """What all connections of one server share."""

    def __init__(
        self,
        options: argparse.Namespace,
        speculation: Speculation,
        *,
        die: Callable[[], None],
        counters: Counters,
    ) -> None:
        self.options = options
        self.model: str = options.model + options.served_model_suffix
        self.speculation = speculation
        self.die = die
        self.counters = counters
        self.counters.acceptance.histogram = [0] * (speculation.num_draft_tokens + 1)
        self.is_ready = False
        self.on_stop_serving: Callable[[], None] = lambda: None
        self.num_requests = 0
        self.aborts: set[Callable[[], None]] = set()
        self.prefix_cache = PrefixCache()
        self.request_ids = itertools.count(1)
        self.speed = Speed(
            pass_s=1 / options.tokens_per_s,
            draft_cost=options.draft_cost,
            stream_cost=options.stream_cost,
            ttft_s=options.ttft_s,
            prefill_tokens_per_s=options.prefill_tokens_per_s,
        )

    def publish(self, change: Callable[[Counters], None]) -> None:
        if self.options.metrics_delay_s > 0:
            asyncio.get_running_loop().call_later(self.options.metrics_delay_s, change, self.counters)
        else:
            change(self.counters)

    def generation(
        self, question: Question, *, on_tokens: Callable[[str, bool], bool], on_end: Callable[[], None]
    ) -> Generation:
        return Generation(
            question,
            speculation=self.speculation.limited_to(question.most_drafted),
            speed=self.speed,
            seed=self.options.seed,
            diverge_after=self.options.diverge_after,
            num_running=lambda: self.counters.num_running,
            publish=self.publish,
            on_tokens=on_tokens,
            on_end=on_end,
        )

    def log_request(self, event: str) -> None:
        """Prints ``request started`` or ``request ended``, if asked to: for who watches from outside."""
        if self.options.log_requests:
            say(f"request {event}")

    def stop_serving(self) -> None:
        """Says a line that ends an engine's service, closes every socket, and lives on."""
        stamp(self.options, "death")
        say(self.options.fatal_line)
        self.on_stop_serving()
        self.abort_all()

    def abort_all(self) -> None:
        for abort in list(self.aborts):
            abort()

    def metrics_text(self) -> str:
        """Prometheus text under vLLM's names; the speculation families only if there is speculation."""
        counters = self.counters
        model = self.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{model}"'
        rows: list[tuple[str, str, int]] = [
            ("vllm:num_requests_running", labels, counters.num_running),
            ("vllm:num_requests_waiting", labels, 0),
            ("vllm:prompt_tokens_total", labels, counters.prompt_tokens),
            ("vllm:prefix_cache_hits_total", labels, counters.cached_tokens),
            ("vllm:generation_tokens_total", labels, counters.generation_tokens),
        ]
        if self.speculation.is_on or self.options.zero_spec_metrics:
            tally = counters.acceptance
            rows += [
                ("vllm:spec_decode_num_drafts_total", labels, tally.num_drafts),
                ("vllm:spec_decode_num_draft_tokens_total", labels, tally.num_draft_tokens),
                ("vllm:spec_decode_num_accepted_tokens_total", labels, tally.num_accepted_tokens),
            ]
            family = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            rows += [
                (family, f'{labels},position="{position}"', kept)
                for position, kept in enumerate(tally.accepted_per_position)
            ]
            rows.append(("vllm:spec_decode_num_drafts_created", labels, 1_700_000_000))
        return "".join(f"{name}{{{labels}}} {float(value)}\n" for name, labels, value in rows)

    def server_info(self) -> dict[str, Any]:
        options = self.options
        return {
            "version": "1.0",
            "model": self.model,
            "method": self.speculation.method,
            "draft_model": options.draft_model if self.speculation.is_on else None,
            "num_draft_tokens": self.speculation.num_draft_tokens if self.speculation.is_on else None,
            "num_steps": options.num_steps,
            "topk": options.topk,
            "enforce_eager": options.enforce_eager,
        }
