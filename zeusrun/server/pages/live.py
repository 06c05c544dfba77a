"""What runs now: each run as a card, with the numbers of its last heartbeat."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.curves import curve_in, curve_unit
from zeusrun.launcher.rundir.record import Live
from zeusrun.maintenance.running import state_of
from zeusrun.view import units
from zeusrun.view.report.headline import goal
from zeusrun.view.report.markup import Html, join, pairs, tag
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.sql.survey import Running
    from zeusrun.server.pages.document import Links
    from zeusrun.trial import Trial

_LATE_S = 75.0  # of the lease; a heartbeat is due every 20 s, and leaves 120 s
_WIDTH, _HEIGHT = 240, 44
_POINTS = 60


def read_live(running: Running) -> Live:
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
        ("time", units.duration(trial.time_s)),
        ("energy", units.energy(trial.energy_j, trial.energy_source)),
        ("cost", units.energy(trial.cost_j)),
    ]
    return tag(
        "li",
        *(name, size, _progress(trial), _sparkline(trial), pairs(values), _heard(run)),
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
    """Return the learning curve so far, with the target; the numbers stand below it."""
    curve = curve_in(trial, curve_unit([trial]))
    step = max(1, len(curve) // _POINTS)
    shown = (*curve[:-1:step], *curve[-1:])
    points = [(point.time_s, point.value) for point in shown if point.value is not None]
    if len(points) < 2:
        return Html('<svg class="curve" viewBox="0 0 240 44" aria-hidden="true"></svg>')
    values = [value for _, value in points]
    low, high = min(*values, trial.target), max(*values, trial.target)
    begin, end = points[0][0], points[-1][0]

    def place(value: float) -> float:
        # Halved, because the difference of two huge values could overflow.
        return _HEIGHT - 3 - (_HEIGHT - 6) * ((value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0))

    width = (end - begin) or 1.0
    line = "L".join(f"{_WIDTH * (at - begin) / width:.0f} {place(y):.1f}" for at, y in points)
    level = f"{place(trial.target):.1f}"
    return Html(
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="goal" d="M0 {level}H{_WIDTH}"/>'
        f'<path class="line" d="M{line}"/></svg>'
    )


def _heard(run: Live) -> Html:
    """Return when the launcher was last heard of."""
    if not run.alive:
        since = "" if run.updated_at is None else f" since {units.moment(run.updated_at, '%H:%M')}"
        return tag("p", f"no heartbeat{since}", class_="note bad")
    if run.updated_at is None:
        return tag("p", f"began {units.moment(run.trial.started_at)}", class_="note")
    return tag("p", f"as of {units.moment(run.updated_at, '%H:%M:%S')}", class_="note")
