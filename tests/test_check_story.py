"""The costliest silent fault, found before the launch from files and one flag, and afterwards from the log alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check_running import alarms, check
from healthy.models import eagle3_head, make_model

HERE = Path(__file__).parent
PAIRS = json.loads((HERE / "healthy" / "pairs.json").read_text())
NUMBERS = [
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4", "--context-length", "131072"),
]


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """Headers only: 61 layers of 7168, and a draft whose fc takes three states."""
    target = make_model(tmp_path / "Kimi-K2.5", PAIRS["targets"]["kimi-k2.5"])
    draft = eagle3_head(tmp_path / "kimi-k2.5-eagle3", PAIRS["drafts"]["H2-kimi-k2.5"]["config"])
    return target, draft


def command(models: tuple[str, str], algorithm: str) -> list[str]:
    target, draft = models
    return [
        *("python", "-m", "sglang.launch_server", "--model-path", target, "--tp", "8"),
        *("--speculative-algorithm", algorithm, "--speculative-draft-model-path", draft, *NUMBERS),
    ]


def spectune(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "spectune", *args], capture_output=True, text=True)


def test_the_flag_eagle_with_an_eagle3_draft_is_an_error_that_names_both_widths_and_the_flag(
    models: tuple[str, str],
) -> None:
    reply = spectune("check", "--json", "--offline", "--", *command(models, "EAGLE"))
    assert reply.returncode == 1, reply.stderr
    document: dict[str, Any] = json.loads(reply.stdout)
    assert document["schema_version"] == 1
    (error,) = [f for f in document["findings"] if f["severity"] == "error"]
    assert error["code"] == "draft-algorithm-mismatch"
    assert "expects 21504 values per token (3 hidden states of 7168)" in error["message"]
    assert "1 state of 7168" in json.dumps(error)
    assert any("[7168, 21504]" in e["detail"] for e in error["evidence"])
    assert any("num_hidden_layers: 61" in e["detail"] for e in error["evidence"])
    assert "--speculative-algorithm EAGLE3" in error["remedy"]
    assert "1.00" in error["effect"]
    draft = next(m for m in document["facts"]["models"] if m["reference"] == models[1])
    assert draft["num_tensors"] == 15
    assert 0 < document["facts"]["bytes_read"] < 50_000_000


def test_the_same_command_with_eagle3_stands(models: tuple[str, str]) -> None:
    code, document = check("--", *command(models, "EAGLE3"))
    assert (code, alarms(document)) == (0, [])


def test_a_person_reads_the_error_first_with_its_remedy_and_one_line_at_the_end(
    models: tuple[str, str],
) -> None:
    reply = spectune("check", "--offline", "--", *command(models, "EAGLE"))
    lines = reply.stdout.splitlines()
    first = next(line for line in lines if line.startswith(("error", "warning", "note")))
    assert first.startswith("error draft-algorithm-mismatch: python -m sglang.launch_server: ")
    (remedy,) = [line for line in lines if line.startswith("  remedy: ") and "EAGLE3" in line]
    assert "--speculative-algorithm EAGLE3" in remedy
    assert lines[-1].startswith("1 error, 0 warnings, ")


def test_the_log_of_such_a_server_alone_tells_the_same() -> None:
    reply = spectune("diagnose", "--json", str(HERE / "logs" / "A01.log"))
    assert reply.returncode == 1
    errors = [f for f in json.loads(reply.stdout)["findings"] if f["severity"] == "error"]
    assert [f["code"] for f in errors] == ["eagle3-draft-under-eagle"]
    assert "--speculative-algorithm EAGLE3" in json.dumps(errors)
