"""The page of one run: why it was chosen, what it took, its learning curve and its power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.server.pages.document import Links, Page
from zeusrun.server.pages.live import cards
from zeusrun.server.pages.pictures import NO_FIGURES, can_draw, figures_version, picture_of
from zeusrun.server.pages.tables import status_text
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.report.facts import JobReport, build_facts
from zeusrun.view.report.headline import goal
from zeusrun.view.report.markup import Html, figure, join, table, tag
from zeusrun.view.report.power import build_power
from zeusrun.view.sheets import limit_text, trial_rows
from zeusrun.view.units import UNKNOWN

if TYPE_CHECKING:
    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

_LINKS = Links(1)
_MOST_POINTS = 100  # rows of the table of the curve


@dataclass(frozen=True)
class RunContent:
    """What the page shows. ``live`` while it runs; then it has the numbers so far."""

    stored: Trial
    live: Live | None
    trace: PowerTrace | None

    @property
    def trial(self) -> Trial:
        """The trial with what is known now."""
        return self.stored if self.live is None else self.live.trial


def run_page(content: RunContent, version: str | None) -> Page:
    """Return the page of a run."""
    trial = content.trial
    parts = [
        ("curve", "Learning curve", _curve(content)),
        ("power", "Power", _power(content)),
        ("all", "Everything", _everything(trial)),
    ]
    sections = (
        tag("section", tag("h2", title), body, id=place) for place, title, body in parts if body
    )
    now = Html()
    if content.live is not None:
        now = tag("section", tag("h2", "Runs now"), cards([content.live], 1, _LINKS), id="now")
    body = join((_head(trial), now, *sections, _commands(trial)))
    return Page(trial.trial, body, about=trial.job, version=version)


def run_report(content: RunContent) -> JobReport:
    """Return the report of a single run, for its figures; of a running one, with what it has."""
    trial = content.trial
    if not trial.status.finished:  # a report is made of runs that have ended
        trial = trial.finish(trial.ended_as(TrialStatus.STOPPED, "", trial.started_at))
    power = () if content.trace is None else (build_power(trial, content.trace),)
    return JobReport(build_facts(trial.job, [trial]), power=power)


def run_version(content: RunContent) -> str:
    """Return what differs if the figures of a run do."""
    trial, trace = content.trial, content.trace
    spans = 0 if trace is None else len(trace.spans)
    return figures_version(trial.trial, trial.uuid, trial.status, trial.curve, spans)


def _head(trial: Trial) -> Html:
    which = f"attempt {trial.attempt} of recurrence {trial.recurrence}"
    where = tag("p", _LINKS.link_job(trial.job), f" · {which}", class_="job")
    if trial.attempt > 1:
        before = f"{trial.job}-{trial.recurrence}-{trial.attempt - 1}"
        earlier = tag("a", "the attempt before", href=_LINKS.run(before))
        where = tag("p", _LINKS.link_job(trial.job), f" · {which} · ", earlier, class_="job")
    title = tag("h1", trial.trial, class_="headline")
    status = tag("p", status_text(trial), f" {trial.reason or ''}", class_="lead")
    last = trial.curve[-1].value if trial.curve else None
    pairs = [
        ("batch size", units.batch_size(trial)),
        (f"best {units.shortened(trial.metric, 40)}", _best(trial)),
        ("target", goal(trial)),
        ("epochs", f"{units.number(trial.epochs)} of at most {trial.max_epochs}"),
        ("time", units.duration(trial.time_s)),
        ("energy", units.energy(trial.energy_j, trial.energy_source)),
        ("cost", units.energy(trial.cost_j)),
        ("price", units.money(trial.price, trial.currency)),
        ("carbon", UNKNOWN if trial.carbon_g is None else f"{units.carbon(trial.carbon_g)} CO2e"),
        ("power limit", limit_text(trial) if trial.power_limit_w else UNKNOWN),
        ("host", trial.host or UNKNOWN),
        ("began", units.minute(trial.started_at)),
    ]
    if trial.best_metric is None and last is not None:
        pairs[1] = (units.shortened(trial.metric, 40), f"{last:.4g}")
    known = [pair for pair in pairs if pair[1] != UNKNOWN]
    key = tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in known),
        class_="key",
    )
    warnings = [tag("p", text, class_="caution") for text in trial.warnings]
    why = tag("p", tag("strong", "Why this batch size: "), trial.why, class_="why")
    drawn = [] if can_draw() else [tag("p", NO_FIGURES, class_="note")]
    return join((where, title, status, key, why, *warnings, *drawn))


def _best(trial: Trial) -> str:
    return units.number(trial.best_metric, ".4g")


def _curve(content: RunContent) -> Html:
    trial = content.trial
    if not trial.curve:
        return Html()
    report = run_report(content)
    picture = picture_of(report, _LINKS.run(trial.trial), run_version(content))
    label = f"Learning curve of {trial.trial}, with the target {trial.target:g}."
    rows = [
        {
            "epoch": str(point.epoch),
            units.shortened(trial.metric, 40): units.number(point.value, ".4g"),
            "time": units.duration(point.time_s),
            "energy": units.energy(point.energy_j),
        }
        for point in trial.curve[-_MOST_POINTS:]
    ]
    which = f"the last {len(rows)} of {len(trial.curve)}" if len(rows) < len(trial.curve) else "all"
    listed = table(f"Epochs: {which}", rows, [row["epoch"] for row in rows])
    folded = Html(f"<details><summary>Table of the epochs</summary>{listed}</details>")
    return figure("learning curve", picture("curves", label), "Dashed: the target.", folded)


def _power(content: RunContent) -> Html:
    trial, trace = content.trial, content.trace
    if trace is None:
        return Html()
    report = run_report(content)
    picture = picture_of(report, _LINKS.run(trial.trial), run_version(content))
    facts = report.power[0]
    label = f"Power of {trial.trial} over time, summed over {trace.devices} devices."
    caption = "Mean, and range of the readings. Dashed: the power limit. Bars: throttled."
    values = [
        ("mean", units.power(facts.mean_w)),
        ("highest", units.power(facts.highest_w)),
        ("limit", units.power(facts.limit_w)),
        ("devices", str(trace.devices)),
        (
            "throttled",
            ", ".join(f"{word} {units.percent(n)}" for word, n in facts.throttled) or "no",
        ),
    ]
    return figure("power", picture("power", label), caption, table("Power", [dict(values)]))


def _everything(trial: Trial) -> Html:
    rows: list[dict[str, str]] = []
    for name, text in trial_rows(trial):
        if not text:
            continue
        if name:
            rows.append({"what": name, "value": text})
        else:
            rows[-1]["value"] += f"; {text}"
    if trial.cause:
        rows.append({"what": "cause", "value": trial.cause})
    rows.append({"what": "ended", "value": units.minute(trial.finished_at)})
    rows.append({"what": "directory", "value": trial.run_dir or UNKNOWN})
    return table("Everything that is known of this run", rows)


def _commands(trial: Trial) -> Html:
    if not trial.run_dir.startswith("/"):  # of Zeus's own client, which keeps no files
        return Html()
    where = f"on {trial.host}" if trial.host else "on its machine"
    verbs = ["logs", "show"] if trial.status.finished else ["logs --follow", "cancel"]
    said: list[str] = [f"More {where}: "]
    for verb in verbs:
        said += [tag("code", f"zeusrun {verb} {trial.trial}"), " "]
    return tag("p", *said, class_="note commands")
