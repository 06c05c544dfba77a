"""What a report says of gradient noise scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units
from zeusrun.view.gradients import noise_text
from zeusrun.view.report.markup import Html, details, figure, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.view.report.facts import JobFacts

_CAPTION = (
    "In samples, of the newest run of each batch size, with its range of 90 %. Dotted: a lower "
    "bound, where the gradient cannot be told from its noise. The noise scale is no batch size to "
    "choose."
)


def noise_section(
    facts: JobFacts, picture: Callable[[str, str], Html | None], link: Callable[[str], str]
) -> Html:
    """Return how the noise scale went; nothing if no run has measured it.

    ``picture`` and ``link``: see ``Frame``.
    """
    if not facts.noise:
        return Html()
    rows = [
        {
            "run": link(each.trial),
            "batch size": each.size,
            facts.unit: units.count(round(each.at[-1], 1)),
            "last noise scale": noise_text(each.points[-1]),
        }
        for each in facts.noise
    ]
    label = f"Gradient noise scale of {units.plural(len(rows), 'run')}, against {facts.unit}."
    listed = details("Table of the noise scales", table("Runs whose noise scale is drawn", rows))
    return figure(picture("noise", label), _CAPTION, listed)
