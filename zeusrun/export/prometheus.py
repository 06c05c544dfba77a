"""Runs in Prometheus' text format.

https://prometheus.io/docs/instrumenting/ describes the format, version 0.0.4.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import Metric, generate_latest

from zeusrun.analysis.amounts import add_up
from zeusrun.analysis.estimates import name_ends
from zeusrun.analysis.savings import find_savings
from zeusrun.clock import unix_seconds
from zeusrun.plain_text import storable_text
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zeusrun.analysis.amounts import Total
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.trial import Trial

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTED = (
    ("time_seconds", "training time to the target, else to its end", "time_s"),
    ("energy_joules", "energy", "energy_j"),
    ("cost_joules", "cost in joules, as in `zeusrun history`", "cost_j"),
    ("data_wait_seconds", "training time that waited for data", "data_wait_s"),
    ("steps", "optimizer steps", "steps"),
    ("samples", "samples that the optimizer consumed", "samples"),
    ("whole_time_seconds", "training time, also after the target", "whole_time_s"),
    ("whole_energy_joules", "energy, also after the target", "whole_energy_j"),
    ("whole_epochs", "epochs, also after the target", "whole_epochs"),
    ("whole_steps", "optimizer steps, also after the target", "whole_steps"),
    ("whole_samples", "samples, also after the target", "whole_samples"),
)  # each is a counter while the run is running


class Families:
    """Metric families, in the order in which they were first added to; a ``Collector``."""

    def __init__(self) -> None:
        self._found: dict[str, Metric] = {}

    def add(self, name: str, text: str, value: float | None, /, **labels: str | None) -> None:
        """Add a sample; nothing if the value is unknown.

        ``zeusrun_`` comes before its name. A name in ``_total`` is a counter, all others are
        gauges. A label that is ``None`` is left out.
        """
        if value is None:
            return
        full = f"zeusrun_{name}"
        kind = "counter" if name.endswith("_total") else "gauge"
        family = self._found.setdefault(name, Metric(full.removesuffix("_total"), text, kind))
        known = {key: storable_text(label) for key, label in labels.items() if label is not None}
        family.add_sample(full, known, value)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._found.values()

    def text(self) -> str:
        """Return the text format."""
        return generate_latest(self).decode()


def jobs_text(by_job: Mapping[str, tuple[Sequence[Live], Sequence[Trial]]]) -> str:
    """Return what all runs of each job have taken, its last run that has ended, and what runs.

    A price is a gauge, because a negative one makes the sum fall.
    """
    families = Families()
    for job, (running, trials) in by_job.items():
        ended = [trial for trial in trials if trial.status.final]
        by_source = {
            source: add_up(job, [each for each in ended if each.energy_source is source])
            for source in EnergySource
        }
        runs = Counter(trial.status.value for trial in ended)
        add_totals(families, runs, add_up(job, ended), by_source)
        savings = find_savings(trials)
        text = (
            "Cost saved against the default batch size, exploring included, in joules; in nine of "
            "ten cases it lies from low to high."
        )
        for name, value in name_ends("saved_joules", savings.net).items():
            families.add(name, text, value, job=job)
        if ended:
            in_order = sorted(ended, key=lambda each: unix_seconds(each.finished_at) or 0.0)
            add_last_run(families, in_order[-1])
        add_running(families, job, len(running))
        for live in running:
            add_live(families, live)
    return families.text()


def add_totals(
    families: Families,
    runs: Mapping[str, int],
    whole: Total,
    by_source: Mapping[EnergySource, Total],
) -> None:
    """Add what all runs of a job that have ended took.

    Args:
        families: Where to.
        runs: How many ended with each status.
        whole: What they took; its name is that of the job.
        by_source: What those took whose energy is from each source.
    """
    job = whole.name
    for status, count in runs.items():
        families.add("runs_total", "Runs that have ended.", count, job=job, status=status)
    for source, total in by_source.items():
        text = "Energy of all runs whose energy is known."
        families.add("energy_joules_total", text, total.energy_j, job=job, source=source.value)
    for currency, price in whole.prices.items():
        text = "Price of the energy of all runs whose price is known."
        families.add("price", text, price, job=job, currency=currency)
    text = "Carbon of all runs whose carbon is known, in grams of CO2 equivalent."
    families.add("carbon_grams_total", text, whole.carbon_g, job=job)


def add_last_run(families: Families, trial: Trial) -> None:
    """Add the last run of a job that has ended."""

    def add(name: str, text: str, value: float | None, **labels: str | None) -> None:
        families.add(f"last_run_{name}", f"Last run: {text}.", value, job=trial.job, **labels)

    names = {"trial": trial.trial, "status": trial.status.value, "gpu_model": trial.gpu_model}
    add("info", "labels of the run; always 1", 1, **names)
    add("end_time_seconds", "Unix time of the end", unix_seconds(trial.finished_at))
    add("reached", "1 if the run reached the target, else 0", trial.status is TrialStatus.REACHED)
    add("startup_seconds", "start-up time", trial.startup_s)
    add("epochs", "completed epochs", trial.epochs)
    for name, text, field in _COUNTED:
        add(name, text, getattr(trial, field))
    _add_amounts(add, trial)


def add_running(families: Families, job: str, runs: int) -> None:
    """Add how many runs of a job have not ended."""
    families.add("running", "Runs that are running, start-up included.", runs, job=job)


def add_live(families: Families, live: Live) -> None:
    """Add the present values of a run."""
    trial = live.trial

    def add(name: str, text: str, value: float | None, **labels: str | None) -> None:
        labels = {"job": trial.job, "trial": trial.trial, **labels}
        families.add(f"run_{name}", f"Running trial: {text}.", value, **labels)

    add("info", "labels of the run; always 1", 1, gpu_model=trial.gpu_model, host=live.host)
    add("start_time_seconds", "Unix time of the start", unix_seconds(trial.started_at))
    add("power_watts", "power now, of all devices of the job", live.power_w)
    add("epoch", "completed epochs", trial.whole_epochs)
    add("max_epochs", "epochs after which the run ends", trial.max_epochs)
    add("metric", "the metric as last reported", live.last_metric, metric=trial.metric)
    add("target_metric", "the target of the metric", trial.target, metric=trial.metric)
    for name, text, field in _COUNTED:
        add(f"{name}_total", text, getattr(trial, field))
    _add_amounts(add, trial)


def _add_amounts(add: Callable[..., None], trial: Trial) -> None:
    """Add values that both running and ended runs have; ``add`` sets the labels of the run."""
    add("price", "price of the energy", trial.price, currency=trial.currency)
    add("carbon_grams", "grams of CO2 equivalent", trial.carbon_g)
    add("batch_size", "batch size over all ranks, now or at the end", trial.last_batch_size)
    add("power_limit_watts", "power limit of each GPU", trial.power_limit_w)
    add("best_metric", "best value of the metric", trial.best_metric, metric=trial.metric)
