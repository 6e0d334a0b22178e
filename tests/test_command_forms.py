"""Files and listings that hold server commands are read as the commands that they start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spectune.preflight.command.reading import read_command

SPECULATION = '{"method": "ngram", "num_speculative_tokens": 3}'
COMPOSE = f"""
services:
  db:
    image: postgres:16
    command: postgres -c max_connections=10
  llm:
    image: vllm/vllm-openai:v0.20.0
    ports: ["8000:8000"]
    volumes: ["/m:/m"]
    environment:
      HF_TOKEN: ${{HF_TOKEN}}
      A: b
    command: >
      --model /m/x --tensor-parallel-size ${{TP:-2}}
      --speculative-config '{SPECULATION}'
"""
MANIFEST = f"""
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: sidecar
        image: nginx:1
      - name: llm
        image: vllm/vllm-openai:v0.20.0
        command: ["vllm", "serve", "/m/x"]
        args: ["--tensor-parallel-size", "$(TP)", "--speculative-config", '{SPECULATION}']
        env:
        - {{name: TP, value: "2"}}
        - {{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{name: a, key: b}}}}}}
        - {{name: A, value: b}}
"""
UNIT = f"""
[Unit]
Description=model
[Service]
Environment="A=b"
ExecStart=/opt/venv/bin/vllm serve /m/x \\
    --tensor-parallel-size 2 \\
    --speculative-config '{SPECULATION}'
Restart=always
"""
DOCKERFILE = f"""
# comment
FROM vllm/vllm-openai:v0.20.0
ENV A=b
ENTRYPOINT ["vllm", "serve", "/m/x"]
CMD ["--tensor-parallel-size", "2", "--speculative-config", {json.dumps(SPECULATION)}]
"""
WORDS = ["vllm", "serve", "/m/x", "--tensor-parallel-size", "2", "--speculative-config", SPECULATION]
INSPECTED = [
    {
        "Id": "0",
        "Config": {
            "Image": "vllm/vllm-openai:v0.20.0",
            "Entrypoint": WORDS[:2],
            "Cmd": WORDS[2:],
            "Env": ["A=b"],
        },
        "HostConfig": {"ShmSize": 67108864, "NetworkMode": "host", "Binds": ["/m:/m"]},
    }
]
FORMS = {
    "compose": COMPOSE,
    "manifest": MANIFEST,
    "manifest as JSON": json.dumps(
        {"kind": "Pod", "spec": {"containers": [{"image": "vllm/a", "command": WORDS}]}}
    ),
    "unit": UNIT,
    "Dockerfile": DOCKERFILE,
    "JSON list": json.dumps(WORDS),
    "Python list": f"cmd = {WORDS!r}",
    "inspected container": json.dumps(INSPECTED),
    "cmdline": "\0".join(WORDS) + "\0",
    "process list": f"me 12 0.0 1.1 10 20 ? Sl 10:00 0:01 /usr/bin/python3 /opt/bin/vllm {' '.join(WORDS[1:5])}",
    "fence": "Start it:\n\n```bash\n$ " + " ".join(WORDS[:5]) + "\n```\n\nDon't wait.",
    "script": f"""set -euo pipefail
TP=${{TP:-2}}
ARGS=(--tensor-parallel-size "$TP")
if [ -n "${{SPEC:-x}}" ]; then echo on; fi
exec vllm serve /m/x "${{ARGS[@]}}" --speculative-config '{SPECULATION}' 2>&1 | tee log
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_command_is_the_same_in_every_form(form: str) -> None:
    read = read_command(FORMS[form])
    assert (read.engine, read.target) == ("vllm", "/m/x")
    assert read.flags["tensor-parallel-size"] == "2"
    if "speculative-config" in FORMS[form]:
        assert read.knobs.num_draft_tokens == 3
    if "A" in read.env:
        assert read.env["A"] == "b"
    assert not read.arguments.stray and not read.lost_lines and not read.other_servers


