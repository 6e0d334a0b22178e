"""``import spectune``: what people call from Python, on drawn studies and on the scripted engine as a real process."""

from __future__ import annotations

import ast
import asyncio
import io
import itertools
import json
import math
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from exchange_studies import K3, drawn, write_study, written
from report_studies import BASELINE, failed, speculative, study, trial

import spectune
from spectune.api.blocking import run_interruptible
from spectune.api.progress import ProgressView
from spectune.api.results import StudyResults
from spectune.cli.main import main
from spectune.domain.acceptance import AcceptanceCounts
from spectune.exchange.whole_study import LoadedStudy
from spectune.store.study_dir import StudyDir

SOURCE = Path(spectune.__file__).parent
STUDY = {
    "name": "from-python",
    "question": "Does the fake drafter pay?",
    "engine": {"name": "fake", "flags": {"tokens-per-s": 400, "draft-cost": 0.1}},
    "target": "fake-model",
    "arms": (
        {
            "name": "good",
            "method": "eagle3",
            "drafter": "d",
            "num_draft_tokens": 3,
            "flags": {"accept": "0.8"},
        },
    ),
    "workload": {"prompts": "builtin", "num_prompts": 2, "max_tokens": 16, "warmup_requests": 1},
    "repetitions": 1,
    "noise_floor": False,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = drawn(random.Random(3))
    trials = (*made.trials, failed(made.study, K3, 99))
    return Path(written(tmp_path / "a study", LoadedStudy("x", made.study, trials)))


@pytest.fixture
def results(place: Path) -> StudyResults:
    return spectune.open_study(place)


class TestNames:
    def test_every_name_is_offered_to_people_and_to_type_checkers_alike(self) -> None:
        tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
        block = next(node for node in tree.body if isinstance(node, ast.If))
        typed = {
            (f"{node.module}", alias.name)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert {name for _, name in typed} | {"__version__"} == set(spectune.__all__)
        for module, name in typed:
            assert getattr(spectune, name) is getattr(sys.modules[module], name)

    def test_no_name_is_that_of_a_package_which_would_hide_it(self) -> None:
        assert not {p.stem for p in SOURCE.iterdir()} & set(spectune.__all__)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="'spectune' has no attribute 'benchmark'"):
            spectune.benchmark  # noqa: B018

    def test_what_is_offered_is_documented(self) -> None:
        for name in set(spectune.__all__) - {"__version__"}:
            assert (getattr(spectune, name).__doc__ or "").strip(), name


class TestLoading:
    def test_a_file_and_a_mapping_of_the_same_keys_are_the_same_study(self, tmp_path: Path) -> None:
        path = tmp_path / "study.yaml"
        path.write_text(json.dumps(STUDY), encoding="utf-8")
        from_file, from_mapping = spectune.load_study(path).study, spectune.load_study(STUDY).study
        assert from_file.arms == from_mapping.arms and from_file.plan == from_mapping.plan
        assert from_file.workload.workload_hash == from_mapping.workload.workload_hash

    def test_overrides_are_those_of_the_command_line(self) -> None:
        typed = spectune.load_study(STUDY, overrides={"workload.max_tokens": 32, "question": "a: b\nc"})
        texts = spectune.load_study(STUDY, overrides=["workload.max_tokens=32"])
        assert typed.study.workload == texts.study.workload and typed.study.question == "a: b\nc"
        assert typed.study.workload.sampling.max_tokens == 32

    def test_every_mistake_is_told_at_once(self) -> None:
        wrong = {**STUDY, "repetitions": 0, "workload": {"concurency": 1}}
        with pytest.raises(spectune.StudyFileError) as caught:
            spectune.load_study(wrong)
        assert {p.where for p in caught.value.problems} >= {"repetitions", "workload.concurency"}

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ({**STUDY, "name": None}, "needs a name"),
            ({**STUDY, "question": object()}, "what a study file cannot"),
            ("no-such-study.yaml", "no such study file or study directory"),
        ],
    )
    def test_what_is_no_study_is_bad_input(self, source: Any, words: str) -> None:
        with pytest.raises(spectune.BadInput, match=words):
            spectune.load_study(source)

    def test_a_preview_starts_and_writes_nothing(self, tmp_path: Path) -> None:
        preview = spectune.load_study(STUDY).preview(tmp_path / "s")
        assert preview.order == ("baseline", "good", "baseline") and preview.launches == 3
        assert preview.estimated_s > 0 and "--method" in preview.commands["good"].argv
        assert not (tmp_path / "s").exists()

    def test_a_preview_counts_no_more_than_the_budget_allows(self, tmp_path: Path) -> None:
        whole = spectune.load_study(STUDY).preview(tmp_path / "s")
        two = spectune.load_study({**STUDY, "budget": {"max_trials": 2}}).preview(tmp_path / "s")
        assert two.launches == 2
        assert two.estimated_s == pytest.approx(whole.estimated_s * 2 / 3)
        assert two.basis.endswith("ended by budget.max_trials: 2")
        short = spectune.load_study({**STUDY, "budget": {"max_minutes": 0.01}}).preview(tmp_path / "s")
        assert short.estimated_s == pytest.approx(0.6)
        assert short.basis.endswith("ended by budget.max_minutes: 0.01, before the last launch")

    def test_a_refused_check_raises_with_its_findings_and_writes_nothing(self, tmp_path: Path) -> None:
        study = {
            **STUDY,
            "engine": {"name": "llamacpp", "executable": str(tmp_path / "absent")},
            "target": str(tmp_path / "absent.gguf"),
            "arms": [{"method": "ngram", "num_draft_tokens": 2}],
        }
        with pytest.raises(spectune.CheckRefused, match="model-missing") as caught:
            spectune.load_study(study).run(tmp_path / "s")
        assert {f.code for f in caught.value.findings} == {"model-missing", "program-missing"}
        assert not (tmp_path / "s").exists()

    def test_a_command_is_checked_as_the_command_line_does(self) -> None:
        found = spectune.check_command("llama-server -m m.gguf --draft-max 3", network=False)
        assert "flag-removed" in {f.code for f in found.findings}


