"""``simulate JOB``: what a job will take from now on, as it is and with changed settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.registry import create_policy
from zeusrun.commands.compose import compose
from zeusrun.commands.options import console, job_file
from zeusrun.errors import UsageError
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.choose import build_problem
from zeusrun.simulate.own_job import learn
from zeusrun.simulate.what_if import forecast
from zeusrun.view.export import print_json
from zeusrun.view.simulation import progress
from zeusrun.view.what_if import forecast_json, forecast_sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission

_REPLAYED = frozenset({"objective", "batch_size", "policy", "early_stop", "attempts"})


def simulate_own(
    job: str, overrides: Sequence[str], recurrences: int, seeds: Sequence[int], *, as_json: bool
) -> None:
    """Forecast a job from its own history, as it is and with changed settings."""
    path = job_file(job)
    submission = compose(load_spec(path))
    trials = submission.history.trials(submission.spec.name, NEWEST)
    specs = [submission.spec]
    if overrides:
        specs.append(_changed(submission, load_spec(path, list(overrides)), overrides))
    found = []
    with progress(console(stderr=True)) as on_progress:
        for number, spec in enumerate(specs):

            def on_share(share: float, done: int = number) -> None:
                on_progress((done + share) / len(specs))

            policy = create_policy(spec.policy.name)
            problem = build_problem(replace(submission, spec=spec), trials)
            model = learn(spec.name, problem, trials)
            result = forecast(
                model,
                policy,
                recurrences=recurrences,
                seeds=seeds,
                attempts=spec.attempts,
                on_progress=on_share,
            )
            found.append((spec.policy.name, model, result))
    if as_json:
        print_json(forecast_json(found, overrides, recurrences, len(seeds)))
    else:
        console().print(forecast_sheet(found, overrides, recurrences, len(seeds)))


def _changed(submission: Submission, changed: JobSpec, overrides: Sequence[str]) -> JobSpec:
    """Return a changed job; raises ``UsageError`` if a simulation cannot show the change."""
    spec = submission.spec
    for name in type(spec).model_fields:
        if name not in _REPLAYED and getattr(spec, name) != getattr(changed, name):
            known = ", ".join(sorted(_REPLAYED))
            raise UsageError(
                f"--set {' --set '.join(overrides)}: past runs do not show what another {name} "
                f"would do; simulate takes changes of {known}"
            )
    changed.check_world_size(submission.world_size)
    return changed
