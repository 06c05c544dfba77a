"""Runs as runs of MLflow, in a local store or on a server."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import logging
import os
import posixpath
import re
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.analysis.curves import amount_in, curve_in, curve_unit
from zeusrun.clock import unix_seconds
from zeusrun.errors import ExportError, UsageError, ZeusrunError
from zeusrun.plain_text import storable_text
from zeusrun.plugins import check_extra
from zeusrun.target import describe_target
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.trial import Trial

_PARAMS = ("learning_rate", "power_limit_w", "stage")
_METRICS = (
    *("cost_j", "energy_j", "time_s", "startup_s", "epochs", "samples", "price", "carbon_g"),
    *("steps", "progress", "whole_time_s", "whole_energy_j", "whole_epochs", "whole_steps"),
    *("whole_samples", "whole_progress", "data_wait_s", "evaluation_wait_s"),
)
_TAGS = (
    *("trial", "job", "recurrence", "attempt", "status", "reason", "reason_code", "why"),
    *("energy_source", "currency", "gpu_model", "world_size", "forgotten", "host", "run_dir"),
)
_TRIAL = "zeusrun.trial"
_RECORD = "zeusrun.record"  # set last: a fingerprint of the trial that the run shows
_STATUSES = {
    TrialStatus.REACHED: "FINISHED",
    TrialStatus.MISSED: "FINISHED",
    TrialStatus.STOPPED: "KILLED",
    TrialStatus.CANCELLED: "KILLED",
}
_BATCH = 1000  # MLflow takes no more metrics in a request
_LONGEST = 500  # characters of a tag
_TIMEOUT_S = 10.0
_LOGIN = "//[^/]*@"  # user name and password in a URI
_FORBIDDEN = re.compile(r"[^\w\-. /]")


class RunValues(NamedTuple):
    """What MLflow shows of a trial; times are in Unix milliseconds.

    A metric is ``(key, value, time, step)``.
    """

    params: dict[str, str]
    metrics: list[tuple[str, float, int, int]]
    tags: dict[str, str]
    status: str
    began_ms: int
    ended_ms: int


def run_values(trial: Trial, unit: CurveUnit = "epochs") -> RunValues:
    """Return a trial in the terms of MLflow; what is unknown is left out.

    Steps are epochs or samples; without known samples, there is no curve.
    """
    known = {name: value for name, value in trial.to_json().items() if value is not None}
    began_ms = _milliseconds(trial.started_at)
    ended_ms = _milliseconds(trial.finished_at) or began_ms
    training_ms = began_ms + round(1000 * (trial.startup_s or 0.0))
    params = {name: str(known[name]) for name in _PARAMS if name in known}
    tags = {f"zeusrun.{name}": _tag(known[name]) for name in _TAGS if name in known}
    goal = describe_target(trial.target, trial.mode)
    target = {"zeusrun.target": _tag(f"{trial.metric} {goal}"), "zeusrun.step": unit}
    best = {} if trial.best_metric is None else {f"best_{trial.metric}": trial.best_metric}
    numbers = {name: known[name] for name in _METRICS if name in known} | best
    end = amount_in(trial, unit) or 0
    last = [(metric_key(key), value, ended_ms, end) for key, value in numbers.items()]
    points = trial.curve if unit == "epochs" else curve_in(trial, unit)
    curve = [
        (metric_key(trial.metric), p.value, training_ms + round(1000 * p.time_s), p.epoch)
        for p in points
        if p.value is not None
    ]
    return RunValues(
        {"batch_size": str(trial.global_batch_size), **params},
        [*last, *curve],
        tags | target,
        _STATUSES.get(trial.status, "FAILED"),
        began_ms,
        ended_ms,
    )


def metric_key(name: str) -> str:
    """Return the name of a metric as MLflow allows it: it must also be the path of a file."""
    key = _FORBIDDEN.sub("_", storable_text(name))[:250]
    is_path = posixpath.normpath(key) == key and not key.startswith(("/", ".."))
    return key if is_path and key != "." else key.replace("/", "_").replace(".", "_")


def export_runs(uri: str, job: str, trials: Sequence[Trial]) -> Counter[str]:
    """Write the trials of a job that have ended into the experiment of that name.

    A run that is there already is found by its name and its start. It is changed only if the trial
    has changed, so a second export does no harm, also after a crash.

    Returns:
        How many runs are ``new`` in MLflow, were ``changed`` there, and were ``already there``.

    Raises:
        UsageError: If MLflow is not installed, or the URI names a file that cannot be written.
        ExportError: If the server cannot be reached, or MLflow refuses the runs.
    """
    check_extra("--format mlflow", "mlflow", "mlflow")
    _check_store(uri)
    counts: Counter[str] = Counter()
    # MLflow prints a link to each run.
    with _as_one_sentence(uri), contextlib.redirect_stdout(io.StringIO()):
        from mlflow import MlflowClient  # noqa: PLC0415 - optional, and takes seconds

        for noisy in ("alembic", "mlflow.store.db.utils"):  # about tables that they create
            logging.getLogger(noisy).setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(job)
        experiment = client.create_experiment(job) if found is None else found.experiment_id
        present = dict(_present(client, experiment))
        unit = curve_unit(trials)
        for trial in trials:
            if not trial.status.final:
                continue
            value = run_values(trial, unit)
            found = present.get((trial.trial, value.began_ms))
            record = hashlib.sha256(json.dumps(trial.to_json()).encode()).hexdigest()[:16]
            if found is not None and found.data.tags.get(_RECORD) == record:
                counts["already there"] += 1
                continue
            counts["new" if found is None else "changed"] += 1
            run_id = _write(client, experiment, found, value)
            client.set_tag(run_id, _RECORD, record)
    return counts


def _write(client: Any, experiment: str, found: Any, value: RunValues) -> str:  # noqa: ANN401 - MLflow's
    """Write a run, or what has changed in it; return its id."""
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - optional, and slow to import

    run = found or client.create_run(
        experiment, value.began_ms, {_TRIAL: value.tags[_TRIAL]}, value.tags[_TRIAL]
    )
    run_id = str(run.info.run_id)
    params = [Param(*each) for each in value.params.items() if each[0] not in run.data.params]
    tags = [RunTag(*each) for each in value.tags.items()]
    client.log_batch(run_id, params=params, tags=tags)
    for start in range(0, len(value.metrics), _BATCH):
        batch = value.metrics[start : start + _BATCH]
        client.log_batch(run_id, metrics=[Metric(*point) for point in batch])
    client.set_terminated(run_id, value.status, value.ended_ms)
    return run_id


def _present(client: Any, experiment: str) -> Iterator[tuple[tuple[str, int], Any]]:  # noqa: ANN401
    """Yield the runs that an earlier export has written, by trial and start.

    Both are there as soon as a run is, so an export that was interrupted makes no second one.
    """
    token: str | None = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        for run in page:
            if _TRIAL in run.data.tags:
                yield (run.data.tags[_TRIAL], run.info.start_time), run
        token = page.token
        if not token:
            return


def _check_store(uri: str) -> None:
    """Check in seconds what MLflow would try for minutes."""
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--uri {uri}: no database can be written at {path}; name a file in a folder that "
                "you can write"
            )
    if not uri.startswith(("http://", "https://")):
        return
    try:
        plain = re.sub(_LOGIN, "//", uri)
        urllib.request.urlopen(plain, timeout=_TIMEOUT_S).close()  # noqa: S310 - http or https
    except urllib.error.HTTPError:
        pass  # the server has answered
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise ExportError(
            f"the MLflow server at {masked(uri)} cannot be reached: {why}; check --uri, and that "
            "the server runs"
        ) from error


@contextlib.contextmanager
def _as_one_sentence(uri: str) -> Iterator[None]:
    """Turn any exception of MLflow into one sentence."""
    try:
        yield
    except ZeusrunError:
        raise
    except ImportError as error:  # the driver of a database is missing
        raise UsageError(f"{masked(uri)} needs a package that is not installed: {error}") from error
    except Exception as error:
        why = " ".join(str(error).split()).replace(uri, masked(uri)) or type(error).__name__
        raise ExportError(
            f"the export to {masked(uri)} failed: {_tag(why)}; check --uri. Exported runs stay "
            "there; export again to add the others"
        ) from error


def masked(uri: str) -> str:
    """Return a URI without its user name and password."""
    return re.sub(_LOGIN, "//***@", uri)


def _tag(value: object) -> str:
    text = storable_text(str(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _milliseconds(rfc3339: str | None) -> int:
    """Return a time in Unix milliseconds; 0 if there is none, or it is damaged."""
    return round(1000 * (unix_seconds(rfc3339) or 0.0))
