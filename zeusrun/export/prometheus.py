"""Runs in Prometheus' text format, and the port at which it reads the running training.

https://prometheus.io/docs/instrumenting/ describes the format, version 0.0.4.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import add_up, name_ends
from zeusrun.analysis.savings import find_savings
from zeusrun.clock import unix_seconds
from zeusrun.errors import UsageError
from zeusrun.launcher.events import TrialEnded, TrialStarts
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.record import read_live
from zeusrun.plain_text import storable_text
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from zeusrun.analysis.amounts import Total
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WHOLE = (
    *(("time", "_seconds", "whole_time_s"), ("energy", "_joules", "whole_energy_j")),
    *((name, "", f"whole_{name}") for name in ("epochs", "steps", "samples")),
)


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
    add("info", "its name; always 1", 1, **names)
    reached = trial.status is TrialStatus.REACHED
    add("end_time_seconds", "Unix time of its end", unix_seconds(trial.finished_at))
    add("reached", "1 if it reached the target, else 0", reached)
    add("time_seconds", "training time to the target, else to its end", trial.time_s)
    add("startup_seconds", "start-up time", trial.startup_s)
    add("energy_joules", "energy", trial.energy_j)
    add("cost_joules", "cost in joules, as in `zeusrun history`", trial.cost_j)
    add("price", "price of its energy", trial.price, currency=trial.currency)
    add("carbon_grams", "grams of CO2 equivalent", trial.carbon_g)
    add("epochs", "completed epochs", trial.epochs)
    add("steps", "optimizer steps", trial.steps)
    add("samples", "samples that the optimizer consumed", trial.samples)
    for name, unit, field in _WHOLE:
        add(f"whole_{name}{unit}", f"{name}, after the target included", getattr(trial, field))
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
    for name, unit, field in _WHOLE:
        text = f"{name.capitalize()}, after the target included."
        add(f"whole_{name}{unit}_total", text, getattr(trial, field))
    add("epoch", "Completed epochs.", trial.whole_epochs)
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


LOOPBACK = "127.0.0.1"
_POLL_S = 0.1  # the end of a submit waits that long at most
_CLIENT_TIMEOUT_S = 2.0  # of a client that connects and sends nothing
_COUNTED = ("energy_j", "cost_j", "time_s", "steps", "samples")  # what is served as counters


class MetricsPort:
    """Serves ``/metrics`` from a thread while the ``with`` block runs.

    A bug of the thread is raised again on leaving the block, unless another exception leaves it.

    Attributes:
        url: Where the metrics are.
    """

    def __init__(self, job: str, address: str) -> None:
        """Bind the port: ``9400`` of loopback, or ``HOST:9400``.

        Raises:
            UsageError: If the address is none, or cannot be bound.
        """
        host, port = parse_address(address)
        self._job = job
        self._paths: RunPaths | None = None
        self._highest: dict[str, float] = {}  # of the counters of this run
        self._lock = threading.Lock()
        try:
            self._server = server = _Server(host, port, self)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"--metrics-port {address} cannot be opened: {why}; choose another one"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="zeusrun-metrics", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._server.bug is not None and exception is None:
            raise self._server.bug

    def take(self, event: SubmitEvent) -> None:
        """Take an event of the submit: serve a run from its start to its end."""
        if isinstance(event, TrialStarts):
            with self._lock:
                self._highest.clear()
                self._paths = RunPaths(Path(event.trial.run_dir))
        elif isinstance(event, TrialEnded):
            self._paths = None

    def text(self) -> str:
        """Return the metrics now. The threads of clients call it."""
        with self._lock:
            live = None if self._paths is None else read_live(self._paths)
            return live_text(self._job, None if live is None else self._never_falling(live))

    def _never_falling(self, live: Live) -> Live:
        """Keep each counter at its highest value: early energy is extrapolated, then corrected."""
        names = (*_COUNTED, *(field for *_, field in _WHOLE))
        values = {name: getattr(live.trial, name) for name in names}
        known = {name: value for name, value in values.items() if value is not None}
        highest = {
            name: max(value, self._highest.get(name, value)) for name, value in known.items()
        }
        self._highest |= highest
        return replace(live, trial=replace(live.trial, **highest))


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``9400``, ``HOST:9400`` or ``[::1]:9400``.

    Raises:
        UsageError: If the text is no such address.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        raise UsageError(
            f"--metrics-port {text}: not a port; write a number such as 9400, or HOST:9400"
        )
    return host, int(port)


class _Server(ThreadingTCPServer):
    """A daemon thread for each client: a slow one delays neither the others nor the end.

    ``http.server.HTTPServer`` would look up the host's name at its start.

    Attributes:
        bug: The first exception of a request that is not the client's.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, metrics: MetricsPort) -> None:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.metrics = metrics
        self.bug: BaseException | None = None
        super().__init__((str(place[0]), int(place[1])), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Keep a bug for the main thread; a client that hangs up is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.bug = self.bug or error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    timeout = _CLIENT_TIMEOUT_S
    server_version = "zeusrun"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        """Answer with the metrics, to HEAD with the headers alone."""
        found = self.path.partition("?")[0] == "/metrics"
        text = self.server.metrics.text() if found else "The metrics are at /metrics\n"
        content = text.encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        """Print nothing."""