class TestRunning:
    def test_a_study_runs_inside_an_event_loop_and_goes_on_where_it_was(self, tmp_path: Path) -> None:
        async def in_a_notebook() -> StudyResults:
            return spectune.load_study(STUDY).run(tmp_path / "s")

        first = asyncio.run(in_a_notebook())
        assert first.outcome is not None and first.outcome.reason == "done"
        assert [t.status for t in first.trials] == ["complete"] * first.outcome.new_trials
        assert first.summary.simulated and first.headline == first.summary.headline
        again = spectune.load_study(tmp_path / "s").run()
        assert again.outcome is not None and again.outcome.new_trials == 0
        assert again.trials == first.trials
        with pytest.raises(spectune.BadInput, match="another workload"):
            spectune.load_study(STUDY, overrides={"workload.max_tokens": 32}).run(tmp_path / "s")

    def test_interrupting_a_notebook_stops_the_work_cleanly(self) -> None:
        told: list[str] = []
        working = threading.Event()

        async def work() -> None:
            working.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.append("stopped")

        def interrupt() -> None:
            working.wait(10)
            os.kill(os.getpid(), signal.SIGINT)

        async def notebook() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=interrupt).start()
            with pytest.raises(spectune.Interrupted, match="go on with it"):
                run_interruptible(work(), on_signal=told.append, resume_hint="go on with it")

        asyncio.run(notebook())
        assert told == ["interrupted: stopping the server; what was measured is kept", "stopped"]


