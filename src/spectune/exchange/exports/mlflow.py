"""A study in MLflow: a run for the study, and below it one for each trial, with parameters, metrics and artifacts.

Runs are found again by tags of ours, so that a repeated export adds what is
new and repeats nothing; one that was cut short is finished.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from spectune.analysis.records import TrialSummary
from spectune.domain.interval import Interval
from spectune.domain.secrets import REDACTED, is_secret, redact_text
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.exchange.whole_study import LoadedStudy
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown
from spectune.report.vllm_result import vllm_bench_result
from spectune.report.write import summary_json
from spectune.store.study_dir import StudyDir, rank_logs

EXPERIMENT = "spectune"
ARTIFACTS = ("trial.json", "plan.json", "requests.jsonl", "result.json", "server.log")
STUDY_TAG, TRIAL_TAG, DONE_TAG = "spectune.study_id", "spectune.trial_id", "spectune.exported"
_STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}
_MAX_PARAM_CHARS = 500
_MAX_PARAMS, _MAX_METRICS = 100, 1000
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_./ -]+")


@dataclass(frozen=True)
class MlflowResult:
    """What an export did."""

    experiment: str
    experiment_id: str
    run_id: str
    """Of the study."""
    added: int
    known: int


def study_id(study: Study) -> str:
    """The same for every copy of the study, wherever it lies."""
    text = f"{study.name}\0{study.created_at}\0{study.workload.workload_hash}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def export_mlflow(
    loaded: LoadedStudy, directory: StudyDir, *, tracking_uri: str, experiment: str = EXPERIMENT
) -> MlflowResult:
    """``directory`` holds the files that become artifacts."""
    with _mlflow(tracking_uri) as client:
        experiment_id = _experiment(client, experiment)
        known = _runs_of(client, experiment_id, study_id(loaded.study))
        summaries = {t.trial_id: t for t in loaded.summary.trials}
        parent = known.get("")
        if parent is None:
            tags = {STUDY_TAG: study_id(loaded.study), "spectune.kind": "study", **_note(loaded.study)}
            parent = client.create_run(experiment_id, run_name=_shown(loaded.study.name), tags=tags)
            _log(client, parent.info.run_id, params=_study_params(loaded))
        parent_id = parent.info.run_id
        added = 0
        for trial in loaded.trials:
            run = known.get(trial.trial_id)
            figures = _own_figures(summaries.get(trial.trial_id))
            if run is not None and DONE_TAG in run.data.tags:
                _log(client, run.info.run_id, metrics=_changed(figures, run.data.metrics))
                continue
            added += 1
            if run is None:
                run = _new_run(client, experiment_id, loaded.study, trial, parent_id)
            _fill(client, run.info.run_id, trial, figures, directory.trials_path / trial.trial_id)
        if added or DONE_TAG not in parent.data.tags:
            _fill_parent(client, parent_id, loaded, directory)
        return MlflowResult(experiment, experiment_id, parent_id, added, len(loaded.trials) - added)


def _new_run(client: Any, experiment_id: str, study: Study, trial: Trial, parent_id: str) -> Any:
    tags = {
        STUDY_TAG: study_id(study),
        TRIAL_TAG: trial.trial_id,
        "spectune.kind": "trial",
        "spectune.status": trial.status,
        "spectune.simulated": str(trial.simulated).lower(),
        "mlflow.parentRunId": parent_id,
    }
    if trial.failure is not None:
        tags["mlflow.note.content"] = _shown(trial.failure.cause, limit=4000)
    name = _shown(f"{trial.number:04d} {trial.arm.name}")
    return client.create_run(experiment_id, start_time=_ms(trial.started_at), run_name=name, tags=tags)


def _fill(client: Any, run_id: str, trial: Trial, figures: Mapping[str, float], folder: Path) -> None:
    metrics = {**_measured(trial), **figures, **{f"phase_s/{k}": v for k, v in trial.phases_s.items()}}
    at = _ms(trial.ended_at)
    steps = [("accepted_at_position", i, share) for i, share in _positions(trial)]
    _log(client, run_id, params=_trial_params(trial), metrics=metrics, steps=steps, at_ms=at)
    for name in (*ARTIFACTS, *(path.name for path in rank_logs(folder).values())):
        if (folder / name).exists():
            client.log_artifact(run_id, str(folder / name))
    client.set_terminated(run_id, status=_STATUS[trial.status], end_time=at)
    client.set_tag(run_id, DONE_TAG, "complete")  # last: without it the run is gone through again


def _fill_parent(client: Any, run_id: str, loaded: LoadedStudy, directory: StudyDir) -> None:
    summary = loaded.summary
    best = None if summary.best_arm_id is None else summary.arm(summary.best_arm_id)
    if best is not None:
        client.set_tag(run_id, "spectune.best_arm", _shown(best.name))
        if best.first is not None:
            _log(client, run_id, metrics=_finite(_interval("best_speedup", best.first.speedup)))
    client.log_text(run_id, render_html(summary), "report.html")
    client.log_text(run_id, render_markdown(summary), "report.md")
    client.log_text(run_id, summary_json(summary), "report.json")
    for name in ("study.yaml", "study.json"):
        client.log_artifact(run_id, str(directory.path / name))
    client.set_terminated(run_id, status="FINISHED")
    client.set_tag(run_id, DONE_TAG, "complete")


def _study_params(loaded: LoadedStudy) -> dict[str, Any]:
    study = loaded.study
    return {
        "study": study.name,
        "engine": study.engine.name,
        "engine_version": ", ".join(loaded.engine_versions) or None,
        "target": study.baseline.target,
        "hostname": study.machine.hostname,
        "cpu": study.machine.cpu,
        "gpus": None if study.machine.gpus is None else ", ".join(study.machine.gpus) or "none",
        "num_arms": len(study.arms),
        "imported_from": None if study.imported is None else study.imported.tool,
        **_workload_params(study),
    }


def _workload_params(study: Study) -> dict[str, Any]:
    workload = study.workload
    return {
        "workload_hash": workload.workload_hash,
        "num_prompts": len(workload.prompts),
        "loads": ", ".join(point.label for point in workload.loads),
        "temperature": workload.sampling.temperature,
        "max_tokens": workload.sampling.max_tokens,
    }


def _trial_params(trial: Trial) -> dict[str, Any]:
    arm = trial.arm
    settings = {f"flags.{k}": v for k, v in arm.flags.items()}
    settings |= {f"env.{k}": v for k, v in arm.env.items()}
    settings |= {f"request.{k}": v for k, v in arm.request.items()}
    return {
        "arm": arm.name,
        "arm_id": trial.arm_id,
        "engine": arm.engine,
        "engine_version": None if trial.server is None else trial.server.version,
        "target": arm.target,
        **arm.knobs.model_dump(),
        "repetition": trial.repetition,
        "node": trial.node,
        "launch": trial.launch_number,
        "workload_hash": trial.workload_hash,
        **{k: REDACTED if is_secret(k.split(".", 1)[1]) else v for k, v in settings.items()},
    }


def _measured(trial: Trial) -> dict[str, float]:
    """The field names of ``vllm bench``; of load points after the first, with their label in front."""
    found: dict[str, float] = {}
    for index, load in enumerate(trial.loads):
        front = "" if index == 0 else f"{load.load.label}/"
        result = vllm_bench_result(trial, index)
        found |= {f"{front}{k}": v for k, v in result.items() if k not in ("burstiness", "request_rate")}
    return _finite(found)


def _own_figures(summary: TrialSummary | None) -> dict[str, float]:
    """What only the whole study gives: it may change with later trials of the baseline."""
    if summary is None:
        return {}
    return _finite(
        {
            **_interval("e2e_tok_per_s", summary.e2e_tok_per_s),
            **_interval("decode_tok_per_s", summary.decode_tok_per_s),
            **_interval("acceptance_length", summary.acceptance_length),
            **_interval("speedup", summary.speedup),
            "acceptance_rate": summary.acceptance_rate,
            "parity_frac": summary.parity_frac,
        }
    )


def _positions(trial: Trial) -> Iterator[tuple[int, float]]:
    counts = trial.loads[0].acceptance if trial.loads else None
    if counts is not None and counts.num_drafts and counts.accepted_per_position is not None:
        for place, accepted in enumerate(counts.accepted_per_position):
            yield place, accepted / counts.num_drafts


def _interval(name: str, interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Numbers alone: what is unknown is no metric, rather than 0."""
    return {
        _NOT_IN_KEYS.sub("-", k): float(v)
        for k, v in values.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }


