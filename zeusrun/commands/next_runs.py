"""The verbs about the next runs of a job: ``explain`` and ``simulate``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Option

from zeusrun.bandit.auto.drift import describe_edited
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.eras import compare_training, describe_eras
from zeusrun.bandit.power import best_limits
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.choice.attempts import why_not_continued
from zeusrun.choice.problem import build_problem, find_speed_variant, next_recurrence
from zeusrun.commands.compose import compose
from zeusrun.commands.options import AsJson, Overrides, answer, console, find_settings
from zeusrun.errors import UsageError
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.maintenance.recover import presume_ended
from zeusrun.simulate.own_job import learn
from zeusrun.simulate.replay import forecast
from zeusrun.target import describe_target
from zeusrun.view.belief import believe
from zeusrun.view.explain import explain_table
from zeusrun.view.export import print_json
from zeusrun.view.simulate import forecast_json, forecast_sheet, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission

_REPLAYED = frozenset({"objective", "batch_size", "policy", "early_stop", "attempts"})


def simulate(
    job: Annotated[
        str,
        Argument(metavar="JOB", help="Replay this job's own history: a job file, or its name."),
    ],
    *,
    overrides: Overrides = None,
    recurrences: Annotated[int, Option(metavar="N", min=1, help="Runs of the job.")] = 50,
    seeds: Annotated[int, Option(metavar="N", min=1, help="Number of repetitions.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Replay a job with other settings.

    The job's history predicts the time, energy and cost of the next runs, with today's settings
    and with those of --set. All costs count: first runs, failures, retries, speed checks, and
    probes of power limits.
    """
    path, settings = find_settings(job)
    submission = compose(load_spec(path))
    trials = submission.history.trials(submission.spec.name, NEWEST)
    specs, machine = [submission.spec], submission.measure()
    submission.close()
    if overrides:
        specs.append(_changed(submission, load_spec(path, overrides), overrides))
    found, done = [], itertools.count(1)
    with progress(console(stderr=True)) as on_progress:
        for spec in specs:
            problem = build_problem(spec, machine, trials, next_recurrence(trials))
            model = learn(spec.name, problem, trials)
            result = forecast(
                model,
                create_policy(spec.policy.name),
                recurrences=recurrences,
                seeds=range(seeds),
                attempts=spec.attempts,
                on_seed=lambda: on_progress(next(done) / len(specs) / seeds),
            )
            found.append((spec.policy.name, model, result))
    variant, kept = find_speed_variant(submission.spec), ""
    if any(each.speed_variant != variant for each in trials):
        kept = "Left out: the speed of runs with another setting of loader workers"
    elif variant is not None:
        kept = "Loader workers are not simulated: each batch size keeps those of its runs"
    if kept:
        settings = kept if settings is None else f"{settings.rstrip('.')}. {kept}"
    given = found, overrides or [], recurrences, seeds
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
    changed.check_world_size(submission.world_size)
    return changed


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
    trials = presume_ended(submission.history, submission.home, trials)
    policy, machine = submission.policy, submission.measure()
    moment = submission.read_moment(trials)
    submission.close()
    number = next_recurrence(trials, moment.unrecorded)
    problem = build_problem(spec, machine, trials, number, moment.fingerprint)
    changes = describe_eras(compare_training(moment.fingerprint, trials), moment.script)
    here = [each for each in trials if each.host == machine.host]
    told = (part.explain(here, machine.hardware) for part in spec.parts.values())
    remarks = [*describe_kept(problem, trials), *changes, *filter(None, told)]
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
        shown = console()
        belief = replace(belief, sentences=first)
        table = explain_table(title, belief, remarks, limits, width=shown.width)
        shown.print(table)
        if settings:
            shown.print(Text(f"  {settings}", style="dim"))
