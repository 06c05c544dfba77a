"""The output of ``schedule`` for people and for programs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from zeusrun.jobfile.validators import duration_text
from zeusrun.schedule.store import UNDERWAY
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import Labelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.schedule.store import Occurrence, Schedule

_NEXT = 3
_STYLES = {"ended": "green", "waiting": "cyan", "running": "cyan"}


def schedules_sheet(found: Sequence[Schedule], now: float) -> RenderableType:
    """Return each job: its schedule, the next times and the last outcome."""
    parts: list[RenderableType] = []
    for schedule in found:
        name = Text(schedule.job, style="dim" if schedule.paused else "bold cyan")
        when = Text(schedule.rules.timetable.describe())
        rows = [("when", when), ("next", _next(schedule, now)), *_past(schedule, now)]
        if start := schedule.describe_start():
            due = _when(schedule, schedule.cursor.pending or now, now)
            rows.insert(1, ("starts", Text.assemble((start, "cyan"), (f"; due {due}", "dim"))))
        rules = describe_rules(schedule)
        if rules:
            rows.append(("rules", Text(rules, style="dim")))
        labelled = [(Text(f"  {label:5}", style="dim"), text) for label, text in rows]
        parts += [*([Text("")] if parts else []), name, Labelled(labelled)]
    return Group(*parts)


def next_table(found: Sequence[Schedule], now: float, width: int) -> RenderableType:
    """Return when each job that is not paused runs next, the first one first."""
    rows = []
    for schedule in found:
        timetable = schedule.rules.timetable
        moments = [] if schedule.paused else itertools.islice(timetable.following(now), 1)
        rows += [(moment, schedule) for moment in moments]
    rows.sort(key=lambda row: (row[0], row[1].job))
    columns = [
        Column("next run", lambda row: _when(row[1], row[0], now), left=True),
        Column("job", lambda row: row[1].job, left=True, folds=24),
        Column("schedule", lambda row: row[1].rules.timetable.describe(), left=True, leaves=1),
    ]
    return column_table(columns, rows, width - 1) if rows else Group()


def describe_rules(schedule: Schedule) -> str:
    """Return the rules that differ from the defaults."""
    rules = schedule.rules
    texts = [] if schedule.overlap == "forbid" else [f"overlap {schedule.overlap}"]
    if rules.catch_up != "none":
        texts.append(f"catch-up {rules.catch_up}")
    if rules.deadline_s is not None:
        texts.append(f"deadline {duration_text(rules.deadline_s)}")
    if rules.start_within_s:
        texts.append(f"start within {duration_text(rules.start_within_s)}")
        texts += [] if rules.finish_by is None else [f"finish by {rules.finish_by}"]
        texts.append(f"by {rules.by}")
    return " · ".join(texts)


def _next(schedule: Schedule, now: float) -> Text:
    if schedule.paused:
        return Text("paused", style="yellow")
    moments = itertools.islice(schedule.rules.timetable.following(now), _NEXT)
    return Text(" · ".join(_when(schedule, moment, now) for moment in moments))


def _when(schedule: Schedule, moment: float, now: float) -> str:
    local = schedule.rules.timetable.local
    same_year = local(moment).year == local(now).year
    return format(local(moment), "%a %d %b %H:%M" if same_year else "%a %d %b %Y %H:%M")


def _past(schedule: Schedule, now: float) -> list[tuple[str, Text]]:
    """Return the current or last run, and a later occurrence that did not run, with labels."""
    ran = [each for each in schedule.firings if each.result in {*UNDERWAY, "ended", "lost"}]
    under_way = [each for each in ran if each.result in UNDERWAY]
    last = max(under_way or ran, key=lambda each: each.at, default=None)
    skipped = [each for each in schedule.firings if each not in ran]
    other = max(skipped, key=lambda each: each.at, default=None)
    shown = [] if last is None else [("now" if under_way else "last", last)]
    if other is not None and (last is None or other.occurrence > last.occurrence):
        shown.append(("last" if last is None else "then", other))
    if not shown:
        return [("last", Text("it has not run yet", style="dim"))]
    return [(label, _outcome(schedule, occurrence, now)) for label, occurrence in shown]


def _outcome(schedule: Schedule, occurrence: Occurrence, now: float) -> Text:
    text, style = _describe(occurrence), _STYLES.get(occurrence.result, "yellow")
    if occurrence.result == "ended" and occurrence.exit_code != 0:
        style = "red"
        text += "" if occurrence.why else f"; see `zeusrun show {schedule.job}`"
    started = "" if occurrence.start is None else f"; started {occurrence.start}"
    when = _when(schedule, occurrence.occurrence, now)
    return Text.assemble(f"{when}  ", (text, style), (started, "dim"))


def _describe(occurrence: Occurrence) -> str:
    """Return the result of an occurrence of a schedule in words."""
    if occurrence.result == "ended":
        return occurrence.describe()
    return f"{occurrence.result}: {occurrence.why}" if occurrence.why else occurrence.result


def schedule_json(schedule: Schedule, now: float) -> dict[str, Any]:
    """Return a schedule as JSON, with the names but not the values of its variables."""
    record = schedule.to_json()
    rules, timetable = record.pop("rules"), schedule.rules.timetable
    moments = itertools.islice(timetable.following(now), 0 if schedule.paused else _NEXT)
    ended = [each for each in schedule.firings if each.result not in UNDERWAY]
    del record["version"], record["cursor"], rules["timetable"]
    return {
        **record,
        "cron": timetable.expression,
        "tz": timetable.tz,
        "words": timetable.describe(),
        **rules,
        "deferred": schedule.planned_json() or None,
        "environment": sorted(schedule.environment),
        "next": [timetable.local(moment).isoformat() for moment in moments],
        "last_run": _describe(ended[-1]) if ended else None,
        "firings": [
            {**each, "occurrence": timetable.local(each["occurrence"]).isoformat()}
            for each in record["firings"]
        ],
    }
