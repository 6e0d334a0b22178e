"""``drafter demo``: steps that are done are not done again, and its report says what the results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spectune.cli.drafter.demo import DemoSize
from spectune.cli.drafter.demo_report import demo_sections, write_demo_report
from spectune.cli.main import main
from spectune.errors import BadInput
from spectune.home import data_home


def interval(value: float, half: float) -> dict[str, Any]:
    return {"value": value, "low": value - half, "high": value + half, "level": 0.95, "n": 9, "unit": "x"}


def counts(kept: int, steps: int) -> dict[str, Any]:
    return {"num_drafts": steps, "num_draft_tokens": 3 * steps, "num_accepted_tokens": kept}


def evaluation(length: float) -> dict[str, Any]:
    by_prompt = {"a": counts(30, 40), "b": counts(10, 40), "c": counts(0, 40)}
    chain = {"acceptance_length": interval(length, 0.05), "by_prompt": by_prompt}
    return {"num_prompts": 3, "num_answer_tokens": 160, "chains": [chain] * 4}


def training(tokens: int) -> dict[str, Any]:
    return {
        "num_steps": 600,
        "num_answer_tokens": tokens,
        "num_epochs": 4.2,
        "train_s": 300.0,
        "tok_per_s": 2500.0,
    }


def arm(name: str, **load: Any) -> dict[str, Any]:
    return {
        "name": name,
        "break_even_acceptance_length": 2.4,
        "loads": [{"num_requests": 2, "e2e_tok_per_s": interval(50.0, 2.0), **load}],
    }


def results() -> dict[str, Any]:
    end = {"num_samples": 54, "completion_tokens": 9000, "elapsed_s": 60.0, "num_compared": 0}
    return {
        "data": {
            "manifest": {
                "num_rows": 54,
                "answer_tokens": 9000,
                "num_failed": 0,
                "num_empty": 0,
                "runs": [{"begin": {}, "end": end}],
            }
        },
        **{f"train-{n}": training(100 * n) for n in (6, 18, 54)},
        **{f"evaluate-{n}": evaluation(1 + n / 100) for n in (6, 18, 54)},
        "served_prompts": ["a", "b"],
        "serve": {
            "headline": "eagle3-k3 is <b>slower</b>",
            "arms": [
                arm("baseline", speedup=None, verdict=None, acceptance_length=None),
                arm(
                    "ngram-k3",
                    speedup=interval(0.9, 0.1),
                    verdict="SLOWER",
                    acceptance_length=interval(1.2, 0.1),
                ),
                arm(
                    "eagle3-k3",
                    speedup=interval(0.8, 0.1),
                    verdict="SLOWER",
                    acceptance_length=interval(1.6, 0.1),
                ),
            ],
        },
        "forecast": {
            "advice": "train more",
            "because": "ten times the data would bring +9%",
            "forecasts": [
                {
                    "num_samples": 540.0,
                    "acceptance_length": interval(1.7, 0.2),
                    "tok_per_s": None,
                    "speedup": None,
                    "train_hours": 0.5,
                }
            ],
            "check": {
                "measured": 1.54,
                "forecast": interval(1.5, 0.1),
                "error_frac": -0.026,
                "inside": True,
            },
            "assumptions": ["more data of the same kind"],
        },
    }


def test_offline_and_served_are_of_the_same_prompts(tmp_path: Path) -> None:
    sections = demo_sections(results(), sizes=(6, 18, 54), depth=3)
    compared = sections[1]
    # Of a and b alone: 1 + 40 kept / 80 steps; c, which was not served, would give 1.33.
    assert compared.rows[0][:1] + compared.rows[0][2:] == ("EAGLE-3, offline", "2")
    assert compared.rows[0][1] == "1.50"  # two prompts make no interval
    assert "Offline is -6.2% of what was served." in compared.lines  # 1.5 / 1.6
    assert compared.rows[1] == ("EAGLE-3, served", "1.60 [1.50, 1.70]", "2")


def test_every_size_has_its_row_with_units_and_intervals_and_unknown_is_a_dash() -> None:
    sections = demo_sections(results(), sizes=(6, 18, 54), depth=3)
    assert [row[0] for row in sections[0].rows] == ["6 prompts", "18 prompts", "54 prompts"]
    assert sections[0].rows[2][5] == "1.54 [1.49, 1.59]"
    assert "at 150 tok/s" in sections[0].lines[0]
    assert sections[2].rows[0][2:5] == ("–", "–", "–")
    assert sections[3].rows[0] == ("540 prompts", "1.70 [1.50, 1.90]", "–", "–", "0.50")
    assert "measured 1.54 (-2.6%, inside the interval)." in sections[3].lines[1]


def test_the_report_is_one_page_without_scripts_and_foreign_text_is_escaped(tmp_path: Path) -> None:
    sections = demo_sections(results(), sizes=(6, 18, 54), depth=3)
    markdown, page = write_demo_report(tmp_path, sections)
    html = page.read_text(encoding="utf-8")
    assert "eagle3-k3 is &lt;b&gt;slower&lt;/b&gt;" in html
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")
    text = markdown.read_text(encoding="utf-8")
    assert "| 54 prompts | 5,400 |" in text and "<b>" not in text


def test_three_sizes_are_one_three_and_nine_parts() -> None:
    assert DemoSize.scaled(1.0).sizes == (72, 216, 648)
    assert DemoSize.scaled(0.05).sizes == (6, 18, 54)
    with pytest.raises(BadInput, match=r"--scale: must be from 0.01 to 100, got 1000"):
        DemoSize.scaled(1000)


@pytest.mark.drafter
def test_a_folder_of_another_scale_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    (tmp_path / "demo.json").write_text(json.dumps({"scale": 0.5}))
    assert main(["drafter", "demo", "--dir", str(tmp_path), "--scale", "0.05"]) == 2
    assert "holds a demo of another size; give the --scale it was begun with (0.5)" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["drafter", "demo", "--dir", str(tmp_path / "file")]) == 2


@pytest.mark.drafter
@pytest.mark.embedded
@pytest.mark.timeout(3600)
def test_the_whole_loop_runs_and_a_second_call_does_nothing_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    words = ["drafter", "demo", "--dir", str(tmp_path / "demo"), "--scale", "0.02"]
    command = [sys.executable, "-m", "spectune", *words]
    env = {**os.environ, "SPECTUNE_HOME": str(data_home()), "COLUMNS": "120"}
    first = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3000)
    assert first.returncode == 0, first.stderr[-3000:]
    for title in ("Data against acceptance", "Offline against served", "Forecast"):
        assert title in first.stdout
    found = sorted(path.stem for path in (tmp_path / "demo" / "results").glob("*.json"))
    sizes = (18, 54, 6)
    assert found == sorted(
        ["data", "explain", "export", "forecast", "serve"]
        + [f"{kind}-{n}" for kind in ("train", "evaluate") for n in sizes]
    )
    assert (tmp_path / "demo" / "report.html").stat().st_size > 2_000
    again = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert again.returncode == 0
    assert again.stderr.count("done before") == 11
    assert again.stdout == first.stdout
