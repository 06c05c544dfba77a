"""The parts that several pages have in common: the status of a run, sums, a list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.curves import amount_in
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.report.markup import Html, table, tag
from zeusrun.view.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.server.pages.document import Links
    from zeusrun.trial import Trial

_MOODS = {
    TrialStatus.REACHED: "good",
    TrialStatus.OOM: "bad",
    TrialStatus.FAILED: "bad",
    TrialStatus.LOST: "bad",
}
_LONGEST = 160  # characters of a reason


def status_text(trial: Trial) -> Html:
    """Return the status of a run, as ``zeusrun history`` calls it."""
    if not trial.status.finished:
        return tag("span", "runs now", class_="status now")
    text = "forgotten" if trial.forgotten else trial.status.value
    mood = None if trial.forgotten else _MOODS.get(trial.status)
    return tag("span", text, class_=f"status {mood}" if mood else "status")


def turning(label: str, parts: Sequence[str]) -> Html:
    """Return the links to other pages of a list; nothing without any."""
    spaced = [each for part in parts for each in (part, " ")]
    return tag("nav", tag("p", *spaced), aria_label=label, class_="pages") if parts else Html()


def runs_table(
    trials: Sequence[Trial], caption: str, links: Links, unit: CurveUnit = "epochs"
) -> Html:
    """Return a row for each run, in the order given."""
    rows = [
        {
            "run": links.link_run(trial.trial),
            "when": units.minute(trial.started_at),
            "status": status_text(trial),
            "batch size": size_label(trial),
            "host": trial.host or UNKNOWN,
            unit: units.count(amount_in(trial, unit)),
            "time": units.duration(trial.time_s),
            "energy": units.energy(trial.energy_j, trial.energy_source),
            "cost": units.energy(trial.cost_j),
            "price": units.money(trial.price, trial.currency),
            "carbon": units.carbon(trial.carbon_g),
            "why": _why(trial),
        }
        for trial in trials
    ]
    return table(caption, rows, [trial.trial for trial in trials])


def _why(trial: Trial) -> str:
    """Return why a run ended, unless it reached its target."""
    if trial.status is TrialStatus.REACHED or not trial.reason:
        return UNKNOWN
    return units.shortened(trial.reason, _LONGEST)