class TestResults:
    def test_the_command_line_says_the_same(
        self, results: StudyResults, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["report", str(results.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == results.summary.model_dump(mode="json")
        assert main(["explain", str(results.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == results.explain().model_dump(mode="json")
        assert main(["export", str(results.path), "--as", "csv", "--rows", "prompts"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split(",") == list(results.rows("prompts")[0])
        assert len(lines) - 1 == len(results.rows("prompts")) == 3 * 12
        assert "eagle3-k3" in results.table() and max(map(len, results.table(width=80).splitlines())) <= 80

    def test_a_table_is_plain_text_also_in_a_notebook_which_forces_colours(
        self, results: StudyResults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert "\x1b" not in results.table()

    def test_an_arms_speedup_is_the_geometric_mean_of_its_prompts(self, results: StudyResults) -> None:
        for arm in results.rows("arms"):
            rows = [r for r in results.rows("prompts") if r["arm"] == arm["arm"]]
            assert len(rows) == 12
            speeds = [math.log(r["e2e_tok_per_s"]) for r in rows]
            assert math.exp(sum(speeds) / 12) == pytest.approx(arm["e2e_tok_per_s"])
            if arm["is_baseline"]:
                assert {r["speedup"] for r in rows} == {r["acceptance_length"] for r in rows} == {None}
                continue
            mean = math.exp(sum(math.log(r["speedup"]) for r in rows) / 12)
            assert mean == pytest.approx(arm["speedup"])
            kept = sum(r["num_accepted_tokens"] for r in rows) / sum(r["num_drafts"] for r in rows)
            assert 1 + kept == pytest.approx(arm["acceptance_length"])

    @pytest.mark.parametrize("what", ["arms", "trials", "prompts", "requests"])
    def test_a_frame_has_the_rows_with_their_types(self, what: Any, results: StudyResults) -> None:
        pandas = pytest.importorskip("pandas")
        frame, rows = results.frame(what), results.rows(what)
        assert list(frame.columns) == list(rows[0]) and len(frame) == len(rows)
        for name in frame.columns:
            for value, row in zip(frame[name], rows, strict=True):
                assert pandas.isna(value) if row[name] is None else value == row[name], name
        assert frame["arm"].dtype == "string"
        of_arm = results.frame(what, arm="eagle3-k3")
        assert 0 < len(of_arm) < len(frame) and set(of_arm["arm"]) == {"eagle3-k3"}

    def test_a_column_nobody_knows_keeps_its_type(self, results: StudyResults) -> None:
        pytest.importorskip("pandas")
        arms = results.frame("arms")
        assert arms["topk"].isna().all() and arms["topk"].dtype == "Int64"
        assert arms["request_rate"].isna().all() and arms["request_rate"].dtype == "float64"
        assert results.frame("trials")["cause"].dropna().tolist() == ["out of memory"]

    def test_without_pandas_it_says_what_to_install(
        self, results: StudyResults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(spectune.BadInput, match=r"spectune\[frames\]"):
            results.frame("arms")

    def test_wrong_names_are_told(self, results: StudyResults, tmp_path: Path) -> None:
        with pytest.raises(spectune.BadInput, match="arms, trials, prompts, requests, got 'arm'"):
            results.rows("arm")  # type: ignore[arg-type]
        with pytest.raises(spectune.BadInput, match="no arm 'k9'"):
            results.rows("arms", arm="k9")
        with pytest.raises(spectune.BadInput, match="both are needed"):
            results.explain(weights_gib=14)
        with pytest.raises(spectune.BadInput, match="not a study directory"):
            spectune.open_study(tmp_path)

    def test_reports_and_exports_are_files(self, results: StudyResults, tmp_path: Path) -> None:
        paths = results.write_report(tmp_path / "out")
        assert [p.name for p in paths] == ["report.md", "report.html", "report.json"]
        results.write_export("command", tmp_path / "serve.sh", spectune.ExportOptions(arm="eagle3-k3"))
        assert os.access(tmp_path / "serve.sh", os.X_OK)
        assert (tmp_path / "serve.sh").read_text() == results.export(
            "command", spectune.ExportOptions(arm="eagle3-k3")
        )


class TestTogether:
    def test_studies_are_compared_by_path_or_as_they_were_opened(self, place: Path, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        slower = written(tmp_path / "slower", drawn(random.Random(4), speed=0.5, launches=4))
        found = spectune.compare([spectune.open_study(place), slower])
        frame = spectune.to_frame(found)
        assert len(frame) == 2 * 3 and frame["is_reference"].sum() == 3
        ratios = frame[~frame["is_reference"]].set_index("arm")["ratio"]
        assert 0.4 < ratios["eagle3-k3"] < 0.6
        assert pandas.isna(frame[frame["is_reference"]]["ratio"]).all()
        with pytest.raises(spectune.BadInput, match="two or more"):
            spectune.compare([place])
        with pytest.raises(spectune.BadInput, match="same study"):
            spectune.compare([place, spectune.open_study(place)])

    def test_the_gate_fails_what_fell(self, place: Path, tmp_path: Path) -> None:
        slower = written(tmp_path / "slower", drawn(random.Random(4), speed=0.3, launches=4))

        def passes(new: Path | str, old: Path | str) -> bool:
            return spectune.gate(new, against=old, max_slowdown_frac=0.03, basis="tok/s").passed

        assert not passes(slower, place)
        assert passes(place, slower)

    def test_sql_becomes_a_frame(self, place: Path) -> None:
        pytest.importorskip("duckdb")
        pytest.importorskip("pandas")
        found = spectune.query(
            "SELECT arm, count(*) AS n FROM trials GROUP BY arm ORDER BY arm", [place.parent]
        )
        assert spectune.to_frame(found).to_dict("list") == {
            "arm": ["baseline", "eagle3-k3", "eagle3-k5"],
            "n": [4, 4, 3],
        }

    def test_a_folder_lists_its_studies(self, place: Path) -> None:
        assert [s.study_dir for s in spectune.list_studies(place.parent)] == [str(place)]

    def test_other_tools_results_become_a_study(self, tmp_path: Path) -> None:
        file = Path(__file__).parent / "imported" / "vllm-bench" / "plain.json"
        made = spectune.import_results([file], tmp_path / "new")
        assert made.study.imported is not None and made.study.imported.tool == "vllm-bench"
        assert StudyDir.exists(tmp_path / "new") and len(made.trials) == 1
        with pytest.raises(spectune.BadInput, match="not empty"):
            spectune.import_results([file], tmp_path / "new")

    def test_a_table_of_figures_is_explained(self, tmp_path: Path) -> None:
        table = tmp_path / "rows.csv"
        table.write_text(
            "arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length\n"
            "plain,0,1,0,true,50,1\nk3,3,1,3,true,80,2\n",
            encoding="utf-8",
        )
        rows = {row.arm: row for row in spectune.explain_table(table).rows}
        assert rows["k3"].break_even_acceptance_length == pytest.approx(2 * 50 / 80)


def test_the_end_of_a_download_is_told_once() -> None:
    told = io.StringIO()
    view = ProgressView(stream=told, clock=lambda: 0.0)
    for done in (50, 100, 100, 100):
        view.on_fetch("the model", done * 1_000_000, 100_000_000)
    assert told.getvalue().splitlines() == ["fetching the model: 100 of 100 MB"]


def test_a_download_that_does_not_move_is_told_once() -> None:
    told, now = io.StringIO(), itertools.count(0.0, 5.0)
    view = ProgressView(stream=told, clock=lambda: next(now))
    for done in (0, 0, 0, 0, 50, 50):
        view.on_fetch("the model", done * 1_000_000, 100_000_000)
    assert told.getvalue().splitlines() == [
        "fetching the model: 0 of 100 MB",
        "fetching the model: 50 of 100 MB",
    ]


def test_the_command_of_a_next_step_names_the_study_itself(tmp_path: Path) -> None:
    fast = speculative("fast")
    of = study(fast, num_prompts=4, repetitions=2)
    none_kept = AcceptanceCounts(num_drafts=400, num_draft_tokens=1200, num_accepted_tokens=0)
    made = [
        trial(of, BASELINE, 1, speeds=50.0),
        trial(of, fast, 2, speeds=40.0, acceptance=none_kept),
    ]
    place = write_study(tmp_path / "my study", of, made)
    steps = [step.command for step in spectune.open_study(place).explain().next]
    assert f"spectune diagnose '{place}'" in steps


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda place: spectune.open_study(place).export("toml"),
            "export: must be one of vllm-bench, .*, got 'toml'",
        ),
        (lambda place: spectune.import_results([], place / "new"), "import: give one file or more"),
        (
            lambda place: spectune.import_results(["a"], place / "new", form="x"),
            "form: must be auto or .*, got 'x'",
        ),
        (
            lambda place: spectune.gate(place, against=place, max_slowdown_frac=3),
            "max_slowdown_frac: .*, got 3",
        ),
        (
            lambda place: spectune.gate(place, against=place, max_slowdown_frac=0, error_rate=5),
            "error_rate: .*, got 5",
        ),
        (
            lambda place: spectune.gate(place, against=place, max_slowdown_frac=0, figures=("ttft",)),
            "figures: .*, got ..ttft",
        ),
        (lambda place: spectune.compare(str(place)), "two or more"),
        (lambda place: spectune.query("SELECT", str(place)), "query: Parser Error"),
    ],
)
def test_a_wrong_argument_is_told_with_its_value(call: Any, words: str, place: Path) -> None:
    with pytest.raises(spectune.BadInput, match=words):
        call(place)
