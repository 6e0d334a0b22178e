"""SQL over the records of studies as they lie: DuckDB reads the JSON files, for each query anew.

Tables: ``studies`` (a row per study directory), ``arms`` (per arm of a study),
``trials`` (per ended trial), ``requests`` (per request, also of trials that
were interrupted). ``COLUMNS`` describes them. A missing field is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from spectune.errors import BadInput
from spectune.store.opening import open_study

MAX_OBJECT_BYTES = 256 * 2**20
MAX_ROWS = 1_000_000
"""Of an answer, which is held in memory."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "studies": {
        "study_dir": "the directory, as given",
        "study": "its name",
        "question": "what was asked",
        "created_at": "time, UTC",
        "spectune_version": "that made it",
        "engine": "its name",
        "hostname": "of the machine that served",
        "cpu": "of that machine",
        "gpus": "list of names; NULL: could not be asked",
        "num_arms": "of the study file, the baseline included",
        "num_prompts": "of the workload",
        "temperature": "of sampling",
        "max_tokens": "of sampling",
        "imported_from": "the tool that measured; NULL: spectune",
    },
    "arms": {
        "study_dir": "the directory",
        "study": "the study's name",
        "arm": "its name",
        "is_baseline": "the study's reference",
        "engine": "its name",
        "target": "the model that verifies",
        "method": "of speculation; `none`",
        "drafter": "the model that proposes",
        "num_steps": "draft passes per verify step",
        "topk": "branching of the draft tree",
        "num_draft_tokens": "per verify step, without the root",
        "flags": "JSON object",
    },
    "trials": {
        "study_dir": "the directory",
        "trial_id": "its folder in trials/",
        "number": "place in time",
        "arm": "the arm's name",
        "arm_id": "hash of the arm's settings",
        "method": "of speculation",
        "num_draft_tokens": "per verify step",
        "repetition": "of the arm, from 0",
        "status": "complete, failed or pruned",
        "cause": "of a failure",
        "started_at": "time, UTC",
        "ended_at": "time, UTC",
        "engine_version": "as the server said",
        "node": "of a cluster, that it ran on; NULL: the study's host",
        "workload_hash": "equal: the same prompts, sampling and loads",
        "phases_s": "MAP of phase to seconds",
        "simulated": "true: no measurement",
    },
    "requests": {
        "study_dir": "the directory",
        "trial_id": "joins trials; a trial that was interrupted is not there",
        "load_index": "load point, from 0",
        "prompt_id": "of the workload",
        "turn": "of the conversation, from 0",
        "category": "of the prompt",
        "start_s": "since the start of the load point",
        "ttft_s": "to the first chunk with text",
        "latency_s": "to the last chunk with text",
        "prompt_tokens": "as the server counted",
        "output_tokens": "as the server counted",
        "cached_tokens": "of the prompt, from a prefix cache",
        "e2e_tok_per_s": "output_tokens / latency_s",
        "num_drafts": "verify steps",
        "num_draft_tokens": "drafted",
        "num_accepted_tokens": "kept",
        "acceptance_length": "1 + kept / verify steps",
        "finish_reason": "as the server said",
        "error": "NULL: it succeeded",
    },
}

