"""What a kilowatt-hour costs a job, by its sections ``price`` and ``carbon``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.tariff import Tariffs

if TYPE_CHECKING:
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.jobfile.tariff_section import Carbon, Price
    from zeusrun.tariff import Tariff


def load_tariffs(spec: JobSpec) -> Tariffs:
    """Return what zeusrun knows of the energy that a job takes.

    Raises:
        JobFileError: If a CSV file that is named is wrong.
    """

    def build(name: str, section: Price | Carbon | None) -> Tariff | None:
        try:
            return None if section is None else section.build(spec.source.parent)
        except JobFileError as error:
            raise JobFileError(f"{spec.source}: '{name}.csv': {error}") from error

    return Tariffs(
        price=build("price", spec.price),
        currency=None if spec.price is None else spec.price.currency,
        carbon=build("carbon", spec.carbon),
        pue=1.0 if spec.pue is None else spec.pue,
    )
