"""The verb ``simulate``: policies on recorded or synthetic jobs."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from zeusrun.commands.options import console
from zeusrun.errors import UsageError
from zeusrun.simulate.report import BASELINE, summarise
from zeusrun.simulate.study import Settings, build_scenarios, run_study
from zeusrun.view.export import print_json
from zeusrun.view.figure import check_figure, draw_regret
from zeusrun.view.simulation import progress, simulation_json, simulation_sheet

_PATH = Path | None
_NAMES = list[str] | None


def simulate(
    *,
    trace_dir: Annotated[
        _PATH,
        typer.Option(metavar="DIR", help="Training and power traces; by default synthetic jobs."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="The GPU of the power trace, such as v100."),
    ] = None,
    workload: Annotated[
        _NAMES,
        typer.Option(
            metavar="W", help="By default all. Others: name:default:target:max_epochs[:min]."
        ),
    ] = None,
    policy: Annotated[
        _NAMES,
        typer.Option(metavar="P", help="auto, zeus, fixed or grid; by default auto and zeus."),
    ] = None,
    recurrences: Annotated[int, typer.Option(min=1, help="Runs of each job.")] = 50,
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions.")] = 20,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed of the first repetition.")] = 0,
    eta_knob: Annotated[float, typer.Option(min=0, max=1, help="1: energy, 0: time.")] = 0.5,
    cost_factor: Annotated[
        float, typer.Option(help="Stop at this multiple of the cheapest run; inf: never.")
    ] = 2.0,
    attempts: Annotated[
        int, typer.Option(min=1, help="Attempts per recurrence, as `attempts` in a job file.")
    ] = 5,
    in_flight: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    load: Annotated[str | None, typer.Option("--load", hidden=True)] = None,
    cluster: Annotated[
        _PATH, typer.Option(metavar="FILE", help="Submit when a cluster did: .csv or .csv.xz.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Annotated[
        _PATH,
        typer.Option(metavar="FILE", help="Draw regret over recurrences: .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Replay recorded or made-up jobs through the policies.

    Everything is charged: first runs, failures, retries, looks, probes of power limits.
    """
    settings = Settings(
        recurrences=recurrences,
        eta_knob=eta_knob,
        cost_factor=None if cost_factor == math.inf else cost_factor,
        attempts=attempts,
        in_flight=in_flight,
    )
    if load is not None:
        raise UsageError("--load was removed; overlap runs with --in-flight N or --cluster FILE")
    _check(settings, cluster)
    if plot:
        check_figure(plot)
    policies = list(dict.fromkeys(policy or ["auto", BASELINE]))
    scenarios = build_scenarios(workload or [], trace_dir, gpu, cluster)
    with progress(console(stderr=True)) as on_progress:
        episodes = run_study(
            scenarios,
            list(dict.fromkeys([*policies, BASELINE])),
            range(first_seed, first_seed + seeds),
            settings,
            processes=_cores(),
            on_progress=on_progress,
        )
    summaries = summarise(episodes, policies)
    source = f"{gpu} traces" if trace_dir else "made-up jobs"
    title = f"{source}, {_described(settings, cluster)}, {seeds} seeds"
    if as_json:
        source_settings: dict[str, object] = {
            "trace_dir": trace_dir and str(trace_dir),
            "gpu": gpu,
            "first_seed": first_seed,
        }
        source_settings |= {
            "cluster": cluster and str(cluster),
            "seeds": seeds,
            "policies": policies,
        }
        print_json(simulation_json({**source_settings, **asdict(settings)}, summaries))
    else:
        shown = console()
        sheet = simulation_sheet(title, summaries, shown.width, made_up=trace_dir is None)
        shown.print(sheet, highlight=False)
    if plot:  # last: should the disk be full now, the table is there
        draw_regret(title, summaries, plot)


def _check(settings: Settings, cluster: Path | None) -> None:
    factor = settings.cost_factor
    if factor is not None and not factor > 0:
        raise UsageError(f"--cost-factor {factor:g}: must be above 0")
    if settings.in_flight > 1 and cluster is not None:
        raise UsageError("--in-flight and --cluster exclude each other; choose one")


def _described(settings: Settings, cluster: Path | None) -> str:
    runs = f"{settings.recurrences} recurrences"
    if cluster:
        runs = f"{cluster.name}, at most {runs} a group"
    elif settings.in_flight > 1:
        runs += f", {settings.in_flight} in flight"
    factor = f", cost factor {settings.cost_factor:g}" if settings.cost_factor else ""
    return f"{runs}, eta_knob {settings.eta_knob:g}{factor}"


def _cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
