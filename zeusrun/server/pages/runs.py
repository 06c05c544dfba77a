"""Runs on the pages: a card for each that runs now, and rows of a table for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.curves import amount_in, curve_in, curve_unit
from zeusrun.history.base import HEARTBEAT_S, LEASE_S
from zeusrun.launcher.rundir.record import Live
from zeusrun.maintenance.running import state_of
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.columns import CARBON, COST, ENERGY, PRICE, TIME, WHEN, Column
from zeusrun.view.report.headline import goal
from zeusrun.view.report.markup import Html, join, pairs, table, tag
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.history.sql.survey import RunningTrial
    from zeusrun.server.pages.document import Links
    from zeusrun.trial import Trial

_LATE_S = LEASE_S - 2.25 * HEARTBEAT_S  # that are left of a lease if two heartbeats are missing
_MOODS = {
    TrialStatus.REACHED: "good",
    TrialStatus.OOM: "bad",
    TrialStatus.FAILED: "bad",
    TrialStatus.LOST: "bad",
}
_LONGEST = 160  # characters of a reason
HOST = Column("host", lambda each: each.host or UNKNOWN, left=True)


def read_live(running: RunningTrial) -> Live:
    """Return a running trial with what its launcher sent; not alive if a heartbeat is missing."""
    live = state_of(running.trial, Live.from_json(running.live))
    return replace(live, alive=running.lease_left_s >= _LATE_S)


def cards(runs: Sequence[Live], count: int, links: Links) -> Html:
    """Return the cards of some of ``count`` running trials."""
    if not runs:
        return tag("p", "Nothing runs now.")
    items = [_card(run, links) for run in runs]
    more = ""
    if len(runs) < count:
        more = tag("p", f"{count - len(runs)} more run now; they stand on the pages of their jobs.")
    return join((tag("ul", *items, class_="cards"), more))


def _card(run: Live, links: Links) -> Html:
    trial = run.trial
    where = f" on {run.host}" if run.host else ""
    name = tag("h3", links.link_run(trial.trial))
    size = tag("p", f"batch size {size_label(trial)}{where}", class_="what")
    values = [
        (units.shortened(trial.metric, 40), units.number(run.last_metric, ".4g")),
        ("target", goal(trial)),
        ("power", units.power(run.power_w)),
        *((each.name, str(each.value(trial))) for each in (TIME, ENERGY, COST)),
    ]
    return tag(
        "li",
        *(name, size, _progress(trial), _sparkline(trial), pairs(values), _last_heartbeat(run)),
        class_="card",
        data_key=trial.trial,
    )


def _progress(trial: Trial) -> Html:
    done = trial.epochs or 0
    if trial.time_s is None:
        text = f"started {units.moment(trial.started_at, '%H:%M')}, training has not begun"
    else:
        text = f"{plural(done, 'epoch')} of at most {trial.max_epochs}"
    if trial.by_samples:  # nothing says how many it will be
        return tag("div", tag("span", f"{units.count(trial.samples)} samples"), class_="epochs")
    bar = tag(
        "progress",
        max=max(trial.max_epochs, done, 1),
        value=done,
        aria_label=f"Epochs of {trial.trial}",
    )
    return tag("div", bar, tag("span", text), class_="epochs")


def _sparkline(trial: Trial) -> Html:
    """Return the learning curve so far; the numbers stand below it."""
    values = [point.value for point in curve_in(trial, curve_unit([trial]))]
    return tag("p", units.sparkline(values), class_="curve", aria_hidden="true")


def _last_heartbeat(run: Live) -> Html:
    """Return when the launcher was last heard of."""
    if not run.alive:
        since = "" if run.updated_at is None else f" since {units.moment(run.updated_at, '%H:%M')}"
        return tag("p", f"no heartbeat{since}", class_="note bad")
    if run.updated_at is None:
        return tag("p", f"began {units.moment(run.trial.started_at)}", class_="note")
    return tag("p", f"as of {units.moment(run.updated_at, '%H:%M:%S')}", class_="note")


def status_text(trial: Trial) -> Html:
    """Return the status of a run, as ``zeusrun history`` calls it."""
    if not trial.status.finished:
        return tag("span", "runs now", class_="status now")
    text = "forgotten" if trial.forgotten else trial.status.value
    mood = None if trial.forgotten else _MOODS.get(trial.status)
    return tag("span", text, class_=f"status {mood}" if mood else "status")


def page_links(label: str, parts: Sequence[str]) -> Html:
    """Return the links to other pages of a list; nothing without any."""
    spaced = [each for part in parts for each in (part, " ")]
    return tag("nav", tag("p", *spaced), aria_label=label, class_="pages") if parts else Html()


def runs_table(
    trials: Sequence[Trial], caption: str, links: Links, unit: CurveUnit = "epochs"
) -> Html:
    """Return a row for each run, in the order given."""
    columns = [
        Column("run", lambda trial: links.link_run(trial.trial)),
        WHEN,
        Column("status", status_text, left=True),
        Column("batch size", size_label),
        HOST,
        Column(unit, lambda trial: units.count(amount_in(trial, unit))),
        *(TIME, ENERGY, COST, PRICE, CARBON),
        Column("why", _why, left=True),
    ]
    return table(caption, columns, trials, lambda trial: trial.trial)


def _why(trial: Trial) -> str:
    """Return why a run ended, unless it reached its target."""
    if trial.status is TrialStatus.REACHED or not trial.reason:
        return UNKNOWN
    return units.shortened(trial.reason, _LONGEST)