_ARM = (
    "STRUCT(name VARCHAR, engine VARCHAR, target VARCHAR, flags JSON, knobs STRUCT(method VARCHAR, drafter VARCHAR, "
    "num_steps BIGINT, topk BIGINT, num_draft_tokens BIGINT))"
)
_STUDY_TYPES = {
    "name": "VARCHAR",
    "question": "VARCHAR",
    "created_at": "TIMESTAMPTZ",
    "spectune_version": "VARCHAR",
    "engine": "STRUCT(name VARCHAR)",
    "machine": "STRUCT(hostname VARCHAR, cpu VARCHAR, gpus VARCHAR[])",
    "arms": f"{_ARM}[]",
    "workload": "STRUCT(prompts STRUCT(prompt_id VARCHAR)[], sampling STRUCT(temperature DOUBLE, max_tokens BIGINT))",
    "imported": "STRUCT(tool VARCHAR)",
}
_TRIAL_TYPES = {
    "trial_id": "VARCHAR",
    "number": "BIGINT",
    "arm": _ARM,
    "arm_id": "VARCHAR",
    "repetition": "BIGINT",
    "status": "VARCHAR",
    "failure": "STRUCT(cause VARCHAR)",
    "started_at": "TIMESTAMPTZ",
    "ended_at": "TIMESTAMPTZ",
    "server": "STRUCT(version VARCHAR)",
    "node": "VARCHAR",
    "workload_hash": "VARCHAR",
    "phases_s": "MAP(VARCHAR, DOUBLE)",
    "simulated": "BOOLEAN",
}
_REQUEST_TYPES = {
    "load": "BIGINT",
    "prompt_id": "VARCHAR",
    "turn": "BIGINT",
    "category": "VARCHAR",
    "start_s": "DOUBLE",
    "ttft_s": "DOUBLE",
    "latency_s": "DOUBLE",
    "prompt_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "cached_tokens": "BIGINT",
    "acceptance": "STRUCT(num_drafts BIGINT, num_draft_tokens BIGINT, num_accepted_tokens BIGINT)",
    "finish_reason": "VARCHAR",
    "error": "VARCHAR",
}
_STUDIES = """
SELECT d.study_dir, name AS study, question, created_at, spectune_version, engine.name AS engine,
  machine.hostname AS hostname, machine.cpu AS cpu, machine.gpus AS gpus, len(arms) AS num_arms,
  len(workload.prompts) AS num_prompts, workload.sampling.temperature AS temperature,
  workload.sampling.max_tokens AS max_tokens, imported.tool AS imported_from
FROM study_files AS s JOIN study_dirs AS d ON s.filename = d.study_file
"""
_ARMS = """
SELECT study_dir, study, arm.name AS arm, place = 1 AS is_baseline, arm.engine AS engine, arm.target AS target,
  arm.knobs.method AS method, arm.knobs.drafter AS drafter, arm.knobs.num_steps AS num_steps, arm.knobs.topk AS topk,
  arm.knobs.num_draft_tokens AS num_draft_tokens, arm.flags AS flags
FROM (SELECT d.study_dir, s.name AS study, unnest(s.arms) AS arm, generate_subscripts(s.arms, 1) AS place
  FROM study_files AS s JOIN study_dirs AS d ON s.filename = d.study_file)
"""
_TRIALS = """
SELECT f.study_dir, t.trial_id, number, arm.name AS arm, arm_id, arm.knobs.method AS method,
  arm.knobs.num_draft_tokens AS num_draft_tokens, repetition, status, failure.cause AS cause, started_at, ended_at,
  server.version AS engine_version, node, workload_hash, phases_s, simulated
FROM trial_files AS t JOIN trial_dirs AS f ON t.filename = f.file
"""
_REQUESTS = """
SELECT f.study_dir, f.trial_id, load AS load_index, prompt_id, turn, category, start_s, ttft_s, latency_s,
  prompt_tokens, output_tokens, cached_tokens,
  CASE WHEN error IS NULL AND latency_s > 0 THEN output_tokens / latency_s END AS e2e_tok_per_s,
  acceptance.num_drafts AS num_drafts, acceptance.num_draft_tokens AS num_draft_tokens,
  acceptance.num_accepted_tokens AS num_accepted_tokens,
  CASE WHEN acceptance.num_drafts > 0
    THEN 1 + acceptance.num_accepted_tokens / acceptance.num_drafts END AS acceptance_length,
  finish_reason, error
FROM request_files AS r JOIN request_dirs AS f ON r.filename = f.file
WHERE prompt_id IS NOT NULL
"""
_BODIES = {"studies": _STUDIES, "arms": _ARMS, "trials": _TRIALS, "requests": _REQUESTS}


