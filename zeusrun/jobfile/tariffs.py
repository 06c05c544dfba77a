"""What a kilowatt-hour costs a job: by its own file, else by the file of the home for all jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import Field

from zeusrun.clock import read_clock
from zeusrun.errors import JobFileError
from zeusrun.jobfile.section import Section, validate
from zeusrun.jobfile.tariff_section import Carbon, Price  # noqa: TC001 - pydantic needs them
from zeusrun.jobfile.values import Pue  # noqa: TC001 - as above
from zeusrun.jobfile.yaml_reader import read_document
from zeusrun.tariff import TARIFF_FILE, Tariffs

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.tariff import Tariff


class HomeTariff(Section):
    """What a kilowatt-hour costs all jobs whose own file does not say it."""

    price: Price | None = Field(None, description="What a kilowatt-hour costs.")
    carbon: Carbon | None = Field(None, description="How much CO2 a kilowatt-hour causes.")
    pue: Pue | None = Field(None, description="Power usage effectiveness of the site.")


def load_tariffs(spec: JobSpec, home: Path | None) -> Tariffs:
    """Return what zeusrun knows of the energy that a job takes; ``None`` for no home.

    Raises:
        JobFileError: If the file of the home, or a CSV file that is named, is wrong.
    """
    general = None if home is None else load_home_tariffs(home)
    own = _build(spec, spec.source)
    if general is None:
        return own
    return Tariffs(
        price=own.price or general.price,
        currency=own.currency or general.currency,
        carbon=own.carbon or general.carbon,
        pue=general.pue if spec.pue is None else own.pue,
    )


def find_expired(spec: JobSpec, tariffs: Tariffs) -> list[str]:
    """Return a sentence for each CSV file of ``load_tariffs`` whose last rate has passed."""
    ends = []
    sections = (("price", spec.price, tariffs.price), ("carbon", spec.carbon, tariffs.carbon))
    for name, section, tariff in sections:
        if tariff is not None and (end := tariff.describe_end(read_clock())):
            file = section.csv if section else f"the file of '{name}.csv' in {TARIFF_FILE}"
            ends.append(f"{file} {end}, so the {name} of the next run is unknown")
    return ends


def load_home_tariffs(home: Path) -> Tariffs | None:
    """Return what the file of the home says; ``None`` if there is no such file.

    Raises:
        JobFileError: If it, or a CSV file that it names, is wrong.
    """
    path = home / TARIFF_FILE
    if not os.path.lexists(path):
        return None
    if path.is_dir():
        raise JobFileError(f"{path} is a directory; it must be a file, or be absent")
    return _build(validate(HomeTariff, read_document(path)), path)


def _build(keys: HomeTariff | JobSpec, source: Path) -> Tariffs:
    def build(name: str, section: Price | Carbon | None) -> Tariff | None:
        try:
            return None if section is None else section.build(source.parent)
        except JobFileError as error:
            raise JobFileError(f"{source}: '{name}.csv': {error}") from error

    return Tariffs(
        price=build("price", keys.price),
        currency=None if keys.price is None else keys.price.currency,
        carbon=build("carbon", keys.carbon),
        pue=1.0 if keys.pue is None else keys.pue,
    )
