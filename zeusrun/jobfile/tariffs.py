"""What a kilowatt-hour costs a job: by its own file, else by the file of the home for all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from zeusrun.jobfile.messages import collect_problems, describe_errors
from zeusrun.jobfile.sections import Section, list_keys
from zeusrun.jobfile.tariff_section import Carbon, Price  # noqa: TC001 - pydantic needs them
from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.tariff import Tariffs

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec

TARIFF_FILE = "tariff.yaml"
"""The file of the home, with the keys ``price``, ``carbon`` and ``pue`` of a job file."""


class HomeTariff(Section):
    """What a kilowatt-hour costs all jobs whose own file does not say it."""

    price: Price | None = Field(None, description="What a kilowatt-hour costs.")
    carbon: Carbon | None = Field(None, description="How much CO2 a kilowatt-hour causes.")
    pue: float | None = Field(None, ge=1, description="Power usage effectiveness of the site.")


def load_tariffs(spec: JobSpec, home: Path) -> Tariffs:
    """Return what zeusrun knows of the energy that a job takes.

    Raises:
        JobFileError: If the file of the home, or a table that is named, is wrong.
    """
    path = home / TARIFF_FILE
    general = _load_home(path) if path.exists() else HomeTariff()
    price, price_file = (spec.price, spec.source) if spec.price else (general.price, path)
    carbon, carbon_file = (spec.carbon, spec.source) if spec.carbon else (general.carbon, path)
    return Tariffs(
        price=None if price is None else price.build(price_file.parent),
        currency=None if price is None else price.currency,
        carbon=None if carbon is None else carbon.build(carbon_file.parent),
        pue=spec.pue or general.pue or 1.0,
    )


def _load_home(path: Path) -> HomeTariff:
    document = read_job_file(path, ())
    problems = [*document.problems]
    try:
        found = HomeTariff.model_validate(document.data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems += describe_errors(errors, list_keys(HomeTariff), document)
    if problems:
        raise collect_problems(document, problems)
    return found
