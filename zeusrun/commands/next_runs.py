"""The verbs about the next runs of a job: ``explain`` and ``simulate``."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Argument, Option

from zeusrun.analysis.critical import fit_critical
from zeusrun.bandit.auto.drift import describe_edited
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.eras import compare_training, describe_eras
from zeusrun.bandit.power import best_limits
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.choice.attempts import why_not_continued
from zeusrun.choice.problem import build_problem, next_recurrence
from zeusrun.commands.compose import compose
from zeusrun.commands.options import AsJson, Overrides, answer, console, find_settings
from zeusrun.errors import JobFileError, UsageError
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.simulate.own_job import learn
from zeusrun.simulate.replay import forecast
from zeusrun.simulate.study import BASELINE, StudySettings, build_scenarios, run_study, summarise
from zeusrun.target import describe_target
from zeusrun.view.belief import believe
from zeusrun.view.explain import explain_table
from zeusrun.view.export import print_json
from zeusrun.view.simulate import forecast_json, forecast_sheet, progress, simulation_sheet
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission

_PATH = Path | None
_REPLAYED = frozenset({"objective", "batch_size", "policy", "early_stop", "attempts"})


def simulate(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        Argument(metavar="JOB", help="Replay this job's own history: a job file, or its name."),
    ] = None,
    *,
    overrides: Overrides = None,
    trace_dir: Annotated[
        _PATH, Option(metavar="DIR", help="Replay the training and power traces of this directory.")
    ] = None,
    gpu: Annotated[
        str | None, Option(metavar="GPU", help="The GPU of the power trace, such as v100.")
    ] = None,
    workload: Annotated[
        list[str] | None,
        Option(
            metavar="W",
            help="By default all; or describe one: name:default:target:max_epochs[:min].",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        Option(metavar="P", help="auto, zeus, fixed or grid; by default auto and zeus."),
    ] = None,
    recurrences: Annotated[int, Option(metavar="N", min=1, help="Runs of each job.")] = 50,
    seeds: Annotated[int, Option(metavar="N", min=1, help="Number of repetitions.")] = 20,
    first_seed: Annotated[
        int, Option(metavar="N", min=0, help="The seed of the first repetition.")
    ] = 0,
    eta_knob: Annotated[float, Option(metavar="X", min=0, max=1, help="1: energy, 0: time.")] = 0.5,
    cost_factor: Annotated[
        float, Option(metavar="X", help="Stop at this multiple of the cheapest run; inf: never.")
    ] = 2.0,
    attempts: Annotated[
        int,
        Option(metavar="N", min=1, help="Attempts per recurrence, as `attempts` in a job file."),
    ] = 5,
    in_flight: Annotated[
        int, Option(metavar="N", min=1, help="Number of runs at the same time.")
    ] = 1,
    cluster: Annotated[
        _PATH, Option(metavar="FILE", help="Submit when a cluster did: .csv or .csv.xz.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a job with other settings, or recorded traces.

    With JOB and --set, the job's own history says what the changed job would take. With
    --trace-dir, recorded jobs are replayed through the policies. Everything is charged: first runs,
    failures, retries, speed checks, probes of power limits.
    """
    if job is not None:
        _check_own(ctx)
        _simulate_own(
            job,
            overrides or [],
            recurrences,
            range(first_seed, first_seed + seeds),
            as_json=as_json,
        )
        return
    if overrides:
        raise UsageError("--set needs JOB: zeusrun simulate JOB --set objective.eta_knob=1")
    if trace_dir is None:
        raise UsageError("name a job: zeusrun simulate JOB; or traces: --trace-dir DIR --gpu GPU")
    if not cost_factor > 0:
        raise UsageError(f"--cost-factor {cost_factor:g}: must be above 0")
    if in_flight > 1 and cluster is not None:
        raise UsageError("--in-flight and --cluster exclude each other; choose one")
    settings = StudySettings(
        recurrences=recurrences,
        eta_knob=eta_knob,
        cost_factor=None if cost_factor == math.inf else cost_factor,
        attempts=attempts,
        in_flight=in_flight,
    )
    policies = list(dict.fromkeys(policy or ["auto", BASELINE]))
    scenarios = build_scenarios(workload or [], trace_dir, gpu, cluster)
    with progress(console(stderr=True)) as on_progress:
        episodes = run_study(
            scenarios,
            list(dict.fromkeys([*policies, BASELINE])),
            range(first_seed, first_seed + seeds),
            settings,
            processes=len(os.sched_getaffinity(0)),
            on_progress=on_progress,
        )
    summaries = summarise(episodes, policies)
    title = f"{gpu} traces, {_described(settings, cluster)}, {plural(seeds, 'seed')}"
    given: dict[str, object] = {"trace_dir": str(trace_dir), "gpu": gpu}
    given |= {"first_seed": first_seed, "cluster": cluster and str(cluster)}
    given |= {"seeds": seeds, "policies": policies, **asdict(settings)}
    answer(
        {"settings": given, "results": [asdict(each) for each in summaries]},
        lambda width: simulation_sheet(title, summaries, width),
        as_json=as_json,
    )


