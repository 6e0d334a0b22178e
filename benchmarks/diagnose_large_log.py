"""Processor time and memory of `spectune diagnose` on a large log.

    python benchmarks/diagnose_large_log.py --megabytes 500
    python benchmarks/diagnose_large_log.py --megabytes 500 --mix vllm --json

The log is made of lines as engines write them, and is deleted afterwards. The
command runs in its own process; its user and system time and its largest
resident set are what the operating system counted. Limits: 60 s, 300 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S, LIMIT_BYTES = 60.0, 300 * 10**6

SGLANG_START = (
    "[2026-11-29 20:53:17] server_args={'model_path': '/models/target', 'attention_backend': 'fa3', "
    "'max_running_requests': 64, 'speculative_algorithm': 'EAGLE3', 'speculative_draft_model_path': '/models/draft', "
    "'speculative_num_steps': 3, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4}\n"
    "[2026-11-29 20:53:50] The server is fired up and ready to roll!\n"
)


def sglang_lines(draw: random.Random) -> str:
    running = draw.randint(1, 64)
    length = draw.uniform(2.0, 3.2)
    stamp = f"[2026-11-29 20:{draw.randint(10, 59)}:{draw.randint(10, 59)} TP0]"
    kind = draw.random()
    if kind < 0.6:
        return (
            f"{stamp} Decode batch, #running-req: {running}, #token: {running * 900}, token usage: 0.31, "
            f"accept len: {length:.2f}, accept rate: {(length - 1) / 3:.2f}, cuda graph: True, "
            f"gen throughput (token/s): {running * 60.5:.2f}, #queue-req: 0\n"
        )
    if kind < 0.8:
        return (
            f"{stamp} Prefill batch, #new-seq: 1, #new-token: {draw.randint(10, 900)}, #cached-token: 23, token usage: "
            f"0.05, #running-req: {running}, #queue-req: 0, cuda graph: False, input throughput (token/s): 1027.87\n"
        )
    return f'{stamp} INFO:     10.0.0.7:{draw.randint(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def vllm_lines(draw: random.Random) -> str:
    stamp = f"(APIServer pid=7) INFO 11-29 20:{draw.randint(10, 59)}:{draw.randint(10, 59)}"
    kind = draw.random()
    if kind < 0.3:
        return (
            f"{stamp} [loggers.py:335] Engine 000: Avg prompt throughput: 911.4 tokens/s, Avg generation throughput: "
            f"{draw.uniform(500, 900):.1f} tokens/s, Running: {draw.randint(1, 64)} reqs, Waiting: 0 reqs, GPU KV "
            "cache usage: 3.0%, Prefix cache hit rate: 1.0%\n"
        )
    if kind < 0.6:
        return (
            f"{stamp} [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.10, Accepted throughput: 90.93 "
            "tokens/s, Drafted throughput: 414.63 tokens/s, Accepted: 1100 tokens, Drafted: 3000 tokens, Per-position "
            "acceptance rate: 0.618, 0.345, 0.137, Avg Draft acceptance rate: 36.7%\n"
        )
    return f'INFO:     10.0.0.7:{draw.randint(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def llamacpp_lines(draw: random.Random) -> str:
    slot, task = draw.randint(0, 7), draw.randint(1, 10**6)
    head = f"1.12.931.{draw.randint(100, 999)} I slot print_timing: id  {slot} | task {task} |"
    return (
        f"{head} prompt eval time =    1126.22 ms /    39 tokens (   28.88 ms per token,    34.63 tokens per second)\n"
        f"{head}        eval time =    7328.39 ms /    48 tokens (  155.92 ms per token,     6.41 tokens per second)\n"
        f"{head} draft acceptance = 0.40404 (   40 accepted /    99 generated), mean len =  2.21\n"
        f"1.12.931.999 I slot      release: id  {slot} | task {task} | stop processing: n_tokens = 86, truncated = 0\n"
    )


def noise_lines(draw: random.Random) -> str:
    """A noisy log: most lines are looked at closely and say nothing."""
    return (
        f"[2026-11-29 20:53:50] WARNING request {draw.randint(1, 10**9)} was ignored by the router: backend "
        f"{draw.randint(1, 9)} has been disabled, retry set to {draw.randint(1, 99)} instead\n"
    )


def unique_lines(draw: random.Random) -> str:
    """The slowest kind: no line has the letters of another."""
    words = " ".join("".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(25))
    return f"[2026-11-29 20:53:50] gateway: {draw.getrandbits(64):x} {words}\n"


def compose_lines(draw: random.Random) -> str:
    """Two servers of docker compose in one file."""
    return f"server-{draw.randint(1, 2)}  | {sglang_lines(draw)}"


MIXES = {
    "compose": compose_lines,
    "sglang": sglang_lines,
    "vllm": vllm_lines,
    "llamacpp": llamacpp_lines,
    "noise": noise_lines,
    "unique": unique_lines,
}


def write_log(path: Path, *, mix: str, num_bytes: int) -> None:
    draw = random.Random(1)
    block = "".join(MIXES[mix](draw) for _ in range(200_000)).encode()
    with path.open("wb") as file:
        file.write(SGLANG_START.encode() if mix == "sglang" else b"")
        written = 0
        while written < num_bytes:
            file.write(block)
            written += len(block)


def measure(path: Path) -> dict[str, float]:
    """Seconds and bytes of one run of the command."""
    code = (
        "import argparse, sys; from spectune.cli.diagnose import diagnose_command; "
        "from spectune.cli.diagnose_args import add_diagnose; p = argparse.ArgumentParser(); "
        "add_diagnose(p.add_subparsers()); sys.exit(diagnose_command(p.parse_args(sys.argv[1:])))"
    )
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "diagnose", str(path), "--json"], stdout=subprocess.PIPE
    )
    output, _ = process.communicate()
    elapsed = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = json.loads(output)["facts"]["runs"] if output else []  # no line of a known engine: bad input
    return {
        "elapsed_s": round(elapsed, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "max_rss_bytes": usage.ru_maxrss * 1024,
        "num_lines": facts[-1]["last_line"] if facts else 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--mix", choices=sorted(MIXES), default="sglang")
    parser.add_argument("--dir", help="where the log is made (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        path = Path(folder) / "server.log"
        write_log(path, mix=args.mix, num_bytes=args.megabytes * 10**6)
        result = {"mix": args.mix, "bytes": path.stat().st_size, **measure(path)}
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            print(f"{name:16} {value}")
    good = result["cpu_s"] < LIMIT_S and result["max_rss_bytes"] < LIMIT_BYTES
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
