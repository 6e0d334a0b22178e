"""Results of other tools become studies like any other; what their files do not say stays unknown."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml

from spectune.analysis.records import ArmSummary
from spectune.cli.main import main
from spectune.errors import BadInput
from spectune.exchange.comparison.compare import compare_studies
from spectune.exchange.imports.read import detect, read_results
from spectune.exchange.imports.reading import read_source
from spectune.exchange.imports.results import ArmHints, assemble
from spectune.exchange.whole_study import LoadedStudy, load_study

FILES = Path(__file__).parent / "imported"
SAID = {
    "sglang-bench-serving": ["--method", "eagle3", "--baseline", "none"],
    "guidellm": ["--method", "eagle3", "--baseline", "plain"],
}
"""What the scripted server does not tell these tools."""
MATRIX = "specforge/results_20261130_105923.jsonl"
REPORT = "specforge/benchmark_20261130_105915.json"
CLIENT = "specforge/client-eagle3.json"
TOOLS = {
    "vllm-bench": ["vllm-bench/plain.json", "vllm-bench/eagle3.json"],
    "vllm-sweep": ["vllm-sweep/demo"],
    "sglang-bench-serving": ["sglang-bench-serving/details.jsonl"],
    "sglang-bench-speculative": ["sglang-bench-speculative/output.jsonl"],
    "specforge": [MATRIX],
    "guidellm": ["guidellm/plain.json", "guidellm/eagle3.json"],
    "inferencex": ["inferencex/kimik2.5_eagle3.yaml"],
}


def imported(*names: str, form: str = "auto", baseline: str | None = None, **hints: str) -> LoadedStudy:
    paths = [FILES / name for name in names]
    results = read_results(paths, names={}, form=form, hints=ArmHints(**hints))
    study, trials = assemble(results, name="imported", baseline=baseline)
    return LoadedStudy("imported", study, tuple(trials))


def arm(loaded: LoadedStudy, name: str) -> ArmSummary:
    return next(a for a in loaded.summary.arms if a.name == name)


def first(loaded: LoadedStudy, name: str):
    load = arm(loaded, name).first
    assert load is not None
    return load


@pytest.mark.parametrize("tool", TOOLS)
class TestEveryTool:
    def test_its_files_are_recognised(self, tool: str) -> None:
        for name in TOOLS[tool]:
            path = FILES / name
            files = sorted(path.rglob("run=*.json")) if path.is_dir() else [path]
            assert {detect(read_source(f)) for f in files} == {tool}

    def test_the_study_works_with_every_command(
        self, tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = str(tmp_path / "study")
        files = [str(FILES / n) for n in TOOLS[tool]] + SAID.get(tool, [])
        assert main(["import", *files, "--dir", place]) == 0
        out = capsys.readouterr().out
        assert "not in the files" in out
        assert main(["report", place, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["study"]["imported"]["tool"] == tool
        assert any(f["code"] == "imported-figures" for f in report["findings"])
        other = str(tmp_path / "again")
        assert main(["import", *files, "--dir", other, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tool"] == tool
        assert main(["compare", place, other]) == 0
        assert main(["ls", str(tmp_path)]) == 0
        assert "imported" in capsys.readouterr().out
        assert main(["export", place, "--as", "csv"]) == 0
        html = (Path(place) / "report.html").read_text()
        assert "not recorded" in html
        explained = main(["explain", place])
        assert explained == (2 if tool == "inferencex" else 0)  # it has no plain decoding

    def test_no_launch_is_claimed(self, tool: str) -> None:
        loaded = imported(*TOOLS[tool])
        assert all(t.command == () and t.stop is None for t in loaded.trials)
        with pytest.raises(BadInput, match="does not record the server's command"):
            from spectune.exchange.exports.serving import serving_of

            serving_of(loaded, loaded.trials[0].arm, host="x", port=1)


class TestVllm:
    def test_single_requests_give_the_tools_own_figures(self) -> None:
        real = json.loads((FILES / "vllm-bench/plain.json").read_text())
        load = first(imported("vllm-bench/plain.json"), "plain")
        assert load.num_requests == real["completed"] == 8
        assert load.output_tok_per_s == pytest.approx(real["output_throughput"], rel=1e-6)
        assert 1000 * (load.median_ttft_s or 0) == pytest.approx(real["median_ttft_ms"])
        assert 1000 * (load.median_itl_s or 0) == pytest.approx(real["median_itl_ms"])
        speeds = [n / s for n, s in zip(real["output_lens"], real["latencies"], strict=True)]
        mean = math.exp(sum(map(math.log, speeds)) / 8)
        assert load.e2e_tok_per_s is not None
        assert load.e2e_tok_per_s.value == pytest.approx(mean, rel=0.01)

    def test_acceptance_is_the_counters_of_the_file(self) -> None:
        real = json.loads((FILES / "vllm-bench/eagle3.json").read_text())
        loaded = imported("vllm-bench/plain.json", "vllm-bench/eagle3.json")
        load = first(loaded, "eagle3")
        assert load.acceptance_length is not None
        assert load.acceptance_length.value == pytest.approx(real["spec_decode_acceptance_length"])
        assert load.acceptance_rate == pytest.approx(real["spec_decode_acceptance_rate"] / 100)
        knobs = arm(loaded, "eagle3").arm.knobs
        assert (knobs.method, knobs.num_draft_tokens) == ("eagle3", 3)

    def test_runs_are_paired_only_if_the_prompts_lengths_are_equal(self) -> None:
        loaded = imported("vllm-bench/plain.json", "vllm-bench/eagle3.json")
        speedup = first(loaded, "eagle3").speedup
        assert speedup is not None and speedup.n == 8 and speedup.low is not None

    def test_other_prompt_lengths_are_other_prompts(self, tmp_path: Path) -> None:
        body = json.loads((FILES / "vllm-bench/eagle3.json").read_text())
        body["input_lens"][3] += 1
        file = tmp_path / "eagle3.json"
        file.write_text(json.dumps(body))
        assert first(imported("vllm-bench/plain.json", str(file)), "eagle3").speedup is None

    def test_a_summary_has_speed_and_no_interval(self) -> None:
        loaded = imported("vllm-bench/plain-summary.json")
        load = first(loaded, "plain-summary")
        assert load.e2e_tok_per_s is not None
        assert (load.e2e_tok_per_s.low, load.num_requests) == (None, 8)
        assert load.parity is not None and load.parity.num_compared == 0

    def test_a_sweep_is_one_arm_per_server_setting_with_its_loads(self) -> None:
        loaded = imported("vllm-sweep/demo")
        assert {a.name for a in loaded.summary.arms} == {"plain", "eagle3-k3"}
        assert [load.label for load in arm(loaded, "eagle3-k3").loads] == ["c=1", "c=4"]
        assert first(loaded, "eagle3-k3").num_requests == 16
        assert len(loaded.trials) == 2

    def test_a_sweeps_figures_are_those_of_its_runs(self) -> None:
        """The speed of a stream is its tokens over its time; two runs together, as their geometric mean."""
        folder = FILES / "vllm-sweep/demo/SERVE--method=eagle3-num-draft-tokens=3-BENCH--max_concurrency=4"
        runs = [json.loads((folder / f"run={n}.json").read_text()) for n in (0, 1)]
        load = arm(imported("vllm-sweep/demo"), "eagle3-k3").loads[1]
        assert load.label == "c=4" and load.e2e_tok_per_s is not None and load.acceptance_length is not None
        speeds = [1000 * 192 / 8 / r["mean_e2el_ms"] for r in runs]
        assert load.e2e_tok_per_s.value == pytest.approx(math.sqrt(speeds[0] * speeds[1]))
        kept = sum(r["spec_decode_accepted_tokens"] for r in runs)
        steps = sum(r["spec_decode_num_drafts"] for r in runs)
        assert load.acceptance_length.value == pytest.approx(1 + kept / steps)

    def test_named_loads_are_loads_of_their_servers_arm(self) -> None:
        """A load's name overwrites that of the server's setting in the tool's files."""
        names = {
            json.loads(f.read_text())["_benchmark_name"]
            for f in (FILES / "vllm-sweep/named").rglob("run=0.json")
        }
        assert names == {"one", "four"}
        loaded = imported("vllm-sweep/named")
        assert {a.name for a in loaded.summary.arms} == {"plain", "eagle3-k3"}
        for name in ("plain", "eagle3-k3"):
            assert [load.label for load in arm(loaded, name).loads] == ["c=1", "c=4"]

    def test_runs_of_one_server_are_no_launches_unless_the_user_says_so(self) -> None:
        results = read_results([FILES / "vllm-sweep/demo"], names={}, form="auto", hints=ArmHints())
        _, together = assemble(results, name="x")
        _, apart = assemble(results, name="x", run_is_launch=True)
        assert (len(together), len(apart)) == (2, 4)

    def test_runs_that_asked_different_things_are_refused(self, tmp_path: Path) -> None:
        body = json.loads((FILES / "vllm-bench/plain-summary.json").read_text())
        for length in (128, 1024):
            file = tmp_path / f"run-{length}.json"
            file.write_text(json.dumps({**body, "random_input_len": length}))
        with pytest.raises(BadInput, match=r"random_input_len is 1024, but 128 in .*study of its own"):
            imported(*(str(tmp_path / f"run-{n}.json") for n in (128, 1024)))


