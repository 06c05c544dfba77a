"""What the tests of the sources share: a source of a run, and what it returns."""

from __future__ import annotations

from zeusrun.jobfile.metrics_section import Metrics
from zeusrun.metrics import base
from zeusrun.metrics.rows import SourceContext


def open_source(folder, metric="accuracy", *, values=(), target=None, mode="max", **section):
    """Open a source of a run whose script works in a folder."""
    (folder / "run" / "logs").mkdir(parents=True, exist_ok=True)
    run = SourceContext(
        folder / "run", folder, Metrics(**section), metric, dict(values), target, mode
    )
    *_, source = base.open_sources(run).values()
    return source


def values_of(source, metric="accuracy", *, final=False):
    """Return the epochs and values of a metric that came since the last call."""
    events = source.read(final=final)
    return [(event.epoch, event.metrics[metric]) for event in events if metric in event.metrics]


def append(path, text):
    with path.open("a") as file:
        file.write(text)
