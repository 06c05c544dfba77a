"""Runs in Prometheus' text format, version 0.0.4: https://prometheus.io/docs/instrumenting/."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.analysis.savings import find_savings
from zeusrun.plain_text import storable_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Families:
    """Metric families, in the order in which they were first added to."""

    _lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, text: str, value: float | None, /, **labels: str | None) -> None:
        """Add a sample; nothing if the value is unknown. A name in ``_total`` is a counter.

        Args:
            name: Without the prefix ``zeusrun_``.
            text: What the family means.
            value: Of the sample.
            labels: One that is ``None`` is left out.
        """
        if value is None:
            return
        full = f"zeusrun_{name}"
        if name not in self._lines:
            kind = "counter" if name.endswith("_total") else "gauge"
            self._lines[name] = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        pairs = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items() if v is not None)
        self._lines[name].append(f"{full}{{{pairs}}} {float(value)!r}")

    def text(self) -> str:
        """Return the text format."""
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)


def history_text(by_job: Mapping[str, Sequence[Trial]]) -> str:
    """Return what all runs of each job have taken, and its last run that has ended."""
    families = Families()
    for job, trials in by_job.items():
        ended = [trial for trial in trials if trial.status.finished]
        _add_totals(families, job, ended)
        savings = find_savings(trials)
        if savings.by_trial:
            text = "Cost saved against the default batch size, exploring included, in joules."
            families.add("saved_joules", text, savings.net_j, job=job)
        if ended:
            _add_last(families, ended[-1])
    return families.text()


def _add_totals(families: Families, job: str, ended: Iterable[Trial]) -> None:
    runs: defaultdict[str, int] = defaultdict(int)
    energy_j: defaultdict[str, float] = defaultdict(float)
    price: defaultdict[str | None, float] = defaultdict(float)
    carbon_g: list[float] = []
    for trial in ended:
        runs[trial.status.value] += 1
        if trial.energy_j is not None and trial.energy_source is not None:
            energy_j[trial.energy_source.value] += trial.energy_j
        if trial.price is not None:
            price[trial.currency] += trial.price
        if trial.carbon_g is not None:
            carbon_g.append(trial.carbon_g)
    for status, count in runs.items():
        families.add("runs_total", "Runs that have ended.", count, job=job, status=status)
    for source, joules in energy_j.items():
        text = "Energy of all runs whose energy is known."
        families.add("energy_joules_total", text, joules, job=job, source=source)
    for currency, money in price.items():
        text = "Price of the energy of all runs whose price is known."
        families.add("price_total", text, money, job=job, currency=currency)
    text = "Carbon of all runs whose carbon is known, in grams of CO2 equivalent."
    families.add("carbon_grams_total", text, sum(carbon_g) if carbon_g else None, job=job)


def _add_last(families: Families, trial: Trial) -> None:
    families.add(
        "last_run_info",
        "The last run that has ended; always 1.",
        1,
        job=trial.job,
        trial=trial.trial,
        status=trial.status.value,
        gpu_model=trial.gpu_model,
    )

    def add(name: str, text: str, value: float | None, **labels: str | None) -> None:
        families.add(f"last_run_{name}", f"Last run: {text}.", value, job=trial.job, **labels)

    reached = trial.status is TrialStatus.REACHED
    add("end_time_seconds", "Unix time of its end", _unix_s(trial.finished_at))
    add("reached", "1 if it reached the target, else 0", reached)
    add("time_seconds", "training time", trial.time_s)
    add("startup_seconds", "start-up time", trial.startup_s)
    add("energy_joules", "energy", trial.energy_j)
    add("cost_joules", "cost in joules, as in `zeusrun history`", trial.cost_j)
    add("price", "price of its energy", trial.price, currency=trial.currency)
    add("carbon_grams", "grams of CO2 equivalent", trial.carbon_g)
    add("epochs", "completed epochs", trial.epochs)
    add("batch_size", "batch size over all ranks, at its end", trial.last_batch_size)
    add("power_limit_watts", "power limit of each GPU", trial.power_limit_w)
    add("best_metric", "best value of the metric", trial.best_metric, metric=trial.metric)


def live_text(job: str, live: Live | None) -> str:
    """Return the present values of a run; ``live`` is ``None`` while the job has no run."""
    families = Families()
    families.add("running", "Whether a run trains now, 1 or 0.", live is not None, job=job)
    if live is None:
        return families.text()
    trial = live.trial
    families.add(
        "run_info",
        "The run that trains now; always 1.",
        1,
        job=job,
        trial=trial.trial,
        gpu_model=trial.gpu_model,
        host=live.host,
    )

    def add(name: str, text: str, value: float | None, **labels: str | None) -> None:
        families.add(f"run_{name}", text, value, job=job, **labels)

    add("start_time_seconds", "Unix time of the start.", _unix_s(trial.started_at))
    add("power_watts", "Power now, of all devices of the job.", live.power_w)
    add("energy_joules_total", "Energy since training began.", trial.energy_j)
    add("cost_joules_total", "Cost since training began.", trial.cost_j)
    add("price_total", "Price of the energy so far.", trial.price, currency=trial.currency)
    add("carbon_grams_total", "Carbon so far, in grams of CO2 equivalent.", trial.carbon_g)
    add("time_seconds_total", "Time since training began.", trial.time_s)
    add("steps_total", "Optimizer steps.", trial.steps)
    mean = trial.steps / trial.time_s if trial.steps and trial.time_s else None
    add("steps_per_second", "Optimizer steps a second, mean since training began.", mean)
    add("epoch", "Completed epochs.", trial.epochs)
    add("max_epochs", "Epochs after which the run ends.", trial.max_epochs)
    add("batch_size", "Batch size over all ranks.", trial.last_batch_size)
    add("power_limit_watts", "Power limit of each GPU.", trial.power_limit_w)
    metric = trial.metric
    add("metric", "The metric as last reported.", live.last_metric, metric=metric)
    add("best_metric", "The best value of the metric.", trial.best_metric, metric=metric)
    add("target_metric", "The target of the metric.", trial.target, metric=metric)
    return families.text()


def _unix_s(rfc3339: str | None) -> float | None:
    try:
        return datetime.fromisoformat((rfc3339 or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _escaped(value: str) -> str:
    plain = storable_text(value)
    return plain.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
