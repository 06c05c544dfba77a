"""The verbs about a job file: ``validate`` and ``schema``."""

from __future__ import annotations

import os

import typer

from zeusrun.clock import read_clock
from zeusrun.commands.options import JobFile, Overrides  # noqa: TC001 - typer reads the annotations
from zeusrun.errors import JobFileError, UsageError
from zeusrun.files.home import trusted_home
from zeusrun.jobfile.secrets import find_exposed
from zeusrun.jobfile.spec import load_spec, spec_json_schema
from zeusrun.jobfile.tariffs import find_expired, load_tariffs
from zeusrun.jobfile.values import POLICY_NAMES
from zeusrun.launcher.script_warnings import find_script_warnings
from zeusrun.plain_text import plain_text
from zeusrun.schedule.build import build_schedule
from zeusrun.view.export import print_json


def validate(job: JobFile, *, overrides: Overrides = None) -> None:
    """Check a job file."""
    spec = load_spec(job, overrides or [])
    home = trusted_home(os.environ)
    warnings = find_expired(spec, load_tariffs(spec, home))
    if spec.schedule is not None:
        when = spec.schedule.cron or "@yearly"  # else `schedule add` is given one
        try:
            schedule = build_schedule(spec, when, {}, names=(), known=None, now=read_clock())
        except UsageError as error:
            raise JobFileError(f"{job}: in 'schedule': {error}") from None
        if schedule.rules.may_defer:
            from zeusrun.schedule.deferral import check_outlook  # noqa: PLC0415 - imports numpy

            warnings += check_outlook(spec, schedule.rules, home)
    if spec.policy.name not in POLICY_NAMES:
        from zeusrun.bandit.registry import create_policy  # noqa: PLC0415 - imports numpy

        create_policy(spec.policy.name)
    arms = ", ".join(map(str, spec.batch_size.candidates))
    typer.echo(f"{job}: job '{spec.name}' is well-formed; batch sizes {arms}")
    warnings += find_exposed(spec.secrets, spec.source)
    for text in [*warnings, *find_script_warnings(spec)]:
        typer.echo(plain_text(f"zeusrun: warning: {job}: {text}"), err=True)


def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    print_json(spec_json_schema())
