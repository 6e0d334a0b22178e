"""Studies side by side: ratios where they mean something, reasons where they do not; and the list of studies."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from exchange_studies import K3, K5, drawn, written
from report_studies import machine, prompts
from rich.console import Console

from spectune.cli.main import main
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.workload import Sampling
from spectune.exchange.comparison.comparable import comparability
from spectune.exchange.comparison.compare import StudyComparison, compare_studies
from spectune.exchange.comparison.view import comparison_view
from spectune.exchange.listing import age_of, is_running, list_studies
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.between import acceptance_changes
from spectune.store.study_dir import StudyDir

QUIET = {"launch_sd": 0.005, "prompt_sd": 0.01}


def cell(found: StudyComparison, arm: str, place: int = 1):
    row = next(row for row in found.rows if row.arm == arm)
    assert row.cells[place] is not None
    return row.cells[place]


def test_alike_studies_are_divided_and_the_truth_is_inside() -> None:
    rng = random.Random(1)
    found = compare_studies([drawn(rng, **QUIET), drawn(rng, speed=0.9, **QUIET)])
    for arm in ("baseline", "eagle3-k3", "eagle3-k5"):
        ratio = cell(found, arm).ratio
        assert cell(found, arm).basis == "tok/s"
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        assert ratio.low < 0.9 < ratio.high


def test_the_truth_is_in_all_intervals_of_a_table_as_often_as_stated() -> None:
    rng = random.Random(2)
    missed = 0
    for _ in range(200):
        found = compare_studies([drawn(rng, prompts=4), drawn(rng, prompts=4)])
        ratios = [
            c.ratio for row in found.rows for c in row.cells[1:] if c is not None and c.ratio is not None
        ]
        missed += any(r.low is None or r.high is None or not r.low <= 1 <= r.high for r in ratios)
    assert missed / 200 <= 0.05 + 2 * 0.0154


def test_other_machines_divide_speedups_and_say_so() -> None:
    rng = random.Random(3)
    other = drawn(rng, speed=3.0, machine=machine(cpu="EPYC"), **QUIET)
    found = compare_studies([drawn(rng, **QUIET), other])
    check = found.studies[1].comparability
    assert check is not None and check.basis == "speedup"
    assert [d.aspect for d in check.differences] == ["machine"]
    ratio = cell(found, "eagle3-k3").ratio
    assert ratio is not None and ratio.low is not None and ratio.low < 1 < (ratio.high or 0)
    assert cell(found, "baseline").ratio is None
    assert "baseline is what speedups are against" in (cell(found, "baseline").why_not or "")


def test_a_seed_makes_no_difference_between_greedy_requests() -> None:
    rng = random.Random(3)
    found = compare_studies([drawn(rng), drawn(rng, sampling=Sampling(seed=0))])
    check = found.studies[1].comparability
    assert check is not None
    assert [d.aspect for d in check.differences] == []


def test_other_sampling_is_never_divided() -> None:
    rng = random.Random(4)
    found = compare_studies([drawn(rng), drawn(rng, sampling=Sampling(temperature=0.7))])
    assert found.num_ratios == 0
    assert "other requests were asked" in (cell(found, "eagle3-k3").why_not or "")
    allowed = compare_studies(
        [drawn(rng), drawn(rng, sampling=Sampling(temperature=0.7))], allowed=["sampling"]
    )
    assert allowed.num_ratios == 3 + 2


def test_the_seed_of_a_sampled_request_is_said() -> None:
    rng = random.Random(4)
    without = drawn(rng, sampling=Sampling(temperature=0.7, seed=None))
    check = compare_studies([without, drawn(rng, sampling=Sampling(temperature=0.7, seed=9))])
    found = check.studies[1].comparability
    assert found is not None
    (difference,) = found.differences
    assert "no seed" in difference.first and "seed 9" not in difference.first
    assert "seed 9" in difference.second and "no seed" not in difference.second


def test_prompts_are_known_by_their_text_not_their_name() -> None:
    rng = random.Random(5)
    first = drawn(rng)
    made = drawn(rng)
    other_texts = tuple(p.model_copy(update={"turns": (f"other {i}",)}) for i, p in enumerate(prompts(12)))
    workload = made.study.workload.model_copy(update={"prompts": other_texts})
    renamed = LoadedStudy(
        "other",
        made.study.model_copy(update={"workload": workload}),
        tuple(t.model_copy(update={"workload_hash": workload.workload_hash}) for t in made.trials),
    )
    check = comparability(first, renamed)
    assert check.basis is None
    assert any("no prompt is in both" in (c.effect or "") for c in check.differences)


def test_only_common_prompts_are_divided() -> None:
    rng = random.Random(6)
    found = compare_studies([drawn(rng, prompts=12, **QUIET), drawn(rng, prompts=8, **QUIET)])
    ratio = cell(found, "eagle3-k3").ratio
    assert ratio is not None and ratio.n == 8


def test_engine_versions_are_named_and_still_divided() -> None:
    rng = random.Random(7)
    made = drawn(rng)
    newer = LoadedStudy(
        "newer",
        made.study,
        tuple(
            t.model_copy(update={"server": t.server.model_copy(update={"version": "b9999"})})
            for t in made.trials
            if t.server is not None
        ),
    )
    found = compare_studies([drawn(rng), newer])
    check = found.studies[1].comparability
    assert check is not None and check.state("version") == "differs"
    assert found.num_ratios == 3 + 2  # and the acceptance of two arms


def test_arms_of_one_name_with_other_settings_are_told() -> None:
    rng = random.Random(8)
    longer = K5.model_copy(update={"name": "eagle3-k3"})
    found = compare_studies([drawn(rng, arms=(K3,)), drawn(rng, arms=(longer,))])
    assert cell(found, "eagle3-k3").settings_changed == ("num_draft_tokens",)


def test_the_same_settings_come_before_the_same_name() -> None:
    """`eagle3-k3` became `short`, and its name went to an arm that stands before it."""
    rng = random.Random(12)
    renamed = K3.model_copy(update={"name": "short"})
    found = compare_studies(
        [
            drawn(rng, arms=(K3,)),
            drawn(rng, arms=(K5.model_copy(update={"name": "eagle3-k3"}), renamed)),
        ]
    )
    row = next(r for r in found.rows if r.cells[0] is not None and not r.is_baseline)
    assert row.cells[1] is not None and row.cells[1].ratio is not None
    assert row.cells[1].settings_changed == ()


def test_where_nothing_is_divided_no_other_difference_says_what_is() -> None:
    rng = random.Random(13)
    other = drawn(rng, prompts=2, sampling=Sampling(temperature=0.7), machine=machine(cpu="EPYC"))
    found = compare_studies([drawn(rng), other])
    check = found.studies[1].comparability
    assert check is not None and check.basis is None
    assert {d.aspect: d.effect for d in check.differences} == {
        "machine": None,
        "prompts": None,
        "sampling": "nothing is divided: other requests were asked",
    }


def test_acceptance_lengths_over_other_prompts_are_not_divided() -> None:
    """A stated length without counts by prompt is over all prompts of its own study."""
    rng = random.Random(14)
    made = drawn(rng, prompts=4)
    stated = LoadedStudy(
        "stated",
        made.study,
        tuple(
            t.model_copy(
                update={
                    "loads": tuple(
                        load.model_copy(
                            update={
                                "requests": tuple(
                                    r.model_copy(update={"acceptance": None}) for r in load.requests
                                )
                            }
                        )
                        for load in t.loads
                    )
                }
            )
            for t in made.trials
        ),
    )
    k3 = cell(compare_studies([drawn(rng, prompts=4), stated]), "eagle3-k3")
    assert k3.acceptance_ratio is not None and k3.acceptance_ratio.low is None
    other = cell(compare_studies([drawn(rng, prompts=12), stated]), "eagle3-k3")
    assert other.ratio is not None and other.acceptance_length is not None
    assert other.acceptance_ratio is None


def test_arms_and_studies_without_a_partner_keep_their_figures() -> None:
    rng = random.Random(9)
    found = compare_studies([drawn(rng, arms=(K3,)), drawn(rng, arms=(K5,)), drawn(rng)])
    row = next(r for r in found.rows if r.arm == "eagle3-k5")
    assert row.cells[0] is None
    assert row.cells[1] is not None and row.cells[1].e2e_tok_per_s is not None and row.cells[1].ratio is None


class TestCommands:
    def test_compare_prints_ratios_and_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rng = random.Random(10)
        places = [written(tmp_path / name, drawn(rng, **QUIET)) for name in ("one", "two")]
        assert main(["compare", *places]) == 0
        out = capsys.readouterr().out
        assert "B / A" in out and "eagle3-k3" in out and "comparable" in out
        assert main(["compare", *places, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert StudyComparison.model_validate(document).num_ratios == 3 + 2

    @pytest.mark.parametrize(("columns", "tables"), [(80, 4), (300, 1)])
    def test_tables_of_many_studies_are_parted_rather_than_cut(
        self, columns: int, tables: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        rng = random.Random(15)
        studies = [drawn(rng, prompts=4, machine=machine(cpu="EPYC" if i else "Xeon")) for i in range(5)]
        found = compare_studies(studies)
        Console(highlight=False).print(comparison_view(found))
        out = capsys.readouterr().out
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= columns
        assert out.count("at c=1") == 2 * tables  # of speeds, and of acceptance lengths
        for place in range(1, 5):
            ratio = cell(found, "eagle3-k3", place).ratio
            assert ratio is not None and ratio.low is not None and ratio.high is not None
            assert f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] of speedups" in out

    def test_hostile_names_stay_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rng = random.Random(11)
        evil = K3.model_copy(update={"name": "[red]a\x1b[2Jb\u202e"})
        places = [written(tmp_path / name, drawn(rng, arms=(evil,))) for name in ("one", "two")]
        assert main(["compare", *places]) == 0
        out = capsys.readouterr().out
        assert "[red]a" in out and "\x1b" not in out and "\u202e" not in out

    def test_one_study_or_the_same_twice_is_bad_input(self, tmp_path: Path) -> None:
        place = written(tmp_path / "one", drawn(random.Random(12)))
        assert main(["compare", place]) == 2
        assert main(["compare", place, place]) == 2

    def test_ls_tells_states_best_arm_and_age(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rng = random.Random(13)
        made = drawn(rng, **QUIET)
        written(tmp_path / "group" / "done", made)
        written(tmp_path / "half", LoadedStudy("half", made.study, made.trials[:3]))
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "study.json").write_text("{")
        assert main(["ls", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "group/done" in out and "10/9" in out
        states = {s.study_dir.rsplit("/", 1)[-1]: s.state for s in list_studies(tmp_path)}
        assert states == {"done": "done", "half": "unfinished", "broken": "damaged"}
        for end, state in ((None, "unfinished"), ("predict: no gain is left", "done")):  # its plan grows
            searched = made.study.model_copy(update={"search": "predict", "search_end": end, "plan": ()})
            place = written(tmp_path / f"search-{state}", LoadedStudy("search", searched, made.trials))
            assert list_studies(Path(place))[0].state == state
        assert main(["ls", str(tmp_path / "nothing")]) == 2

    def test_ls_sees_a_lock_that_is_held(self, tmp_path: Path) -> None:
        place = Path(written(tmp_path / "one", drawn(random.Random(14))))
        assert not is_running(place)
        with StudyDir(place).lock():
            assert is_running(place)
        assert not is_running(place)

    def test_ls_reads_a_fresh_report_and_not_a_stale_one(self, tmp_path: Path) -> None:
        place = Path(written(tmp_path / "one", drawn(random.Random(15), **QUIET)))
        report = place / "report.json"
        report.write_text(
            json.dumps(
                {
                    "simulated": True,
                    "best_arm_id": "x",
                    "arms": [{"arm_id": "x", "name": "from the report", "loads": []}],
                    "study": {"num_remaining_trials": 0},
                }
            )
        )
        future = time.time() + 100
        os.utime(report, (future, future))
        assert list_studies(tmp_path)[0].best_arm == "from the report"
        os.utime(report, (1, 1))
        assert list_studies(tmp_path)[0].best_arm != "from the report"

    def test_ages(self) -> None:
        now = datetime(2026, 11, 30, tzinfo=UTC)
        assert age_of("2026-11-29T23:59:30+00:00", now=now) == "30 s"
        assert age_of("2026-11-29T20:00:00+00:00", now=now) == "4 h"
        assert age_of("2026-11-01", now=now) == "29 d"
        assert age_of(None, now=now) == "–"


def test_a_prompt_whose_verify_steps_are_unknown_says_nothing_of_acceptance() -> None:
    """Counted as no steps, its kept tokens would make the draft look better than it is."""
    known = AcceptanceCounts(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=50)
    unknown = AcceptanceCounts(num_drafts=None, num_draft_tokens=300, num_accepted_tokens=290)
    launch = {"a": known, "b": known, "c": known}
    (change,) = acceptance_changes({"k3": ([launch], [{**launch, "c": unknown}])}).values()
    assert change.ratio == pytest.approx(1.0)
    assert change.num_prompts == 2
    nothing = {"k3": ([launch], [dict.fromkeys(launch, unknown)])}
    assert acceptance_changes(nothing) == {}
