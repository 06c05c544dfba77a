"""The page of the machines: their GPUs, what runs on them, and their schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.schedule.store import UNDERWAY
from zeusrun.server.pages.document import Links, Page
from zeusrun.server.pages.runs import HOST
from zeusrun.view import units
from zeusrun.view.columns import Column
from zeusrun.view.gpu import model_text, throttle_text
from zeusrun.view.report.headline import percent
from zeusrun.view.report.markup import Html, join, section, table, tag
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from zeusrun.launcher.rundir.record import Live
    from zeusrun.server.pages.hosts import GpuFacts, HostFacts, ScheduleFacts

_LINKS = Links()
_OLD_S = 3600.0


@dataclass(frozen=True)
class Machines:
    """What the page shows; ``running`` by host. ``may_read``: whether a run may be named."""

    hosts: Sequence[HostFacts]
    running: Mapping[str, Sequence[Live]]
    may_read: Callable[[str], bool]


def machines_page(content: Machines, version: str | None) -> Page:
    """Return the page of all machines."""
    hosts = content.hosts
    known = {host.host for host in hosts}
    silent = sorted(set(content.running) - known)
    gpus = sum(len(host.gpus) for host in hosts)
    runs = sum(map(len, content.running.values()))
    title = f"{plural(len(known) + len(silent), 'machine')}, {plural(gpus, 'GPU')}"
    lead = f"{plural(runs, 'run')} now. The numbers of a GPU are those that its machine sent last."
    if not hosts and not silent:
        lead = "No machine has reported yet. The launcher of a run reports its own machine."
    sections = [_host(host, content) for host in hosts]
    sections += [
        section(name, _runs(content.running[name]), class_="host", data_key=f"host-{n}")
        for n, name in enumerate(silent, len(sections))
    ]
    schedules = [each for host in hosts for each in host.schedules]
    now = {run.trial.job for each in content.running.values() for run in each}
    listed = (
        schedules_table(schedules, _LINKS, now) if schedules else tag("p", "No job has a schedule.")
    )
    timed = section("Schedules", listed, id="schedules")
    head = (
        tag("p", "Machines", class_="job"),
        tag("h1", title, class_="headline"),
        tag("p", lead, class_="lead"),
    )
    return Page("Machines", join((*head, *sections, timed)), "Machines", version=version)


def _host(host: HostFacts, content: Machines) -> Html:
    parts = [f"zeusrun {host.version}"] if host.version else []
    parts.append(f"reported {_ago(host.age_s)}")
    note = tag("p", " · ".join(parts), class_="note")
    errors = [
        tag("p", f"GPU {units.number(gpu.cuda_index)}: {gpu.error}", class_="note bad")
        for gpu in host.gpus
        if gpu.error
    ]
    columns = [*_GPU_COLUMNS, Column("limit held by", lambda gpu: _holder(gpu, content.may_read))]
    gpus = table(f"GPUs of {host.host}", columns, host.gpus) or tag("p", "It has no GPU.")
    runs = _runs(content.running.get(host.host, ()))
    key = f"host-{host.host}"
    return section(host.host, note, runs, gpus, *errors, class_="host", data_key=key)


def _ago(age_s: float) -> str:
    if age_s < 90:
        return "just now"
    if age_s < _OLD_S:
        return f"{age_s / 60:.0f} minutes ago"
    if age_s < 48 * 3600:
        return f"{plural(round(age_s / 3600), 'hour')} ago"
    return f"{age_s / 86400:.0f} days ago"


def _runs(runs: Sequence[Live]) -> Html:
    if not runs:
        return tag("p", "Nothing runs here now.")
    items = [
        tag(
            "li",
            _LINKS.link_run(run.trial.trial),
            f" · batch size {run.trial.global_batch_size}",
            "" if run.power_w is None else f" · {units.power(run.power_w)}",
            data_key=run.trial.trial,
        )
        for run in runs
    ]
    return tag("ul", *items, class_="plain")


def _holder(gpu: GpuFacts, may_read: Callable[[str], bool]) -> str:
    """Return the run that holds a power limit; a dash if it may not be named."""
    return _LINKS.link_run(gpu.held_by) if gpu.held_by and may_read(gpu.held_by) else UNKNOWN


_GPU_COLUMNS = (
    Column("GPU", lambda gpu: units.number(gpu.cuda_index)),
    Column("model", model_text, left=True),
    Column("power", lambda gpu: units.power(gpu.power_w)),
    Column("limit", lambda gpu: units.power(gpu.power_limit_w)),
    Column("load", lambda gpu: percent(gpu.utilization)),
    Column("temperature", lambda gpu: units.celsius(gpu.temperature_c)),
    Column("throttled", lambda gpu: throttle_text(gpu.throttle_reasons), left=True),
    Column("energy by", lambda gpu: gpu.energy_source or UNKNOWN),
)


def schedules_table(
    schedules: Sequence[ScheduleFacts], links: Links, running: Collection[str]
) -> Html:
    """Return when jobs run by themselves, the next one first; ``running`` are the jobs that do."""
    ordered = sorted(schedules, key=lambda each: (each.next[:1] or ["~"], each.job))
    columns = [
        Column("job", lambda each: links.link_job(each.job)),
        Column("when", lambda each: each.words or each.cron or UNKNOWN),
        Column("next run", _next_run, left=True),
        HOST,
        Column("last run", lambda each: _last_run(each, is_running=each.job in running), left=True),
    ]
    title = "Schedules, the next one first"
    return table(title, columns, ordered, lambda each: f"{each.host}/{each.job}")


def _next_run(schedule: ScheduleFacts) -> str:
    return "paused" if schedule.paused is True else units.minute(*schedule.next[:1])


def _last_run(schedule: ScheduleFacts, *, is_running: bool) -> str:
    """Describe the last occurrence that is known: a machine reports only when a run begins."""
    known = [each for each in schedule.firings if is_running or each.result not in UNDERWAY]
    none = UNKNOWN if schedule.firings else "it has not run yet"
    return str(max(known, key=lambda each: each.occurrence or "", default=none))
