"""Runs on the pages: the table of those that run now, a list of all, and the page of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.curves import amount_in, curve_in, curve_unit
from zeusrun.history.base import HEARTBEAT_S
from zeusrun.history.sql import survey
from zeusrun.server.pages import document
from zeusrun.server.pages.reports import read_live, read_trace
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.columns import CARBON, COST, ENERGY, HOST, PRICE, TIME, Column
from zeusrun.view.console import STATUS_STYLES
from zeusrun.view.report import markup
from zeusrun.view.report.facts import JobReport, build_facts, build_power
from zeusrun.view.report.headline import goal
from zeusrun.view.report.markup import Html, join, table, tag
from zeusrun.view.report.sections import Frame, power_traces
from zeusrun.view.sheets import trial_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.history.sql.survey import RunningTrial
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.server.pages.reports import Visit
    from zeusrun.trial import Trial

_MOODS = {"green": "good", "red": "bad"}
_LONGEST = 160  # characters of a reason


def running_table(runs: Sequence[Live], links: document.Links, count: int = 0) -> Html:
    """Return the table of some of ``count`` runs that go on, with the numbers sent last."""
    if not runs:
        return tag("p", "Nothing runs now.")
    run = Column("run", lambda run: links.link_run(run.trial.trial))
    listed = table("Runs now", [run, *_RUNNING], runs, lambda run: run.trial.trial)
    if len(runs) >= count:
        return listed
    more = f"{count - len(runs)} more run now; they are listed on the pages of their jobs."
    return join((listed, tag("p", more, class_="note")))


def _done(run: Live) -> str:
    """Return how far a run is."""
    trial = run.trial
    if trial.by_samples:  # nothing says how many it will be
        return f"{units.count(trial.whole_samples)} samples"
    if trial.time_s is None:
        return "starting"
    return f"{units.plural(trial.whole_epochs or 0, 'epoch')} of at most {trial.max_epochs}"


def _last_heartbeat(run: Live) -> str:
    """Return when the launcher was last heard of."""
    if run.alive:
        return markup.moment(run.updated_at, "%H:%M:%S")
    since = markup.moment(run.updated_at or run.trial.started_at, "%H:%M")
    return tag("span", "no heartbeat since ", since, class_="bad")


def _metric(run: Live) -> str:
    value = units.number(run.last_metric, ".4g")
    return f"{units.shortened(run.trial.metric, 40)} {value}, target {goal(run.trial)}"


_RUNNING = (
    Column("batch size", lambda run: size_label(run.trial)),
    Column("done", _done, left=True),
    Column("metric", _metric, left=True),
    Column("power", lambda run: units.power(run.power_w)),
    Column(TIME.name, lambda run: TIME.value(run.trial)),
    Column(ENERGY.name, lambda run: ENERGY.value(run.trial)),
    Column(COST.name, lambda run: COST.value(run.trial)),
    HOST,
    Column("last heartbeat", _last_heartbeat, left=True),
)


def status_text(trial: Trial) -> Html:
    """Return the status of a run, as ``zeusrun history`` calls it."""
    if not trial.status.finished:
        return tag("span", "runs now", class_="status now")
    text = "forgotten" if trial.forgotten else trial.status.value
    text += ", shared" if trial.shared else ""
    mood = None if trial.forgotten else _MOODS.get(STATUS_STYLES[trial.status])
    return tag("span", text, class_=f"status {mood}" if mood else "status")


def runs_list(
    visit: Visit,
    address: str,
    jobs: Sequence[str] | None,
    unit: CurveUnit | None = None,
    *,
    sorts: Sequence[str] = (*survey.SORTS,),
    most: int | None = None,
    choices: tuple[str, Sequence[str]] = ("", ()),
) -> tuple[Html, int]:
    """Return a list of the runs of some jobs that can be searched and sorted, and how many it has.

    Args:
        visit: The request.
        address: The address of the page, relative to itself.
        jobs: ``None`` for all.
        unit: What says how far a run went; ``None``: epochs.
        sorts: By what the list can be sorted; the first is the default.
        most: On a page of the list; ``None``: ``RUNS_SHOWN``.
        choices: Of the rest of the page; see ``document.Listing``.
    """
    listing = document.read_listing(visit.request.query_params, address, "runs", sorts, choices)
    way, most = unit or "epochs", most or RUNS_SHOWN
    trials, total = survey.list_runs(visit.engine, jobs, listing.wanted(), most)
    columns = [
        Column("run", lambda trial: visit.links.link_run(trial.trial)),
        Column("when", lambda trial: markup.moment(trial.started_at), left=True),
        Column("status", status_text, left=True),
        Column("batch size", size_label),
        Column(way, lambda trial: units.count(amount_in(trial, way))),
        *(TIME, ENERGY, COST, PRICE, CARBON, HOST),
        Column("GPU", lambda trial: units.shortened(trial.gpu_model or units.UNKNOWN), left=True),
        Column("why", _why, left=True),
    ]
    caption = f"{len(trials)} of {units.plural(total, 'run')}"
    parts = (
        listing.form("Find runs", "status, batch size, host, GPU or part of a name"),
        "" if trials else tag("p", "No run matches the search."),
        table(caption, columns, trials, lambda trial: trial.trial, heading=listing.heading),
        listing.pages("More runs", total, most),
    )
    return join(parts), total


RUNS_SHOWN = 50  # runs on a page of a list


def runs_page(visit: Visit) -> document.Page:
    """Return the page of the runs of all jobs, by default the newest first."""
    jobs = None if visit.access.jobs == "*" else [head.job for head in visit.heads()]
    sorts = ["when", *(each for each in survey.SORTS if each not in {"run", "when"})]
    listed, total = runs_list(visit, "runs", jobs, sorts=sorts)
    place = tag("section", listed, id="runs")
    content = markup.page_head("All jobs", units.plural(total, "run"), place)
    return document.Page("Runs", content, "Runs")


def _why(trial: Trial) -> str:
    """Return why a run ended, unless it reached its target."""
    if trial.status is TrialStatus.REACHED or not trial.reason:
        return units.UNKNOWN
    return units.shortened(trial.reason, _LONGEST)


_MOST_POINTS = 100  # rows of the table of the curve


def _unit_of(trial: Trial) -> CurveUnit:
    """Return the unit of the horizontal axis of the learning curve."""
    unit = curve_unit([trial])
    return unit if curve_in(trial, unit) else "epochs"


def run_page(visit: Visit, trial: str) -> document.Page:
    """Return the page of a run; of one that goes on, with the values so far."""
    found = visit.store.find(trial)
    if found is None or not visit.access.covers(found.job):
        raise document.NotFoundError("There is no such run, or you may not see it.")
    running = next(iter(survey.read_running(visit.engine, found.trial)), None)
    now = Html()
    if running is not None:
        live = read_live(running)
        found, address = live.trial, visit.links.run(live.trial.trial)
        cancel = _cancelling(running, address, may_cancel=visit.access.can_write)
        now = markup.section(
            "Runs now", running_table([live], visit.links), _log(running), cancel, id="now"
        )
    trace = read_trace(visit.store.trace(trial))
    report = _report(found, trace)
    frame = Frame(document.pictures_of(report, visit.reports.pictures_of(found, trace)))
    parts = [
        ("curve", "Learning curve", _curve(found, _unit_of(found), frame)),
        ("power", "Power", power_traces(report, frame)),
    ]
    sections = (markup.section(title, body, id=place) for place, title, body in parts if body)
    body = join((_head(found, visit.links), now, *sections))
    return document.Page(found.trial, body)


def _log(running: RunningTrial) -> Html:
    """Return the end of the log of a run that goes on."""
    lines = running.live.get("log")
    if not isinstance(lines, list) or not lines:
        return Html()
    caption = (
        "The last lines of rank 0, as its launcher has sent them. Secrets that zeusrun knows are "
        "masked."
    )
    shown = tag("pre", *(f"{line}\n" for line in lines), tabindex=0)
    return markup.section("Log", tag("p", caption, class_="note"), shown, id="log")


def _cancelling(running: RunningTrial, address: str, *, may_cancel: bool) -> Html:
    within = f"its launcher reads this within {HEARTBEAT_S:g} seconds, and then ends the training"
    if "/" not in running.trial.run_dir:  # of a client of Zeus
        within = "the answer to its next report tells its client to stop"
    if running.cancel:
        return tag("p", f"Somebody has asked to cancel this run: {within}.", class_="caution")
    if not may_cancel:
        return Html()
    button = tag("button", f"Cancel {running.trial.trial}", type="submit")
    form = tag("form", button, method="post", action=f"{address}/cancel", class_="find")
    effect = tag("p", units.sentence(within), class_="note")
    return markup.details("Cancel this run", effect, form)


def _report(trial: Trial, trace: PowerTrace | None) -> JobReport:
    """Return the report of a single run, for its figures; of a running one, with what it has."""
    if not trial.status.finished:  # a report is made of runs that have ended
        trial = trial.finish(trial.ended_as(TrialStatus.STOPPED, None, "", trial.started_at))
    power = () if trace is None else (build_power(trial, trace),)
    return JobReport(build_facts(trial.job, [trial], _unit_of(trial)), power=power)


def _head(trial: Trial, links: document.Links) -> Html:
    which = f"attempt {trial.attempt} of recurrence {trial.recurrence}"
    where = [links.link_job(trial.job), f" · {which}"]
    status = tag("p", status_text(trial), f" {trial.reason or ''}", class_="lead")
    warnings = [tag("p", text, class_="caution") for text in trial.warnings]
    why = tag("p", tag("strong", "Why this batch size: "), trial.why, class_="why")
    drawn = [] if document.can_draw() else [tag("p", document.NO_FIGURES, class_="note")]
    return markup.page_head(join(where), trial.trial, status, why, *warnings, _facts(trial), *drawn)


def _curve(trial: Trial, unit: CurveUnit, frame: Frame) -> Html:
    if not trial.curve:
        return Html()
    curve = curve_in(trial, unit)
    columns = [
        Column("epoch" if unit == "epochs" else unit, lambda point: units.count(point.epoch)),
        Column(units.shortened(trial.metric, 40), lambda point: units.number(point.value, ".4g")),
        *(TIME, ENERGY),
    ]
    rows = curve[-_MOST_POINTS:]
    which = f"the last {len(rows)} of {len(curve)}" if len(rows) < len(curve) else "all"
    what = "epochs" if unit == "epochs" else "reports"
    title = f"{what.capitalize()}: {which}"
    listed = table(title, columns, rows, lambda point: str(point.epoch))
    folded = markup.details(f"Table of the {what}", listed)
    return markup.figure(frame.picture("curves"), "Dashed: the target.", folded)


def _facts(trial: Trial) -> Html:
    """Return everything that is known of a run, but its curve."""
    found: list[tuple[str, str]] = []
    for name, text in trial_rows(trial):
        if name and text and name not in {"chosen", "started"}:
            found.append((name, text))
        elif text and not name:
            found[-1] = (found[-1][0], f"{found[-1][1]}; {text}")
    moments = [("started", trial.started_at), ("ended", trial.finished_at)]
    found += [(name, markup.moment(at)) for name, at in moments]
    names = {"cause": trial.cause, "host": trial.host, "directory": trial.run_dir}
    found += [(name, text or units.UNKNOWN) for name, text in names.items()]
    return markup.pairs(found, class_="key")