def _changed(figures: Mapping[str, float], logged: Mapping[str, float]) -> dict[str, float]:
    return {
        k: v for k, v in figures.items() if k not in logged or not math.isclose(v, logged[k], rel_tol=1e-9)
    }


def _log(
    client: Any,
    run_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    steps: Sequence[tuple[str, int, float]] = (),
    at_ms: int | None = None,
) -> None:
    from mlflow.entities import Metric, Param

    at = _ms(None) if at_ms is None else at_ms
    points = [Metric(k, v, at, 0) for k, v in (metrics or {}).items()]
    points += [Metric(k, v, at, step) for k, step, v in steps]
    said = [
        Param(_NOT_IN_KEYS.sub("-", k)[:250], _shown(str(v)))
        for k, v in (params or {}).items()
        if v is not None
    ]
    for some in _chunks(said, _MAX_PARAMS):
        client.log_batch(run_id, params=some)
    for some in _chunks(points, _MAX_METRICS):
        client.log_batch(run_id, metrics=some)


def _chunks(values: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (values[i : i + size] for i in range(0, len(values), size))


def _shown(text: str, *, limit: int = _MAX_PARAM_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _note(study: Study) -> dict[str, str]:
    return {"mlflow.note.content": _shown(study.question, limit=4000)}


def _ms(moment: str | None) -> int:
    from datetime import UTC

    then = datetime.now(UTC) if moment is None else datetime.fromisoformat(moment)
    return int(then.timestamp() * 1000)


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage != "active":
        raise BadInput(f"--experiment {name}: was deleted in MLflow; restore it there, or name another")
    return str(found.experiment_id)


def _runs_of(client: Any, experiment_id: str, study: str) -> dict[str, Any]:
    """By trial id; the study's own under the empty one. Of two, the one that is whole."""
    found: dict[str, Any] = {}
    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            filter_string=f"tags.`{STUDY_TAG}` = '{study}'",
            max_results=1000,
            page_token=token,
        )
        for run in page:
            trial_id = run.data.tags.get(TRIAL_TAG, "")
            if trial_id not in found or DONE_TAG in run.data.tags:
                found[trial_id] = run
        token = page.token
        if not token:
            return found


@contextmanager
def _mlflow(tracking_uri: str) -> Iterator[Any]:
    """The client; what it raises becomes one error of ours."""
    for name, value in (("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")):
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise BadInput("export --as mlflow: needs MLflow's client: pip install 'spectune[mlflow]'") from error
    from requests import RequestException

    try:
        yield MlflowClient(tracking_uri=tracking_uri)
    except (MlflowException, RequestException, OSError) as error:
        said = redact_text(" ".join(str(error).split()))[:300]
        raise EnvironmentFailed(f"MLflow at {redact_text(tracking_uri)}: {said}") from error
