"""The verb ``scale``: measures what more ranks are worth, by short runs of the user's job."""

from __future__ import annotations

import csv as csv_files
import io
import itertools
import os
import sys
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from typer import Option

from zeusrun.commands import options
from zeusrun.commands.options import tell
from zeusrun.commands.short_run import ALONE, START_S, TRY_S, run_shortly
from zeusrun.errors import ExitCode, UsageError
from zeusrun.gpu.registry import job_devices
from zeusrun.jobfile.hosts import parse_hosts
from zeusrun.jobfile.plugged import count_ranks
from zeusrun.jobfile.spec import load_spec
from zeusrun.plugins import check_extra
from zeusrun.reasons import ReasonCode
from zeusrun.view.columns import column_table, tuple_columns
from zeusrun.view.report import canvas
from zeusrun.view.units import electricity, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.metrics.progress import Progress

LEAST_S = 2.0
"""Seconds of training that a run measures at least: energy is read ten times a second."""

_EPOCHS = 100  # times those of the job: more ranks may else end before they have made the steps
_WELL = [*map(ReasonCode, ("target_reached", "target_missed", "no_metric", "not_trained"))]
_HEAD = "ranks", "samples/s", "ideal", "efficiency", "energy a sample"
_ROW = "ranks", "samples_per_s", "least", "largest", "ideal", "efficiency", "j_per_sample", "source"


class Run(NamedTuple):
    """What a run has shown; joules are ``None`` where they are unknown."""

    ranks: int
    batch_size: int
    steps: int
    samples_per_s: float
    j_per_sample: float | None
    energy_source: str | None