def test_llama_swap_joins_the_lines_of_a_command() -> None:
    read = read_command(
        "models:\n  q:\n    cmd: |\n      llama-server\n      -m /m/q.gguf\n      --port ${PORT}\n"
    )
    assert (read.engine, read.target, read.flags["port"]) == ("llamacpp", "/m/q.gguf", None)


def test_powershell_calls_a_program_by_its_path() -> None:
    read = read_command("& .\\llama-server.exe -m C:\\models\\a.gguf `\n   --port 8080")
    assert (read.engine, read.target, read.flags["port"]) == ("llamacpp", "C:/models/a.gguf", "8080")


@pytest.mark.parametrize(
    "text",
    [
        "services: 3",
        "services:\n  a: {image: 5}",
        "kind: [",
        "FROM x\nCMD [",
        "[1, 2",
        "[]",
        "a: &a [*a]",
        "\0",
        "models: {a: {cmd: 3}}",
    ],
)
def test_a_broken_file_is_one_plain_error(text: str) -> None:
    reply = subprocess.run(
        [sys.executable, "-m", "spectune", "check", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (reply.returncode, reply.stdout) == (2, "")
    assert reply.stderr.startswith("spectune: ") and reply.stderr.count("\n") <= 2


class TestTheCommand:
    def check(self, tmp_path: Path, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spectune", "check", "--offline", *words],
            cwd=tmp_path,
            env={**os.environ, "SPECTUNE_HOME": str(tmp_path / "home"), "COLUMNS": "120"},
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @pytest.mark.parametrize(
        ("name", "form"),
        [
            ("serve.sh", "script"),
            ("compose.yaml", "compose"),
            ("deploy.yml", "manifest"),
            ("llm.service", "unit"),
            ("Dockerfile", "Dockerfile"),
            ("README.md", "fence"),
            ("cmd.json", "JSON list"),
        ],
    )
    def test_a_file_is_read_by_what_it_holds(self, tmp_path: Path, name: str, form: str) -> None:
        (tmp_path / name).write_text(FORMS[form], encoding="utf-8")
        reply = self.check(tmp_path, name)
        assert reply.returncode in (0, 1), reply.stderr
        assert reply.stdout.startswith("one command: vllm")

    def test_a_study_stays_a_study(self, tmp_path: Path) -> None:
        (tmp_path / "s.yaml").write_text(
            "question: a\nengine: {name: fake}\ntarget: m\narms: []\n", encoding="utf-8"
        )
        reply = self.check(tmp_path, "s.yaml")
        assert "no server that is known" not in reply.stderr and "s.yaml" in reply.stdout + reply.stderr

    def test_every_server_of_a_text_is_answered(self, tmp_path: Path) -> None:
        text = "vllm serve a/b --port 1 &\nvllm serve a/b --speculative-config '[1]' &\n"
        reply = self.check(tmp_path, "-", text=text)
        first, _, second = reply.stdout.partition("--- server 2 of 2")
        assert reply.returncode == 1
        assert "speculative-config-unreadable" in second and "unreadable" not in first
        body = json.loads(self.check(tmp_path, "--json", "-", text=text).stdout)
        assert [f["code"] for f in body["further"][0]["findings"] if f["severity"] == "error"] == [
            "speculative-config-unreadable"
        ]

    def test_a_long_command_is_no_name_of_a_file(self, tmp_path: Path) -> None:
        reply = self.check(tmp_path, "--", "vllm serve org/m --served-model-name " + "a" * 5000)
        assert reply.returncode == 0, reply.stderr

    @pytest.mark.parametrize(
        "command",
        [
            "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3",
            "llama-server -m a.gguf --spec-type draft-eagle3",
        ],
    )
    def test_what_is_missing_may_stand_in_a_word_of_the_shells(self, tmp_path: Path, command: str) -> None:
        alone = self.check(tmp_path, "--", command)
        assert alone.returncode == 1 and "error draft-missing" in alone.stdout
        reply = self.check(tmp_path, "--all", "--", f"{command} $MORE")
        assert reply.returncode == 0, reply.stdout
        assert "draft-missing: $MORE may bring what is missing" in reply.stdout