def _simulate_own(
    job: str, overrides: Sequence[str], recurrences: int, seeds: Sequence[int], *, as_json: bool
) -> None:
    """Forecast a job from its own history, as it is and with changed settings."""
    path, settings = find_settings(job)
    submission = compose(load_spec(path))
    trials = submission.history.trials(submission.spec.name, NEWEST)
    specs, machine = [submission.spec], submission.measure()
    submission.close()
    if overrides:
        specs.append(_changed(submission, load_spec(path, list(overrides)), overrides))
    found, done = [], itertools.count(1)
    with progress(console(stderr=True)) as on_progress:
        for spec in specs:
            problem = build_problem(spec, machine, trials, next_recurrence(trials))
            model = learn(spec.name, problem, trials)
            result = forecast(
                model,
                create_policy(spec.policy.name),
                recurrences=recurrences,
                seeds=seeds,
                attempts=spec.attempts,
                on_seed=lambda: on_progress(next(done) / len(specs) / len(seeds)),
            )
            found.append((spec.policy.name, model, result))
    given = found, overrides, recurrences, len(seeds)
    answer(
        forecast_json(*given),
        lambda width: forecast_sheet(*given, width=width, settings=settings),
        as_json=as_json,
    )


def _changed(submission: Submission, changed: JobSpec, overrides: Sequence[str]) -> JobSpec:
    """Return a changed job; raises ``UsageError`` if a simulation cannot show the change."""
    spec, given = submission.spec, f"--set {' --set '.join(overrides)}"
    for name in type(spec).model_fields:
        if name not in _REPLAYED and getattr(spec, name) != getattr(changed, name):
            known = ", ".join(sorted(_REPLAYED))
            raise UsageError(
                f"{given}: past runs do not show what another {name} "
                f"would do; simulate takes changes of {known}"
            )
    try:
        changed.check_world_size(submission.world_size)
    except JobFileError as error:
        problem = str(error).removeprefix(f"{changed.source}: ")
        raise UsageError(f"{given}: {problem}") from None
    return changed


_OWN = {"job", "overrides", "recurrences", "seeds", "first_seed", "as_json"}


def _check_own(ctx: typer.Context) -> None:
    """Raise ``UsageError`` for an option that does not go with JOB."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name not in _OWN and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise UsageError(f"{option} does not go with JOB; its settings change with --set")


def _described(settings: StudySettings, cluster: Path | None) -> str:
    runs = plural(settings.recurrences, "recurrence")
    if cluster:
        runs = f"{cluster.name}, at most {runs} a group"
    elif settings.in_flight > 1:
        runs += f", {settings.in_flight} in flight"
    factor = f", cost factor {settings.cost_factor:g}" if settings.cost_factor else ""
    return f"{runs}, eta_knob {settings.eta_knob:g}{factor}"


def explain(
    job: Annotated[str, Argument(metavar="JOB", help="A job file, or a job's name.")],
    *,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show what the next run would use, and why."""
    path, settings = find_settings(job)
    spec = load_spec(path, overrides or [])
    submission = compose(spec)
    trials = submission.history.trials(spec.name, NEWEST)
    policy, machine = submission.policy, submission.measure()
    moment = submission.read_moment(trials)
    submission.close()
    number = next_recurrence(trials, moment.unrecorded)
    problem = build_problem(spec, machine, trials, number, moment.fingerprint)
    changes = describe_eras(compare_training(moment.fingerprint, trials), moment.script)
    remarks = [*describe_kept(problem, trials), *changes]
    problem, runs = read_history(problem, trials)
    if isinstance(policy, Auto):
        remarks += describe_edited(runs)
    continued, has_files = moment.preempted, moment.has_files
    chooser = submission.chooser
    if continued and why_not_continued(chooser, machine, continued, has_files=has_files):
        continued = None
    belief = believe(chooser, problem, runs, continued)
    if as_json:
        print_json([{**vars(each), "unit": belief.unit} for each in belief.arms])
    else:
        objective = spec.objective
        goal = f"{objective.metric} {describe_target(objective.target, objective.mode)}"
        title = f"what policy {policy.name} expects, {goal}, eta_knob {objective.eta_knob:g}"
        headline, *texts = belief.sentences
        first = (f"{spec.name}: {headline}", *texts)
        limits = best_limits(problem, runs)
        # A batch size that adapts is none of the law.
        critical = None if spec.adapts else fit_critical(gather(problem, runs))
        shown = console()
        belief = replace(belief, sentences=first)
        table = explain_table(title, belief, remarks, limits, critical, width=shown.width)
        shown.print(table)
        if settings:
            shown.print(Text(f"  {settings}", style="dim"))