def scale(
    job: options.JobFile,
    *,
    ranks: Annotated[str, Option(metavar="1,2,4", help="The numbers of ranks to compare.")],
    hosts: Annotated[str | None, Option(metavar="a:4,b:4", help="Hosts to fill in turn.")] = None,
    steps: Annotated[int, Option(min=10, help="Optimizer steps that a run measures.")] = 200,
    repeat: Annotated[int, Option(min=1, help="Runs with each number of ranks, in turn.")] = 1,
    csv: Annotated[Path | None, Option(metavar="FILE", help="Write each run here.")] = None,
    figure: Annotated[Path | None, Option(metavar="FILE.svg", help="Draw the throughput.")] = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare the throughput of several numbers of ranks.

    It runs some steps of the job with each. A rank keeps its batch size. Nothing is recorded.
    """
    if figure is not None:
        check_extra("--figure", "report", "matplotlib")
    if not all(word.isdecimal() and int(word) for word in ranks.split(",")):
        raise UsageError(f"--ranks must be numbers of ranks such as 1,2,4, not {ranks!r}")
    counts, changes = sorted(set(map(int, ranks.split(",")))), overrides or []
    plans = list(_plan(load_spec(job, changes), counts, hosts))
    specs = [load_spec(job, [*changes, *plan]) for plan in plans]  # before anything runs
    runs, code = list[Run](), 0
    for spec in specs * repeat:
        run, code = _measure(spec, steps)
        if run is None:
            break
        runs.append(run)
    rows, cells = compare(runs), []
    for count, rate, least, largest, ideal, share, *joules in (row.values() for row in rows):
        spread = "" if least == largest else f" ({least:,.0f} to {largest:,.0f})"
        rates = f"{rate:,.0f}{spread}", f"{ideal:,.0f}", percent(share)
        cells.append((str(count), *rates, electricity(*joules)))
    if rows or as_json:
        options.answer(rows, partial(column_table, tuple_columns(_HEAD), cells), as_json=as_json)
    if csv is not None and rows:
        text = io.StringIO()
        csv_files.writer(text, lineterminator="\n").writerows([Run._fields, *runs])
        options.write_output(csv, text.getvalue().encode())
    if figure is not None and rows:
        options.write_output(figure, draw(rows))
    raise typer.Exit(code)


def _plan(spec: JobSpec, counts: Sequence[int], given: str | None) -> Iterator[list[str]]:
    """Yield the overrides for each number of ranks."""
    per_node, run_on = spec.launch.nproc_per_node, spec.run_on
    if run_on is not None and run_on.scheduler is not None:
        raise UsageError(
            f"{spec.source}: {run_on.scheduler} would queue each run, but scale runs the job "
            "here: within an allocation, add --set run_on=null, and --hosts for several hosts"
        )
    texts = given.split(",") if given else []
    try:
        slots = [host.slots or 0 for host in parse_hosts(texts)]
    except ValueError as error:
        raise UsageError(f"--hosts {error}") from error
    kind = per_node if isinstance(per_node, str) else "auto"
    devices, here = job_devices(kind, {**os.environ, **spec.env})
    for device in devices:
        device.close()
    each = spec.batch_size.default // (count_ranks(vars(spec)) or here)
    parts = [name for name, part in spec.parts.items() if part.adapts or part.most_ranks]
    *before, room = itertools.accumulate(slots, initial=0)
    for count in counts:
        if given and room < count:
            raise UsageError(f"--hosts {given} has room for {room} ranks, not {count}; write a:4")
        if not given and here < count:
            tell(f"warning: {count} ranks share {here} GPUs or CPUs of this machine")
        placed = [
            f"{text.rpartition(':')[0]}:{min(most, count - rank)}"
            for text, most, rank in zip(texts, slots, before, strict=True)
            if rank < count
        ]
        yield [
            *ALONE,
            *(["run_on.hostfile=null", f"run_on.hosts={placed}"] if given else ["run_on=null"]),
            f"launch.nproc_per_node={count}",
            "launch.nnodes=null",
            f"batch_size.default={count * max(1, each)}",
            f"batch_size.candidates=[{count * max(1, each)}]",
            f"objective.max_epochs={_EPOCHS * spec.objective.max_epochs}",
            f"timeout_s={START_S + TRY_S}",
            *(f"{name}=null" for name in parts),
        ]


def _measure(spec: JobSpec, steps: int) -> tuple[Run | None, int]:
    """Run the job once; return what its steps took, or the exit code.

    The first tenth does not count: it compiles, fills caches and starts data loaders.
    """
    marks: list[tuple[float, ...]] = []  # steps, seconds, passes over all loaders

    def is_enough(progress: Progress) -> bool:
        made, span = progress.steps or progress.backwards, progress.stepping_s
        if not span or made < max(5, steps // 10):
            return False
        if not marks or made > marks[-1][0]:
            marks.append((made, span[1], progress.passes + progress.others))
        return made - marks[0][0] >= steps and marks[-1][1] - marks[0][1] >= LEAST_S

    tried = run_shortly(spec, is_enough=is_enough, stream=sys.stderr)
    trial, name = tried.trial, plural(tried.trial.world_size, "rank")
    size, seen = trial.global_batch_size, trial.observed_batch_size or trial.global_batch_size
    if tried.ended or tried.failed or (tried.finished and trial.reason_code not in _WELL):
        tell(f"{name}: {tried.reason}")
        return None, tried.code
    if len(marks) < 2:
        tell(f"{name}: too few optimizer steps seen; ask for fewer --steps, or train for longer")
        return None, ExitCode.BAD_INPUT
    if tried.finished:
        tell(f"warning: {name}: the script ended after {marks[-1][0]} optimizer steps")
    if trial.shared:
        tell(f"warning: {name}: other programs used the same CPUs or GPUs meanwhile")
    if seen != size:
        tell(f"warning: {name}: the script trained with batch size {seen}, not {size}")
    parts = np.diff(np.array(marks), axis=0)
    within = parts[parts[:, 2] == 0]  # without ends of epochs and evaluations
    made, seconds, _ = (within if len(within) > len(parts) / 2 else parts).sum(axis=0)
    rate, energies = made * seen / seconds, None
    if trial.whole_energy_j and trial.whole_time_s:  # at the mean power of the training
        energies = trial.whole_energy_j / trial.whole_time_s / rate
    tell(f"{name}: {rate:,.0f} samples/s in {made:.0f} steps of {seen} samples")
    return Run(trial.world_size, seen, int(made), rate, energies, trial.energy_source), 0


def compare(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row of medians for each number of ranks; ideal is in proportion to the first."""
    rows: list[dict[str, Any]] = []
    for ranks in sorted({run.ranks for run in runs}):
        _, _, _, rates, joules, sources = zip(
            *(run for run in runs if run.ranks == ranks), strict=True
        )
        energies = None if None in joules else median(joules), sources[0]
        ideal = ranks * rows[0]["ideal"] / rows[0]["ranks"] if rows else median(rates)
        spread = median(rates), min(rates), max(rates)
        row = ranks, *spread, ideal, median(rates) / ideal, *energies
        rows.append(dict(zip(_ROW, row, strict=True)))
    return rows


def draw(rows: Sequence[dict[str, Any]]) -> bytes:
    """Draw throughput, with its range, and ideal against the ranks, as an SVG."""
    ranks, rates, least, largest, ideal, *_ = zip(*(row.values() for row in rows), strict=True)
    target, colour = io.BytesIO(), canvas.LIGHT.sizes[0]
    with canvas.drawing():
        figure = canvas.blank(230)
        panel = canvas.add_panel(figure, canvas.LIGHT, (60, 30, 600, 156))
        canvas.set_title(panel, "samples a second (dashed: ideal)", canvas.LIGHT)
        canvas.set_label(panel, "ranks", canvas.LIGHT)
        panel.plot(ranks, rates, "o-", color=colour)
        panel.vlines(ranks, least, largest, color=colour)
        panel.plot(ranks, ideal, **canvas.dashes(canvas.LIGHT))
        panel.set(xlim=(0, ranks[-1] * 1.05), ylim=(0, None), xticks=ranks)
        figure.savefig(target, format="svg")
    return target.getvalue()
