"""The page of one run: why it was chosen, what it took, its learning curve and its power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.curves import curve_in, curve_unit
from zeusrun.server.pages.document import Links, Page
from zeusrun.server.pages.pictures import NO_FIGURES, can_draw, figures_version, picture_of
from zeusrun.server.pages.runs import cards, status_text
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.columns import ENERGY, TIME, Column
from zeusrun.view.report.facts import JobReport, build_facts, build_power
from zeusrun.view.report.markup import Html, details, figure, join, pairs, section, table, tag
from zeusrun.view.report.sections import Frame, power_traces
from zeusrun.view.sheets import trial_rows
from zeusrun.view.units import UNKNOWN

if TYPE_CHECKING:
    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

_LINKS = Links(1)
_MOST_POINTS = 100  # rows of the table of the curve


@dataclass(frozen=True)
class RunContent:
    """What the page shows. ``live`` while it runs; then it has the numbers so far.

    ``job_unit``: what curves of the job are drawn against; ``None`` if no run has ended.
    """

    stored: Trial
    live: Live | None
    trace: PowerTrace | None
    job_unit: CurveUnit | None = None

    @property
    def trial(self) -> Trial:
        """The trial with what is known now."""
        return self.stored if self.live is None else self.live.trial

    @property
    def unit(self) -> CurveUnit:
        """What its curve is drawn against: as those of its job, if it can be."""
        unit = self.job_unit or curve_unit([self.trial])
        return unit if curve_in(self.trial, unit) else "epochs"


def run_page(content: RunContent, version: str | None) -> Page:
    """Return the page of a run."""
    trial = content.trial
    report, address = run_report(content), _LINKS.run(trial.trial)
    frame = Frame(picture_of(report, address, run_version(content)))
    parts = [
        ("curve", "Learning curve", _curve(trial, content.unit, frame)),
        ("power", "Power", power_traces(report, frame)),
    ]
    sections = (section(title, body, id=place) for place, title, body in parts if body)
    now = Html()
    if content.live is not None:
        now = section("Runs now", cards([content.live], 1, _LINKS), id="now")
    body = join((_head(trial), now, *sections, _commands(trial)))
    return Page(trial.trial, body, about=trial.job, version=version)


def run_report(content: RunContent) -> JobReport:
    """Return the report of a single run, for its figures; of a running one, with what it has."""
    trial = content.trial
    if not trial.status.finished:  # a report is made of runs that have ended
        trial = trial.finish(trial.ended_as(TrialStatus.STOPPED, None, "", trial.started_at))
    power = () if content.trace is None else (build_power(trial, content.trace),)
    return JobReport(build_facts(trial.job, [trial], content.unit), power=power)


def run_version(content: RunContent) -> str:
    """Return what differs if the figures of a run do."""
    trial, trace = content.trial, content.trace
    spans = 0 if trace is None else len(trace.spans)
    return figures_version(trial.trial, trial.uuid, trial.status, trial.curve, spans, content.unit)


def _head(trial: Trial) -> Html:
    which = f"attempt {trial.attempt} of recurrence {trial.recurrence}"
    where = [_LINKS.link_job(trial.job), f" · {which}"]
    if trial.attempt > 1:
        before = f"{trial.job}-{trial.recurrence}-{trial.attempt - 1}"
        where += [" · ", tag("a", "the attempt before", href=_LINKS.run(before))]
    title = tag("h1", trial.trial, class_="headline")
    status = tag("p", status_text(trial), f" {trial.reason or ''}", class_="lead")
    warnings = [tag("p", text, class_="caution") for text in trial.warnings]
    why = tag("p", tag("strong", "Why this batch size: "), trial.why, class_="why")
    drawn = [] if can_draw() else [tag("p", NO_FIGURES, class_="note")]
    return join(
        (tag("p", *where, class_="job"), title, status, why, *warnings, _facts(trial), *drawn)
    )


def _curve(trial: Trial, unit: CurveUnit, frame: Frame) -> Html:
    if not trial.curve:
        return Html()
    curve = curve_in(trial, unit)
    label = f"Learning curve of {trial.trial}, with the target {trial.target:g}."
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
    folded = details(f"Table of the {what}", listed)
    return figure(frame.picture("curves", label), "Dashed: the target.", folded)


def _facts(trial: Trial) -> Html:
    """Return everything that is known of a run, but its curve."""
    found: list[tuple[str, str]] = []
    for name, text in trial_rows(trial):
        if name and text and name not in {"chosen", "started"}:
            found.append((name, text))
        elif text and not name:
            found[-1] = (found[-1][0], f"{found[-1][1]}; {text}")
    moments = [("started", trial.started_at), ("ended", trial.finished_at)]
    found += [(name, units.minute(at)) for name, at in moments]
    names = {"cause": trial.cause, "host": trial.host, "directory": trial.run_dir}
    found += [(name, text or UNKNOWN) for name, text in names.items()]
    return pairs(found, class_="key")


def _commands(trial: Trial) -> Html:
    if not trial.run_dir.startswith("/"):  # of Zeus's own client, which keeps no files
        return Html()
    where = f"on {trial.host}" if trial.host else "on its machine"
    verbs = ["logs", "show"] if trial.status.finished else ["logs --follow", "cancel"]
    parts: list[str] = [f"More {where}: "]
    for verb in verbs:
        parts += [tag("code", f"zeusrun {verb} {trial.trial}"), " "]
    return tag("p", *parts, class_="note commands")
