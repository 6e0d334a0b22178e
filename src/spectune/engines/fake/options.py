"""The fake engine's command line, read by its server and by its adapter."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

METHODS = ("none", "ngram", "draft_model", "eagle", "eagle3", "mtp")

PHASE_LINES = {
    "load": "loading weights",
    "compile": "compiling the model",
    "capture": "capturing graphs",
    "warm-up": "warming up",
}
"""How the server announces the phases of its start, in this order."""


@dataclass(frozen=True)
class Speculation:
    """What the scripted engine speculates with; ``accept[i]`` is conditional on every earlier position."""

    method: str
    num_draft_tokens: int
    accept: tuple[float, ...]

    @property
    def is_on(self) -> bool:
        return self.method != "none"

    def limited_to(self, num_draft_tokens: int | None) -> Speculation:
        """With shorter drafts, if ``num_draft_tokens`` is less than it drafts."""
        if num_draft_tokens is None or num_draft_tokens >= self.num_draft_tokens:
            return self
        return replace(self, num_draft_tokens=num_draft_tokens, accept=self.accept[:num_draft_tokens])


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spectune.engines.fake.server",
        description="A scripted inference server. It computes nothing: its speed is simulated.",
        allow_abbrev=False,
    )
    serving = parser.add_argument_group("serving")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=0, help="0: any free port, printed when bound")
    serving.add_argument("--model", default="fake-model")
    serving.add_argument("--served-model-suffix", default="", help="what its model's name has more, unasked")
    serving.add_argument("--api-key", default=None, help="answer 401 without this bearer token")
    serving.add_argument("--no-prefix-caching", action="store_true")
    serving.add_argument("--no-flush-route", action="store_true", help="the cache cannot be emptied")
    serving.add_argument("--enforce-eager", action="store_true", help="no graph capture phase")

    ranks = parser.add_argument_group("several nodes")
    ranks.add_argument("--nnodes", type=int, default=1, help="ranks that meet before any serves")
    ranks.add_argument("--node-rank", type=int, default=0, help="above 0: joins rank 0, and answers nobody")
    ranks.add_argument("--head", default=None, help="HOST:PORT where rank 0 waits for the others")
    ranks.add_argument(
        "--rank-lost", choices=("hang", "die"), default="hang", help="what rank 0 does without another"
    )

    speculation = parser.add_argument_group("speculation")
    speculation.add_argument("--method", choices=METHODS, default="none")
    speculation.add_argument("--draft-model", default=None)
    speculation.add_argument("--num-draft-tokens", type=int, default=3)
    speculation.add_argument("--num-steps", type=int, default=None)
    speculation.add_argument("--topk", type=int, default=None)
    speculation.add_argument(
        "--accept", type=parse_accept, default=(0.7,), help="conditional chances, '0.8,0.6'; the last repeats"
    )
    speculation.add_argument(
        "--effective-num-draft-tokens", type=int, default=None, help="what the server really runs, unasked"
    )
    speculation.add_argument("--effective-method", choices=METHODS, default=None, help="what it really runs")
    speculation.add_argument("--no-request-acceptance", action="store_true", help="counters only")
    speculation.add_argument(
        "--zero-spec-metrics", action="store_true", help="counters at 0 without speculation"
    )

    speed = parser.add_argument_group("speed")
    speed.add_argument(
        "--tokens-per-s", type=float, default=100.0, help="forward passes per second and stream"
    )
    speed.add_argument(
        "--draft-cost", type=float, default=0.0, help="share of a pass added per drafted token"
    )
    speed.add_argument(
        "--stream-cost", type=float, default=0.0, help="share of a pass added per other stream"
    )
    speed.add_argument("--ttft-s", type=float, default=0.0)
    speed.add_argument("--prefill-tokens-per-s", type=float, default=None)

    text = parser.add_argument_group("text")
    text.add_argument("--seed", type=int, default=0)
    text.add_argument("--stop-after", type=int, default=None, help="end of text after N tokens")
    text.add_argument("--diverge-after", type=int, default=None, help="other text from token N on")

    start = parser.add_argument_group("start")
    start.add_argument("--startup-delay-s", type=float, default=0.0, help="before the port is bound")
    start.add_argument("--ready-delay-s", type=float, default=0.0, help="bound, but /health answers 503")
    start.add_argument("--metrics-delay-s", type=float, default=0.0, help="counters are published late")
    start.add_argument("--log-lines", type=int, default=0, help="lines of log printed at the start")
    start.add_argument(
        "--log-requests", action="store_true", help="a line as each generation starts and ends"
    )

    faults = parser.add_argument_group("faults")
    faults.add_argument("--fault-rank", type=int, default=None, help="the rank that has them; default: all")
    faults.add_argument("--die-after-s", type=float, default=None)
    faults.add_argument("--die-at-request", type=int, default=None, help="after the first token of request N")
    faults.add_argument("--die-message", default="RuntimeError: scripted death")
    faults.add_argument("--exit-code", type=int, default=1)
    faults.add_argument("--ignore-sigterm", action="store_true")
    faults.add_argument("--hang-generation", action="store_true", help="healthy, but no token ever comes")
    faults.add_argument(
        "--spawn-child",
        choices=("group", "session", "renamed", "hidden", "quiet"),
        default=None,
        nargs="?",
        const="group",
        help="one that outlives the server",
    )
    faults.add_argument("--die-in", choices=tuple(PHASE_LINES), default=None, help="as this phase begins")
    faults.add_argument("--hang-in", choices=tuple(PHASE_LINES), default=None, help="silent from then on")
    faults.add_argument("--talk-in", choices=tuple(PHASE_LINES), default=None, help="prints for ever")
    faults.add_argument("--die-after-ready-s", type=float, default=None)
    faults.add_argument("--die-at-shutdown", action="store_true")
    faults.add_argument("--shutdown-delay-s", type=float, default=0.0)
    faults.add_argument("--fail-generation", action="store_true", help="healthy, but every request gets 500")
    faults.add_argument("--fail-request", type=int, default=None, help="request N, and /health meanwhile")
    faults.add_argument(
        "--fatal-line-at-request", type=int, default=None, help="then serves no more, but lives"
    )
    faults.add_argument(
        "--fatal-line", default="ERROR:    [Errno 98] error while attempting to bind on address"
    )
    faults.add_argument("--print-mb", type=int, default=0)
    faults.add_argument("--print-junk", action="store_true", help="no UTF-8, escapes, a very long line")
    faults.add_argument("--shm-segment", default=None, help="a name in /dev/shm")
    faults.add_argument("--zombie", action="store_true", help="a child that ended and is never collected")
    faults.add_argument("--events", default=None, help="a file for the times of ready, death and hang")
    return parser


FAULTS = (
    *(
        "die_after_s",
        "die_at_request",
        "ignore_sigterm",
        "hang_generation",
        "spawn_child",
        "die_in",
        "hang_in",
    ),
    *(
        "talk_in",
        "die_after_ready_s",
        "die_at_shutdown",
        "shutdown_delay_s",
        "fail_generation",
        "fail_request",
    ),
    *("fatal_line_at_request", "print_mb", "print_junk", "shm_segment", "zombie"),
)


def without_faults_of_others(options: argparse.Namespace) -> argparse.Namespace:
    """The options of this rank, where ``--fault-rank`` says which one fails."""
    if options.fault_rank in (None, options.node_rank):
        return options
    healthy = build_parser().parse_args([])
    return argparse.Namespace(**{**vars(options), **{name: getattr(healthy, name) for name in FAULTS}})


def speculation_of(options: argparse.Namespace) -> Speculation:
    """What the server runs, which ``--effective-num-draft-tokens`` makes differ from what was asked."""
    asked: int = options.num_draft_tokens
    effective: int | None = options.effective_num_draft_tokens
    num_draft_tokens = asked if effective is None else effective
    accept: tuple[float, ...] = options.accept
    padded = (*accept, *(accept[-1:] * num_draft_tokens))[:num_draft_tokens]
    return Speculation(options.effective_method or options.method, num_draft_tokens, padded)


def parse_accept(text: str) -> tuple[float, ...]:
    chances = tuple(float(part) for part in text.split(","))
    if not all(0 <= chance <= 1 for chance in chances):
        raise argparse.ArgumentTypeError(f"{text!r}: every chance must be in [0, 1]")
    return chances