@dataclass(frozen=True)
class QueryResult:
    """The answer to one SELECT; a missing field is ``None``, and no two columns have one name."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def run_query(sql: str, places: Sequence[str]) -> QueryResult:
    """One SELECT over the studies in ``places``. It can read their records and nothing else, and writes nothing."""
    try:
        import duckdb
    except ImportError as error:
        raise BadInput("query needs DuckDB: pip install 'spectune[query]'") from error
    try:
        with (
            TemporaryDirectory(prefix="spectune-query-") as scratch,
            duckdb.connect(":memory:") as connection,
        ):
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise BadInput("query: give one SELECT statement; records are never changed by a query")
            _read_records(connection, places, sql=sql)
            _shut(connection, scratch)
            cursor = connection.execute(statements[0])
            columns = _apart([column[0] for column in cursor.description or ()])
            rows = cursor.fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                raise BadInput(f"query: more than {MAX_ROWS} rows; count, group or LIMIT them")
            return QueryResult(columns, tuple(rows))
    except duckdb.Error as error:
        raise BadInput(f"query: {_first_lines(str(error))}") from error
    except (OverflowError, ValueError) as error:
        raise BadInput(
            f"query: a value of the result has no form in Python: {error}; CAST it AS VARCHAR"
        ) from error


def _first_lines(text: str) -> str:
    return "\n".join(text.splitlines()[:6])


def _apart(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of one name get numbers behind it, as DuckDB's own data frames do: ``a``, ``a_1``."""
    found: list[str] = []
    for name in names:
        shown, number = name, 0
        while shown in found:
            number += 1
            shown = f"{name}_{number}"
        found.append(shown)
    return tuple(found)


def _shut(connection: Any, scratch: str) -> None:
    """From here on no file but those that DuckDB itself swaps out, no extension, no change of any of this.

    A SELECT may hold statements that write (``WITH x AS (COPY ...)``), so that folders it may read would not do.
    """
    connection.execute(f"SET temp_directory = {_text(scratch)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")


def _read_records(connection: Any, places: Sequence[str], *, sql: str) -> None:
    """Tables of the files as they are now, those alone that the query names; a study named twice is there once."""
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    study_rows: dict[str, tuple[str, ...]] = {}
    trial_rows: list[tuple[str, ...]] = []
    request_rows: list[tuple[str, ...]] = []
    for place in places:
        study = open_study(place)
        root = study.path.resolve()
        if str(root) in study_rows:
            continue
        study_rows[str(root)] = (str(root / "study.json"), place)
        for path in study.trial_paths():
            folder = root / "trials" / path.name
            if (path / "trial.json").exists():
                trial_rows.append((str(folder / "trial.json"), place, path.name))
            if (path / "requests.jsonl").exists() and (path / "requests.jsonl").stat().st_size:
                request_rows.append((str(folder / "requests.jsonl"), place, path.name))
    studies = list(study_rows.values())
    _table(connection, "study_dirs", ("study_file", "study_dir"), studies)
    _table(connection, "trial_dirs", ("file", "study_dir", "trial_id"), trial_rows)
    _table(connection, "request_dirs", ("file", "study_dir", "trial_id"), request_rows)
    _files(connection, "study_files", [row[0] for row in studies], _STUDY_TYPES)
    _files(connection, "trial_files", [row[0] for row in trial_rows], _TRIAL_TYPES)
    _files(connection, "request_files", [row[0] for row in request_rows], _REQUEST_TYPES, lines=True)
    for name, body in _BODIES.items():
        if name in sql.lower():
            connection.execute(f"CREATE TABLE {name} AS {body}")


def _table(connection: Any, name: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    connection.execute(f"CREATE TABLE {name} ({', '.join(f'{c} VARCHAR' for c in columns)})")
    if rows:
        marks = ", ".join("?" for _ in columns)
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608  # names are ours


def _files(
    connection: Any, name: str, files: Sequence[str], types: Mapping[str, str], *, lines: bool = False
) -> None:
    """A view over JSON files with stated types; without a file, an empty one of the same columns."""
    if not files:
        columns = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in types.items())
        connection.execute(f"CREATE VIEW {name} AS SELECT {columns}, '' AS filename WHERE false")
        return
    shape = ", ".join(f"{column}: {_text(kind)}" for column, kind in types.items())
    how = "format = 'newline_delimited', ignore_errors = true" if lines else "format = 'unstructured'"
    source = (
        f"read_json({_list(files)}, columns = {{{shape}}}, filename = true, {how}, "
        f"maximum_object_size = {MAX_OBJECT_BYTES})"
    )
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {source}")  # noqa: S608  # quoted by _text


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"
