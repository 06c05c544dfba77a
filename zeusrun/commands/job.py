"""The verbs about a job file: ``validate``, ``schema`` and ``explain``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from zeusrun.clock import read_clock
from zeusrun.commands.options import AsJson, JobFile, Overrides, console, job_file
from zeusrun.commands.submit import compose
from zeusrun.errors import JobFileError, UsageError
from zeusrun.history.base import NEWEST
from zeusrun.plain_text import plain_text
from zeusrun.view.export import print_json


def validate(job: JobFile, *, overrides: Overrides = None) -> None:
    """Check a job file."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415
    from zeusrun.launcher.unused_choices import find_unused_choices  # noqa: PLC0415
    from zeusrun.schedule.build import build_schedule  # noqa: PLC0415

    spec = load_spec(job, overrides or [])
    if spec.schedule is not None:
        try:
            build_schedule(spec, {}, os.environ, names=(), known=None, now=read_clock())
        except UsageError as error:
            raise JobFileError(f"{job}: in 'schedule': {error}") from None
    arms = ", ".join(map(str, spec.batch_size.candidates))
    typer.echo(f"{job}: job '{spec.name}' is well-formed; batch sizes {arms}")
    for text in find_unused_choices(spec):
        typer.echo(plain_text(f"zeusrun: warning: {job}: {text}"), err=True)


def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    from zeusrun.jobfile.spec import spec_json_schema  # noqa: PLC0415

    print_json(spec_json_schema())


def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job file, or a job's name.")],
    *,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show what the policy believes, and what it would choose next."""
    import numpy as np  # noqa: PLC0415

    from zeusrun.bandit.auto.evidence import tell_window  # noqa: PLC0415
    from zeusrun.bandit.power import best_limits  # noqa: PLC0415
    from zeusrun.bandit.reinterpret import read_history  # noqa: PLC0415
    from zeusrun.bandit.set_aside import kept  # noqa: PLC0415
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415
    from zeusrun.launcher.choose import build_problem  # noqa: PLC0415
    from zeusrun.view.tables import explain_table  # noqa: PLC0415

    submission = compose(load_spec(job_file(job), overrides or []), None)
    trials = submission.history.trials(submission.spec.name, NEWEST)
    problem = build_problem(submission, trials)
    told = kept(problem, trials)
    problem, runs = read_history(problem, trials)
    window = tell_window(problem, runs)
    told += [] if window is None else [window]
    rng = np.random.default_rng(submission.spec.policy.seed)
    beliefs = submission.policy.explain(problem, runs, rng)
    if as_json:
        print_json([vars(belief) for belief in beliefs])
    else:
        spec, objective = submission.spec, submission.spec.objective
        goal = f"{objective.metric} {objective.target:g}, eta_knob {objective.eta_knob:g}"
        title = f"{spec.name}: what {submission.policy.name} believes of {goal}"
        limits = best_limits(problem, runs)
        console().print(explain_table(title, beliefs, told, limits))
