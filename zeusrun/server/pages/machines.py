"""The page of the machines: their GPUs, what runs on them, and their schedules.

Machines report all of it, so every value may be anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.analysis.estimates import group_by
from zeusrun.history.rules import job_of
from zeusrun.server.pages.document import Page
from zeusrun.server.pages.runs import running_table
from zeusrun.view import units
from zeusrun.view.columns import GPU, HOST, Column
from zeusrun.view.report.markup import Html, join, moment, page_head, section, table, tag
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.server.pages.document import Links
    from zeusrun.server.pages.reports import GpuFacts, HostFacts, ScheduleFacts, Visit


def machines_page(visit: Visit) -> Page:
    """Return the page of all machines."""
    hosts, running = visit.hosts(), visit.running(limit=None)[0]
    by_host = group_by(running, lambda run: run.host or "an unknown machine")
    silent = sorted(by_host.keys() - {host.host for host in hosts})
    gpus = sum(len(host.gpus) for host in hosts)
    title = f"{plural(len(hosts) + len(silent), 'machine')}, {plural(gpus, 'GPU')}"
    now = plural(len(running), "run")
    lead = f"{now} now. The numbers of a GPU are those that its machine sent last."
    if not hosts and not silent:
        lead = "No machine has reported yet. The launcher of a run reports its own machine."
    sections = [_host(host, by_host.get(host.host, ()), visit) for host in hosts]
    sections += [
        section(
            name, running_table(by_host[name], visit.links), class_="host", data_key=f"host-{n}"
        )
        for n, name in enumerate(silent, len(sections))
    ]
    schedules = [each for host in hosts for each in host.schedules]
    listed = schedules_table(schedules, visit.links) or tag("p", "No job has a schedule.")
    timed = section("Schedules", listed, id="schedules")
    head = page_head("Machines", title, tag("p", lead, class_="lead"))
    return Page("Machines", join((head, *sections, timed)), "Machines")


def _host(host: HostFacts, runs: Sequence[Live], visit: Visit) -> Html:
    parts = [f"zeusrun {host.version}"] if host.version else []
    parts.append(f"reported {units.duration(host.age_s)} ago")
    note = tag("p", " · ".join(parts), class_="note")
    errors = [
        tag("p", f"GPU {units.number(gpu.nvml_index)}: {gpu.error}", class_="note bad")
        for gpu in host.gpus
        if gpu.error
    ]
    columns = [
        *GPU,
        Column("energy by", lambda gpu: gpu.energy_source or UNKNOWN),
        Column("limit held by", lambda gpu: _holder(gpu, visit)),
    ]
    gpus = table(f"GPUs of {host.host}", columns, host.gpus) or tag("p", "It reports no GPU.")
    key = f"host-{host.host}"
    return section(
        host.host,
        note,
        running_table(runs, visit.links),
        gpus,
        *errors,
        class_="host",
        data_key=key,
    )


def _holder(gpu: GpuFacts, visit: Visit) -> str:
    """Return the run that holds a power limit; a dash if it may not be named."""
    run = gpu.held_by or ""
    job = job_of(run)
    return visit.links.link_run(run) if job and visit.access.covers(job) else UNKNOWN


def schedules_table(schedules: Sequence[ScheduleFacts], links: Links) -> Html:
    """Return the table of schedules, the next run first."""
    ordered = sorted(schedules, key=lambda each: (each.next[:1] or ["~"], each.job))
    columns = [
        Column("job", lambda each: links.link_job(each.job)),
        Column("when", lambda each: each.words or UNKNOWN),
        Column("next run", _next_run, left=True),
        HOST,
        Column("last run", lambda each: each.last_run or UNKNOWN, left=True),
    ]
    title = "Schedules, the next one first"
    return table(title, columns, ordered, lambda each: f"{each.host}/{each.job}")


def _next_run(schedule: ScheduleFacts) -> str:
    return "paused" if schedule.paused else moment(*schedule.next[:1])
