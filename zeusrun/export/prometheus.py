"""Runs in Prometheus' text format, version 0.0.4: https://prometheus.io/docs/instrumenting/."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import add_up, name_ends
from zeusrun.analysis.savings import find_savings
from zeusrun.clock import unix_seconds
from zeusrun.plain_text import storable_text
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Families:
    """Metric families, in the order in which they were first added to."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, text: str, value: float | None, /, **labels: str | None) -> None:
        """Add a sample; nothing if the value is unknown.

        ``zeusrun_`` comes before its name. A name in ``_total`` is a counter, all others are
        gauges. A label that is ``None`` is left out.
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
    """Return what all runs of each job have taken, and its last run that has ended.

    A price is a gauge, because a negative one makes the sum fall.
    """
    families = Families()
    for job, trials in by_job.items():
        ended = [trial for trial in trials if trial.status.final]
        whole = add_up(job, ended)
        by_source = {
            source.value: add_up(job, [each for each in ended if each.energy_source is source])
            for source in EnergySource
        }
        add_totals(
            families,
            job,
            runs=Counter(trial.status.value for trial in ended),
            energy_j={source: totals.energy_j for source, totals in by_source.items()},
            prices=whole.prices,
            carbon_g=whole.carbon_g,
        )
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
    return families.text()


def add_totals(
    families: Families,
    job: str,
    *,
    runs: Mapping[str, int],
    energy_j: Mapping[str, float | None],
    prices: Mapping[str, float],
    carbon_g: float | None,
) -> None:
    """Add what all runs of a job that have ended took.

    Args:
        families: Where to.
        job: Its name.
        runs: How many ended with each status.
        energy_j: By the source of the energy.
        prices: By currency.
        carbon_g: Grams of CO2 equivalent.
    """
    for status, count in runs.items():
        families.add("runs_total", "Runs that have ended.", count, job=job, status=status)
    for source, joules in energy_j.items():
        text = "Energy of all runs whose energy is known."
        families.add("energy_joules_total", text, joules, job=job, source=source)
    for currency, price in prices.items():
        text = "Price of the energy of all runs whose price is known."
        families.add("price", text, price, job=job, currency=currency)
    text = "Carbon of all runs whose carbon is known, in grams of CO2 equivalent."
    families.add("carbon_grams_total", text, carbon_g, job=job)


def add_last_run(families: Families, trial: Trial) -> None:
    """Add the last run of a job that has ended."""

    def add(name: str, text: str, value: float | None, **labels: str | None) -> None:
        families.add(f"last_run_{name}", f"Last run: {text}.", value, job=trial.job, **labels)

    names = {"trial": trial.trial, "status": trial.status.value, "gpu_model": trial.gpu_model}
    add("info", "its name; always 1", 1, **names)
    reached = trial.status is TrialStatus.REACHED
    add("end_time_seconds", "Unix time of its end", unix_seconds(trial.finished_at))
    add("reached", "1 if it reached the target, else 0", reached)
    add("time_seconds", "training time", trial.time_s)
    add("startup_seconds", "start-up time", trial.startup_s)
    add("energy_joules", "energy", trial.energy_j)
    add("cost_joules", "cost in joules, as in `zeusrun history`", trial.cost_j)
    add("price", "price of its energy", trial.price, currency=trial.currency)
    add("carbon_grams", "grams of CO2 equivalent", trial.carbon_g)
    add("epochs", "completed epochs", trial.epochs)
    add("samples", "samples that the optimizer consumed", trial.samples)
    add("batch_size", "batch size over all ranks, at its end", trial.last_batch_size)
    add("power_limit_watts", "power limit of each GPU", trial.power_limit_w)
    add("best_metric", "best value of the metric", trial.best_metric, metric=trial.metric)


def live_text(job: str, live: Live | None) -> str:
    """Return the present values of a run; ``live`` is ``None`` while the job has no run.

    Price and carbon are gauges: if the rates fall, that of the energy so far may fall, too.
    """
    families = Families()
    families.add(
        "running", "1 while a run is running, start-up included, else 0.", live is not None, job=job
    )
    if live is not None:
        add_live(families, live)
    return families.text()


def add_live(families: Families, live: Live, **labels: str) -> None:
    """Add the present values of a run; ``labels`` tell those of a job apart that run together."""
    trial = live.trial

    def add(name: str, text: str, value: float | None, **own: str | None) -> None:
        families.add(f"run_{name}", text, value, **{"job": trial.job, **labels, **own})

    names = {"trial": trial.trial, "gpu_model": trial.gpu_model, "host": live.host}
    add("info", "A run that is running now; always 1.", 1, **names)
    add("start_time_seconds", "Unix time of the start.", unix_seconds(trial.started_at))
    add("power_watts", "Power now, of all devices of the job.", live.power_w)
    add("energy_joules_total", "Energy since training began.", trial.energy_j)
    add("cost_joules_total", "Cost since training began.", trial.cost_j)
    add("price", "Price of the energy so far.", trial.price, currency=trial.currency)
    add("carbon_grams", "Carbon so far, in grams of CO2 equivalent.", trial.carbon_g)
    add("time_seconds_total", "Time since training began.", trial.time_s)
    add("steps_total", "Optimizer steps.", trial.steps)
    add("epoch", "Completed epochs.", trial.epochs)
    add("samples_total", "Samples that the optimizer consumed.", trial.samples)
    add("max_epochs", "Epochs after which the run ends.", trial.max_epochs)
    add("batch_size", "Batch size over all ranks.", trial.last_batch_size)
    add("power_limit_watts", "Power limit of each GPU.", trial.power_limit_w)
    metric = trial.metric
    add("metric", "The metric as last reported.", live.last_metric, metric=metric)
    add("best_metric", "The best value of the metric.", trial.best_metric, metric=metric)
    add("target_metric", "The target of the metric.", trial.target, metric=metric)


def _escaped(value: str) -> str:
    plain = storable_text(value)
    return plain.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