class TestSglang:
    def test_speed_and_acceptance_are_the_files(self) -> None:
        rows = [
            json.loads(x) for x in (FILES / "sglang-bench-serving/details.jsonl").read_text().splitlines()
        ]
        loaded = imported("sglang-bench-serving/details.jsonl")
        assert first(loaded, "none").output_tok_per_s == pytest.approx(rows[0]["output_throughput"], rel=1e-3)
        assert first(loaded, "none").num_requests == 8

    def test_a_line_without_details_has_no_interval(self) -> None:
        load = first(imported("sglang-bench-serving/summary.jsonl"), "none")
        assert load.e2e_tok_per_s is not None and load.e2e_tok_per_s.low is None

    def test_the_servers_own_settings_are_read(self, tmp_path: Path) -> None:
        row = json.loads((FILES / "sglang-bench-serving/summary.jsonl").read_text().splitlines()[0])
        row |= {"accept_length": 2.5, "tag": None}
        row["server_info"] = {
            "version": "0.5.23",
            "model_path": "org/target",
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": "org/draft",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        }
        file = tmp_path / "x.jsonl"
        file.write_text(json.dumps(row) + "\n")
        loaded = imported(str(file))
        found = arm(loaded, "x").arm
        assert (found.knobs.method, found.knobs.num_draft_tokens, found.knobs.drafter) == (
            "eagle3",
            3,
            "org/draft",
        )
        assert found.target == "org/target"
        length = first(loaded, "x").acceptance_length
        assert length is not None and (length.value, length.low) == (2.5, None)

    def test_bench_speculative_by_hand(self) -> None:
        loaded = imported("sglang-bench-speculative/by-hand.jsonl")
        load = first(loaded, "s3-k1-d4")
        assert load.speedup is not None and load.speedup.value == pytest.approx(1.6)
        assert load.speedup.low is None and load.verdict == "CANNOT_TELL"
        assert load.acceptance_length is not None and load.acceptance_length.value == 2.4
        assert [x.label for x in arm(loaded, "s3-k1-d4").loads] == ["c=1", "c=4"]
        assert arm(loaded, "s3-k1-d4").arm.knobs.num_draft_tokens == 3

    def test_an_acceptance_length_of_exactly_one_is_unknown(self) -> None:
        """The tool writes 1.0 where it has none."""
        assert first(imported("sglang-bench-speculative/by-hand.jsonl"), "s3-k4-d8").acceptance_length is None

    def test_explain_gives_the_step_cost_of_a_table_by_hand(self) -> None:
        """160 tok/s at 2.4 tokens a step is 15 ms; plain is 10 ms, so it breaks even at 1.5."""
        explanation = imported("sglang-bench-speculative/by-hand.jsonl").summary.explanation
        assert explanation is not None
        row = next(r for r in explanation.rows if r.arm == "s3-k1-d4" and r.concurrency == 1)
        assert row.step_cost_s == pytest.approx(0.015)
        assert row.break_even_acceptance_length == pytest.approx(1.5)


def figures(metric: str, *, steps: int) -> dict[str, float]:
    """Of each benchmark, from the file of SpecForge's matrix."""
    body = json.loads((FILES / MATRIX).read_text())
    return {
        name: run["metrics"][0][metric]
        for name, runs in body.items()
        if name != "model"
        for run in runs
        if run["steps"] == steps
    }


class TestSpecforge:
    def test_arms_are_paired_by_benchmark(self) -> None:
        plain, drafted = (figures("output_throughput", steps=n) for n in (0, 3))
        ratios = [drafted[name] / plain[name] for name in ("gsm8k", "simpleqa", "gpqa")]
        load = first(imported(MATRIX), "s3-k1-d4")
        assert load.speedup is not None
        assert load.speedup.value == pytest.approx(math.prod(ratios) ** (1 / 3))
        assert load.speedup.n == 3 and load.speedup.low is not None

    def test_acceptance_is_pooled_over_verify_steps(self) -> None:
        lengths = figures("accept_length", steps=3)
        speeds, times = figures("output_throughput", steps=3), figures("latency", steps=3)
        tokens = {name: speeds[name] * times[name] for name in speeds}
        length = first(imported(MATRIX), "s3-k1-d4").acceptance_length
        assert lengths["gpqa"] == 1.0 < lengths["gsm8k"]  # that server does report its verify steps
        assert length is not None
        verified = sum(tokens[name] / lengths[name] for name in tokens)
        assert length.value == pytest.approx(sum(tokens.values()) / verified)

    def test_the_new_report_says_sampling_and_target(self) -> None:
        body = json.loads((FILES / REPORT).read_text())
        loaded = imported(REPORT)
        assert loaded.study.baseline.target == body["model"]
        assert loaded.study.workload.sampling.max_tokens == 24
        assert loaded.study.imported is not None and "sampling" not in loaded.study.imported.unknown
        metrics = {(r["config"]["label"], r["task"]["name"]): r["metrics"] for r in body["runs"]}
        ratios = [
            metrics["eagle3-s3-k1-d4", task]["throughput_tokens_per_second"]
            / metrics["baseline", task]["throughput_tokens_per_second"]
            for task in ("mtbench", "gsm8k")
        ]
        load = first(loaded, "eagle3-s3-k1-d4")
        assert load.label == "c=2"
        assert load.speedup is not None and load.speedup.value == pytest.approx(math.prod(ratios) ** 0.5)
        drafted = [m for (label, _), m in metrics.items() if label == "eagle3-s3-k1-d4"]
        steps = sum(m["spec_verify_count"] for m in drafted)
        assert load.acceptance_length is not None
        assert load.acceptance_length.value == pytest.approx(sum(m["output_tokens"] for m in drafted) / steps)
        knobs = arm(loaded, "eagle3-s3-k1-d4").arm.knobs
        assert (knobs.method, knobs.drafter, knobs.num_draft_tokens) == ("eagle3", body["draft_model"], 3)

    def test_the_client_only_form(self) -> None:
        body = json.loads((FILES / CLIENT).read_text())
        loaded = imported(CLIENT, method="eagle3")
        length = first(loaded, "client-eagle3").acceptance_length
        assert length is not None and length.value == body["average_acceptance_length"] > 1
        assert loaded.study.baseline.name == "baseline"
        assert loaded.study.imported is not None
        assert "plain decoding: no file holds it" in " ".join(loaded.study.imported.missing)

    def test_the_clients_two_files_are_an_arm_and_its_baseline(self) -> None:
        plain, drafted = (
            json.loads((FILES / f"specforge/client-{name}.json").read_text()) for name in ("plain", "eagle3")
        )
        speedup = first(imported("specforge/client-plain.json", CLIENT), "client-eagle3").speedup
        speed = "throughput_tokens_per_second"
        assert speedup is not None and speedup.value == pytest.approx(drafted[speed] / plain[speed])


class TestGuidellm:
    def test_prompts_and_speeds_are_the_files(self) -> None:
        real = json.loads((FILES / "guidellm/plain.json").read_text())
        ok = real["benchmarks"][0]["requests"]["successful"]
        loaded = imported("guidellm/plain.json", "guidellm/eagle3.json", method="eagle3", baseline="plain")
        assert len(loaded.study.workload.prompts) == 8
        assert any("three rivers" in p.turns[0] for p in loaded.study.workload.prompts)
        load = first(loaded, "plain")
        assert (load.label, load.num_requests) == ("c=2", len(ok))
        assert load.e2e_tok_per_s is not None
        logs = []
        for r in ok:
            times = r["info"]["timings"]
            logs.append(
                math.log(r["output_tokens"] / (times["last_token_iteration"] - times["request_start"]))
            )
        own = [r.e2e_tok_per_s for t in loaded.trials if t.arm.name == "plain" for r in t.loads[0].completed]
        assert sum(math.log(v or 0) for v in own) / len(own) == pytest.approx(sum(logs) / len(logs))
        # Two at a time: the report's figure is that of the steady state.
        assert load.steady_frac is not None and 0.5 < load.steady_frac < 1
        assert load.e2e_tok_per_s.value == pytest.approx(math.exp(sum(logs) / len(logs)), rel=0.01)
        speedup = first(loaded, "eagle3").speedup
        assert speedup is not None and speedup.n == 7  # most of one answer came while the server emptied

    def test_acceptance_of_each_request_is_vllms(self) -> None:
        real = json.loads((FILES / "guidellm/eagle3.json").read_text())
        stats = [
            r["response_metrics"]["speculative_decoding"]
            for r in real["benchmarks"][0]["requests"]["successful"]
        ]
        loaded = imported("guidellm/eagle3.json")
        load = first(loaded, "eagle3")
        assert load.acceptance_source == "per-request" and load.acceptance_length is not None
        kept, steps = (sum(s[k] for s in stats) for k in ("num_accepted_draft_tokens", "num_spec_steps"))
        assert load.acceptance_length.value == pytest.approx(1 + kept / steps)
        assert load.acceptance_length.low is not None
        assert arm(loaded, "eagle3").arm.knobs.num_draft_tokens == 3

    def test_keys_in_a_report_never_reach_the_study(self, tmp_path: Path) -> None:
        """guidellm writes its back end's settings and each request's headers, keys included."""
        body = json.loads((FILES / "guidellm/plain.json").read_text())
        body["benchmarks"][0]["config"]["backend"]["api_key"] = "sk-secret"
        for request in body["benchmarks"][0]["requests"]["successful"]:
            sent = json.loads(request["request_args"])
            request["request_args"] = json.dumps({**sent, "headers": {"Authorization": "Bearer sk-secret"}})
        file = tmp_path / "x.json"
        file.write_text(json.dumps(body))
        assert main(["import", str(file), "--dir", str(tmp_path / "s")]) == 0
        written = [p for p in (tmp_path / "s").rglob("*") if p.is_file()]
        assert written and not [p for p in written if "sk-secret" in p.read_text()]


class TestInferencex:
    def test_every_length_of_a_published_file_is_an_arm(self) -> None:
        name = "inferencex/kimik2.5_eagle3.yaml"
        published = {
            f"{mode} k{k}": length
            for mode, curve in yaml.safe_load((FILES / name).read_text())["kimi-k2.5-nvfp4"].items()
            for k, length in curve.items()
        }
        loaded = imported(name)
        lengths = {a.name: first(loaded, a.name).acceptance_length for a in loaded.summary.arms if a.loads}
        assert {name: length and length.value for name, length in lengths.items()} == published
        assert len(published) == 16
        assert {a.arm.knobs.method for a in loaded.summary.arms if a.loads} == {"eagle3"}

    def test_curves_are_arms_with_acceptance_alone(self) -> None:
        loaded = imported("inferencex/some_model_eagle3.yaml")
        found = {a.name: a for a in loaded.summary.arms if a.loads}
        assert set(found) == {
            *(f"thinking_on k{k}" for k in (1, 2, 3)),
            *(f"thinking_off k{k}" for k in (1, 2)),
        }
        load = first(loaded, "thinking_on k3")
        assert load.acceptance_length is not None and load.acceptance_length.value == 2.55
        assert load.e2e_tok_per_s is None
        knobs = found["thinking_on k3"].arm.knobs
        assert (knobs.method, knobs.drafter, knobs.num_draft_tokens) == ("eagle3", "org/some-eagle3", 3)
        assert "not been measured" in loaded.summary.headline

    def test_more_tokens_than_were_drafted_are_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "x.yaml"
        file.write_text("m:\n  thinking_on:\n    1: 2.5\n")
        with pytest.raises(BadInput, match=r"m\.thinking_on: 1: 2\.5 tokens per step of only 1 drafted"):
            imported(str(file))


class TestUntrusted:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "empty|neither"),
            ("not json at all {", "neither JSON"),
            ('{"a": 1}', "no tool that is known"),
            ("[" * 100_000, "nested|neither"),
            ('{"model_id": "m", "total_input_tokens": 1}', "duration: is missing"),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": "x"}',
                "duration: must be a number, got 'x'",
            ),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": -1}',
                "duration: must be a number of at least 0",
            ),
            ('{"model_id": 3, "total_input_tokens": 1, "duration": 1}', "model_id: must be text, got 3"),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": 1, "output_lens": [1, "x"]}',
                r"output_lens\[1\]: must be a number, got 'x'",
            ),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": 1, "output_lens": [1, 2], "ttfts": [1]}',
                "ttfts: has 1 items, expected 2",
            ),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": 1, "max_concurrency": 0}',
                "max_concurrency: must be a whole number of at least 1, got 0",
            ),
            (
                '{"model_id": "m", "total_input_tokens": 1, "duration": 1, "spec_decode_num_drafts": 1, '
                '"spec_decode_draft_tokens": 2, "spec_decode_accepted_tokens": 3}',
                "3 of only 2",
            ),
            ('{"metadata": {}, "benchmarks": [3]}', r"benchmarks\[0\]: must be an object, got 3"),
        ],
    )
    def test_a_wrong_file_is_told_by_place_and_value(
        self, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "x.json"
        file.write_text(text)
        assert main(["import", str(file), "--dir", str(tmp_path / "study")]) == 2
        message = capsys.readouterr().err
        assert str(file) in message
        import re

        assert re.search(words, message), message
        assert not (tmp_path / "study").exists()

    def test_files_of_two_tools_are_refused(self) -> None:
        with pytest.raises(BadInput, match="is of sglang-bench-speculative, but"):
            imported(CLIENT, "sglang-bench-speculative/output.jsonl")

    def test_a_huge_file_is_not_read(self, tmp_path: Path) -> None:
        file = tmp_path / "x.json"
        with file.open("wb") as out:
            out.truncate(300 * 2**20)
        with pytest.raises(BadInput, match="at most"):
            imported(str(file))

    def test_binary_files_and_folders_are_told(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(BadInput, match="not UTF-8"):
            imported(str(tmp_path / "x.json"))
        with pytest.raises(BadInput, match=r"no run=N\.json"):
            imported(str(tmp_path))
        with pytest.raises(BadInput, match="only --as vllm-sweep takes folders"):
            imported(str(tmp_path), form="guidellm")

    def test_yaml_runs_no_code(self, tmp_path: Path) -> None:
        file = tmp_path / "x.yaml"
        file.write_text("m: !!python/object/apply:os.system ['touch pwned']\n")
        with pytest.raises(BadInput):
            imported(str(file), form="inferencex")
        assert not (tmp_path / "pwned").exists()

    def test_names_from_files_stay_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        body: dict[str, Any] = json.loads((FILES / "vllm-bench/plain-summary.json").read_text())
        body |= {"label": "<script>x</script>\x1b[2J[red]", "model_id": "../../etc"}
        file = tmp_path / "x.json"
        file.write_text(json.dumps(body))
        place = tmp_path / "study"
        assert main(["import", str(file), "--dir", str(place)]) == 0
        assert "\x1b" not in capsys.readouterr().out
        assert "<script>x" not in (place / "report.html").read_text()

    def test_an_existing_folder_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("x")
        file = str(FILES / CLIENT)
        assert main(["import", file, "--dir", str(tmp_path)]) == 2
        assert [p.name for p in tmp_path.iterdir()] == ["mine"]

    def test_an_unknown_baseline_lists_what_there_is(self) -> None:
        with pytest.raises(BadInput, match="there is plain, s3-k1-d4"):
            imported(MATRIX, baseline="nothing")


def test_imported_studies_are_compared_with_a_word_of_warning(tmp_path: Path) -> None:
    studies = [imported(MATRIX) for _ in range(2)]
    found = compare_studies([LoadedStudy(str(i), s.study, s.trials) for i, s in enumerate(studies)])
    check = found.studies[1].comparability
    assert check is not None
    assert {c.aspect for c in check.checks if c.state == "unknown"} == {
        "version",
        "machine",
        "prompts",
        "sampling",
    }
    assert found.num_ratios == 3  # two speeds and an acceptance length


def test_an_imported_study_is_read_back_from_disk(tmp_path: Path) -> None:
    file = str(FILES / MATRIX)
    assert main(["import", file, "--dir", str(tmp_path / "s"), "--target", "org/t"]) == 0
    loaded = load_study(str(tmp_path / "s"))
    assert loaded.study.imported is not None and loaded.study.baseline.target == "org/t"
    assert len(loaded.trials) == 2
    assert main(["run", str(tmp_path / "s")]) == 0  # everything of its plan is there: nothing is launched
    assert load_study(str(tmp_path / "s")).trials == loaded.trials


def test_a_name_may_be_given_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES / CLIENT
    assert main(["import", f"mine={file}", "--dir", str(tmp_path / "s"), "--json"]) == 0
    assert "mine" in json.loads(capsys.readouterr().out)["arms"]


LAUGHS = "_0: &l0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"_{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 8)}]\n" for i in range(1, 16)
)
"""A list of 8^16 items in a kilobyte."""


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("row.jsonl", '"speed": 1e30', "between 1e-12 and 1e+15"),
        ("row.jsonl", '"speed": 1e-320', "between 1e-12 and 1e+15"),
        ("row.jsonl", f'"speed": 1{"0" * 400}', "between 1e-12 and 1e+15"),
        ("row.jsonl", '"speed": -1', "at least 0"),
        ("row.jsonl", '"speed": 1, "batch_size": 1e300', "a whole number up to 1e+15"),
        ("gold.yaml", f"{LAUGHS}m: {{thinking_on: {{3: *l15}}}}", "3: must be a number, got [["),
        ("gold.yaml", f"m: {{thinking_on: {{3: 0x{'f' * 9000}}}}}", "a number of 36000 bits"),
        ("gold.yaml", 'm: {"thinking\\u009b31m": {3: x}}', "thinking\ufffd31m: 3: must be a number"),
    ],
)
def test_figures_that_no_measurement_has_are_refused_with_their_place(
    name: str, text: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    row = f'{{"acc_length": 2.5, "step_time": 0.01, "steps": 3, "topk": 1, "num_draft_tokens": 4, {text}}}'
    file.write_text(row if name == "row.jsonl" else text)
    assert main(["import", str(file), "--dir", str(tmp_path / "new" / "study")]) == 2
    error = capsys.readouterr().err
    assert word in error and error.startswith(f"spectune: {file}: ") and len(error) < 400
    assert list(tmp_path.iterdir()) == [file]


def test_a_study_is_imported_whole_or_not_at_all(tmp_path: Path) -> None:
    files = [str(FILES / name) for name in TOOLS["vllm-bench"]]
    place = tmp_path / "new" / "study"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))  # the page is larger, records are not
    try:
        assert main(["import", *files, "--dir", str(place)]) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not place.parent.exists()
    place.mkdir(parents=True)
    assert main(["import", *files, "--dir", str(place)]) == 0
    assert {p.name for p in place.iterdir()} == {
        *("study.json", "study.yaml", "lock", "trials", "report.md", "report.html", "report.json")
    }


def test_halves_of_surrogate_pairs_are_replaced_wherever_they_stand(tmp_path: Path) -> None:
    body = json.loads((FILES / "vllm-bench/eagle3.json").read_text())
    body |= {"model_id": "m\ud800", "label": "\udfff", "speculative_config": '{"method": "e\\ud83d"}'}
    body["generated_texts"][0] = "\ud83d half"
    body |= {"beyond": math.inf, "duration": 1e15, "date": "99991231-235959"}
    file, gold = tmp_path / os.fsdecode(b"a\xff.json"), tmp_path / "gold.yaml"
    file.write_text(json.dumps(body))
    gold.write_text('"\\ud800m": {"\\ud800": {3: 2.5}}')
    for path, method in ((file, "x"), (gold, "x\udc80")):
        place = tmp_path / f"of-{path.stem}"
        assert main(["import", str(path), "--dir", str(place), "--method", method]) == 0
        study = load_study(str(place)).study
        assert study.arms[-1].target == ("m?" if path == file else "?m")
    assert load_study(str(tmp_path / f"of-{file.stem}")).trials[0].loads[0].requests[0].text == "? half"
