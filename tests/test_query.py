"""SQL over records as they lie: documented views, interrupted trials, and no way out of the studies."""

from __future__ import annotations

import csv
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from exchange_studies import K3, drawn, write_study, written
from report_studies import failed

from spectune.cli.main import main
from spectune.errors import BadInput
from spectune.exchange.query import COLUMNS, run_query
from spectune.exchange.whole_study import LoadedStudy

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def place(tmp_path: Path) -> str:
    made = drawn(random.Random(1))
    return written(
        tmp_path / "a study 'with' quotes",
        LoadedStudy("x", made.study, (*made.trials, failed(made.study, K3, 99))),
    )


@pytest.mark.parametrize("view", COLUMNS)
def test_every_view_has_the_columns_that_are_documented(view: str, place: str) -> None:
    assert run_query(f"SELECT * FROM {view}", [place]).columns == tuple(COLUMNS[view])


def test_rows_are_those_of_the_records(place: str) -> None:
    sizes = {"studies": 1, "arms": 3, "trials": 11, "requests": 120}
    for view, size in sizes.items():
        assert run_query(f"SELECT count(*) FROM {view}", [place]).rows == ((size,),)
    found = run_query("SELECT status, cause FROM trials WHERE number = 99", [place]).rows
    assert found == (("failed", "out of memory"),)
    arms = run_query("SELECT arm, is_baseline, method, num_draft_tokens FROM arms ORDER BY arm", [place]).rows
    assert arms == (
        ("baseline", True, "none", None),
        ("eagle3-k3", False, "eagle3", 3),
        ("eagle3-k5", False, "eagle3", 5),
    )


def test_speed_and_acceptance_equal_the_reports(place: str, tmp_path: Path) -> None:
    from spectune.exchange.whole_study import load_study

    sql = (
        "SELECT exp(avg(ln(e2e_tok_per_s))), 1 + sum(r.num_accepted_tokens) / sum(r.num_drafts) "
        "FROM requests r JOIN trials t USING (study_dir, trial_id) WHERE arm = 'eagle3-k3'"
    )
    speed, length = run_query(sql, [place]).rows[0]
    load = load_study(place).summary.arm(K3.arm_id).first
    assert load is not None and load.e2e_tok_per_s is not None and load.acceptance_length is not None
    assert speed * (1 if load.drift_correction is None else load.drift_correction) == pytest.approx(
        load.e2e_tok_per_s.value
    )
    assert length == pytest.approx(load.acceptance_length.value)


def test_several_studies_and_none_with_requests(tmp_path: Path, place: str) -> None:
    made = drawn(random.Random(2))
    empty = str(write_study(tmp_path / "empty", made.study, ()))
    rows = run_query("SELECT study_dir, num_arms, num_prompts FROM studies ORDER BY 1", [place, empty]).rows
    assert {row[0] for row in rows} == {place, empty}
    assert run_query("SELECT * FROM requests", [empty]).rows == ()
    assert run_query("SELECT * FROM trials", [empty]).rows == ()


def test_an_interrupted_trials_requests_are_there_and_a_torn_line_is_not(place: str) -> None:
    folder = Path(place) / "trials" / "0100-abcdef01"
    folder.mkdir()
    whole = (Path(place) / "trials" / f"0002-{K3.arm_id}" / "requests.jsonl").read_text().splitlines()[0]
    (folder / "requests.jsonl").write_text(f"{whole}\n{whole[:40]}")
    assert run_query("SELECT count(*) FROM requests WHERE trial_id = '0100-abcdef01'", [place]).rows == (
        (1,),
    )
    assert run_query("SELECT count(*) FROM trials", [place]).rows == ((11,),)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{place}/out.csv'",
        "COPY (SELECT 1) TO '/tmp/out.csv'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW studies",
        "ATTACH '{place}/x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '{other}/secret.csv'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_text('{place}/../other/secret.csv')",
        "SELECT * FROM read_text('{place}/study.json')",
        "WITH x AS (COPY (SELECT 1) TO '{place}/study.json') SELECT * FROM x",
        "WITH x AS (COPY (SELECT 1) TO '{place}/out.csv') SELECT * FROM x",
        "WITH x AS (DELETE FROM trials RETURNING *) SELECT * FROM x",
        "SELECT INTERVAL 2000000000 MONTH",
        "SELECT",
        "SELECT nothing FROM studies",
        "",
    ],
)
def test_a_query_reads_its_studies_and_changes_nothing(sql: str, place: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.csv").write_text("secret\n1\n")
    before = {p: p.read_bytes() for p in Path(place).rglob("*") if p.is_file()}
    try:
        found = run_query(sql.format(place=place, other=other), [place])
    except BadInput as error:
        assert str(error).startswith("query: ")
    else:
        assert found.rows == (), found
    assert {p: p.read_bytes() for p in Path(place).rglob("*") if p.is_file()} == before


def test_a_study_by_two_names_is_counted_once(place: str) -> None:
    twice = [place, f"{place}/../{Path(place).name}"]
    assert run_query("SELECT count(*) FROM studies", twice).rows == ((1,),)
    assert run_query("SELECT count(*) FROM query('FROM main.Requests')", twice).rows == ((120,),)


class TestCommand:
    def test_table_json_and_csv(self, place: str, capsys: pytest.CaptureFixture[str]) -> None:
        sql = "SELECT arm, num_draft_tokens FROM arms ORDER BY arm"
        assert main(["query", sql, place]) == 0
        assert "eagle3-k3" in capsys.readouterr().out
        assert main(["query", sql, place, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert document["rows"][0] == {"arm": "baseline", "num_draft_tokens": None}
        assert main(["query", sql, str(Path(place).parent), "--csv"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "arm,num_draft_tokens",
            "baseline,",
            "eagle3-k3,3",
            "eagle3-k5,5",
        ]

    def test_json_holds_every_column_and_every_kind_of_value(
        self, place: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sql = "SELECT 1 AS a, 2 AS a, 'nan'::DOUBLE AS n, MAP {DATE '2026-01-02': 'x'} AS m, [1.5::DECIMAL(3,1)] AS l"
        assert main(["query", sql, place, "--json"]) == 0
        document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert document["columns"] == ["a", "a_1", "n", "m", "l"]
        assert document["rows"] == [{"a": 1, "a_1": 2, "n": "nan", "m": {"2026-01-02": "x"}, "l": ["1.5"]}]

    def test_csv_runs_no_formula_from_names_or_values(
        self, place: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sql = """SELECT ' =1' AS "=cmd|x", '＝1' AS b, chr(10) || '+1' AS c, -1 AS d, 'a-1' AS e"""
        assert main(["query", sql, place, "--csv"]) == 0
        rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
        assert rows == [["'=cmd|x", "b", "c", "d", "e"], ["' =1", "'＝1", "'\n+1", "-1", "a-1"]]

    def test_columns_are_listed_without_a_study(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["query", "--columns"]) == 0
        assert "acceptance_length" in capsys.readouterr().out

    def test_wrong_input_is_told(self, place: str, tmp_path: Path) -> None:
        assert main(["query"]) == 2
        assert main(["query", "SELECT 1", str(tmp_path / "nothing")]) == 2

    def test_without_duckdb_it_says_what_to_install(
        self, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        assert main(["query", "SELECT 1", place]) == 2
        assert "spectune[query]" in capsys.readouterr().err
