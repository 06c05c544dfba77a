"""The verb ``explain``."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from rich.text import Text
from typer import Argument

from zeusrun.analysis.critical import fit_critical
from zeusrun.bandit.auto.drift import describe_edited
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.eras import compare_training, describe_eras
from zeusrun.bandit.power import best_limits
from zeusrun.bandit.registry import explain_next
from zeusrun.bandit.reinterpret import read_history
from zeusrun.choice.attempts import why_not_continued
from zeusrun.choice.problem import build_problem, next_recurrence
from zeusrun.commands.compose import compose
from zeusrun.commands.options import AsJson, Overrides, console, find_settings
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.target import describe_target
from zeusrun.view.explain import describe_choice, explain_table, in_samples
from zeusrun.view.export import print_json


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
    number = next_recurrence(trials, moment.unrecorded)
    problem = build_problem(spec, machine, trials, number, moment.fingerprint)
    changes = describe_eras(compare_training(moment.fingerprint, trials), moment.script)
    remarks = [*describe_kept(problem, trials), *changes]
    problem, runs = read_history(problem, trials)
    if isinstance(policy, Auto):
        remarks += describe_edited(runs)
    rng = np.random.default_rng(spec.policy.seed)
    beliefs = explain_next(policy, problem, runs, rng)
    unit = problem.unit
    rows = in_samples(beliefs, unit)
    if as_json:
        print_json([{**vars(each), "unit": "samples" if unit else "epochs"} for each in rows])
    else:
        objective = spec.objective
        continued = moment.preempted
        chooser, has_files = submission.chooser, moment.has_files
        if continued and why_not_continued(chooser, machine, continued, has_files=has_files):
            continued = None
        goal = f"{objective.metric} {describe_target(objective.target, objective.mode)}"
        knob = f"eta_knob {objective.eta_knob:g}"
        title = f"what policy {policy.name} expects, {goal}, {knob}"
        headline, *texts = describe_choice(submission.chooser, problem, runs, beliefs, continued)
        first = [f"{spec.name}: {headline}", *texts]
        limits = best_limits(problem, runs)
        # A batch size that adapts is none of the law.
        critical = None if spec.adapt is not None else fit_critical(gather(problem, runs))
        shown = console()
        table = explain_table(
            title,
            rows,
            remarks,
            limits,
            critical,
            lead=first,
            width=shown.width,
            by_samples=unit is not None,
        )
        shown.print(table)
        if settings:
            console().print(Text(f"  {settings}", style="dim"))
