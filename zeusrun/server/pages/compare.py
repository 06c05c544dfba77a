"""The page that puts two runs, or two batch sizes of a job, side by side."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.curves import amount_in, build_curves
from zeusrun.analysis.usual import has_cost, setting
from zeusrun.server.pages import document
from zeusrun.server.pages.runs import run_report, status_text
from zeusrun.view import units
from zeusrun.view.claims import claim_against, is_good
from zeusrun.view.columns import CARBON, COST, ENERGY, HOST, PRICE, TIME, Column
from zeusrun.view.report.compare import compare, of_size
from zeusrun.view.report.facts import JobReport, hardware_text
from zeusrun.view.report.headline import capitalized, target, unbroken
from zeusrun.view.report.markup import Html, cell, figure, join, moment, section, table, tag
from zeusrun.view.report.page import comparison_content
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.analysis.amounts import Estimate
    from zeusrun.server.pages.reports import JobView, Shares
    from zeusrun.server.pages.runs import RunContent
    from zeusrun.trial import Trial
    from zeusrun.view.report.compare import GroupComparison

    Picture = Callable[[str, str], Html | None]
    Row = tuple[str, str, str]

_LINKS = document.Links()


class NotFoundError(Exception):
    """There is no such page, or nothing to put side by side; the message is for people."""


class Compared(NamedTuple):
    """Two things side by side.

    ``about`` is the job that both belong to, ``None`` if there are two. ``shown`` is what each
    figure shows.
    """

    title: str
    about: str | None
    version: str
    shown: Mapping[str, JobReport | GroupComparison]
    content: Html


def _pictures(
    shown: Mapping[str, JobReport | GroupComparison], query: Sequence[tuple[str, str]], version: str
) -> Picture:
    """Return what puts one of the figures into the page; ``query`` names the two in its address."""
    asked = f"{urlencode(query)}&"
    return lambda name, label: (
        document.picture_of(shown[name], "compare", version, asked)(name, label)
        if name in shown
        else None
    )


def _side_by_side(caption: str, names: tuple[str, str], rows: Sequence[Row]) -> Html:
    """Return a table with a column for each of two; rows of which nothing is known are left out."""
    known = [row for row in rows if row[1:] != (UNKNOWN, UNKNOWN)]
    columns = [Column(name, operator.itemgetter(at)) for at, name in enumerate(("", *names))]
    return table(caption, columns, known, operator.itemgetter(0))


def _rows(columns: Sequence[Column], left: object, right: object) -> list[Row]:
    return [(each.name, cell(each.value(left)), cell(each.value(right))) for each in columns]


_SETTINGS = [
    Column("batch size", size_label),
    Column("learning rate", lambda trial: units.number(trial.learning_rate, "g")),
    Column("samples of a rank at a time", lambda trial: units.count(trial.micro_batch_size)),
    Column("hardware", hardware_text),
    Column("power limit", lambda trial: units.power(trial.power_limit_w)),
    Column("target", target),
    Column("most epochs", lambda trial: units.count(trial.max_epochs)),
    Column("weight of energy", lambda trial: f"eta_knob {trial.eta_knob:g}"),
    Column("default batch size", lambda trial: units.count(trial.default_batch_size)),
]
_WHERE = [
    Column("began", lambda trial: moment(trial.started_at)),
    HOST,
    Column("GPU", lambda trial: trial.gpu_model or UNKNOWN),
]


def compare_runs(contents: Sequence[RunContent]) -> Compared:
    """Return two runs side by side."""
    left, right = (content.trial for content in contents)
    unit = contents[0].unit if contents[0].unit == contents[1].unit else "epochs"
    sources = [each.energy_source for each in (left, right) if each.energy_source is not None]
    alike = len({source.measured for source in sources}) < 2
    report = _curves_of(contents, by_energy=alike)
    query = [("run", left.trial), ("run", right.trial)]
    names = (left.trial, right.trial)

    version = document.figures_version(left, right)
    shown = {} if report is None else {"curves": report}
    about = left.job if left.job == right.job else None
    picture = _pictures(shown, query, version)
    results = [
        Column("status", status_text),
        Column("why", lambda trial: units.shortened(trial.reason or UNKNOWN, 160)),
        Column(unit, lambda trial: units.count(amount_in(trial, unit))),
        Column("best metric", lambda trial: units.number(trial.best_metric, ".4g")),
        *(TIME, ENERGY, *([COST] if alike else []), PRICE, CARBON),
    ]
    linked = (_LINKS.link_run(left.trial), _LINKS.link_run(right.trial))
    settings = [row for row in _rows(_SETTINGS, left, right) if row[1] != row[2]]
    settings += _changed_parts(left, right)
    took = _side_by_side(
        "What they took, and where", names, _rows([*results, *_WHERE], left, right)
    )
    differ = _side_by_side("Settings that differ", names, settings)
    differ = differ or tag("p", "Both had the same settings.")
    drawn = picture("curves", f"Learning curves of {' and '.join(names)}.")
    curves = figure(drawn, f"Dashed: the target, {target(left)}.") if drawn else ""
    why = f"{left.metric} and {right.metric} are different metrics, so no curve is drawn."
    content = join(
        (
            tag("p", "Two runs", class_="job"),
            tag("h1", linked[0], " and ", linked[1], class_="headline"),
            tag("p", _NO_CLAIM, *_sizes_link(left, right), class_="lead"),
            "" if alike else tag("p", _APART, class_="caution"),
            section("What they took", took, id="took"),
            section("Settings", differ, id="settings"),
            section("Learning curves", curves, id="curves") if curves else "",
            tag("p", why, class_="note") if left.metric != right.metric else "",
        )
    )
    return Compared(" and ".join(names), about, version, shown, content)


_NO_CLAIM = "Two runs alone show no saving: runs with the same settings differ, too. "
_APART = (
    "The energy of one run was measured and that of the other one estimated, so their costs are "
    "not compared."
)


def _sizes_link(left: Trial, right: Trial) -> list[str]:
    sizes = (left.global_batch_size, right.global_batch_size)
    if left.job != right.job or sizes[0] == sizes[1]:
        return []
    query = urlencode([("job", left.job), *(("size", size) for size in sizes)])
    text = f"Compare all runs of batch sizes {sizes[0]} and {sizes[1]}"
    return [tag("a", text, href=f"{_LINKS.to('compare')}?{query}"), "."]


def _changed_parts(left: Trial, right: Trial) -> list[Row]:
    """Return in which parts two trainings of a job differ, by their fingerprints."""
    own, other = left.fingerprint or {}, right.fingerprint or {}
    if left.job != right.job:
        return []
    parts = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
    return [(name, own.get(name, UNKNOWN)[:12], other.get(name, UNKNOWN)[:12]) for name in parts]


def _curves_of(contents: Sequence[RunContent], *, by_energy: bool) -> JobReport | None:
    """Return a report whose learning curves are those of two runs; ``None`` if there are none."""
    reports = [run_report(content).facts for content in contents]
    trials = [content.trial for content in contents]
    if trials[0].metric != trials[1].metric:
        return None
    by_energy = by_energy and all(facts.by_energy for facts in reports)
    unit = reports[0].unit if reports[0].unit == reports[1].unit else "epochs"
    curves = tuple(
        replace(curve, size=curve.trial)
        for curve in build_curves(trials, unit, by_energy=by_energy)
    )
    sizes = tuple(
        replace(facts.sizes[0], label=trial.trial)
        for facts, trial in zip(reports, trials, strict=True)
    )
    facts = replace(reports[0], unit=unit, by_energy=by_energy, curves=curves, sizes=sizes)
    return JobReport(facts) if curves else None


def compare_sizes(
    view: JobView,
    trials: Sequence[Trial],
    written: Sequence[str],
    find_shares: Callable[[str, int, int], Shares],
) -> Compared:
    """Return two batch sizes of a job side by side; ``trials`` are of the job, oldest first.

    ``find_shares`` is ``Reports.shares``.

    Raises:
        NotFoundError: If a batch size has no run that has ended.
    """
    ended = [trial for trial in trials if trial.status.finished]
    usual = next((setting(trial) for trial in reversed(ended) if has_cost(trial)), None)
    alike = [trial for trial in ended if usual in {None, setting(trial)}]
    default = str(ended[-1].default_batch_size) if ended else ""
    first, second = sorted(written, key=lambda size: size != default)
    sides = []
    for size in (first, second):
        sides.append(of_size(alike, size))
        if not sides[-1]:
            raise NotFoundError(
                f"{view.job} has no run of batch size {units.shortened(size)} that has ended, "
                "with the objective and the hardware of its newest runs."
            )
    (left, right), against = sides, sides[0][0].global_batch_size
    name, other = f"batch size {right[0].global_batch_size}", f"batch size {against}"
    share, energy = find_shares(view.job, right[0].global_batch_size, against)
    comparison = compare(view.job, (other, name), left, right)
    text = f"what {name} saves against {against} is not known yet"
    if share is not None:
        text = unbroken(claim_against(share, name, str(against)))
    saved = {"cost": share, "energy": energy}
    comparison = replace(
        comparison,
        headline=capitalized(text),
        better=is_good(share),
        measures=tuple(each._replace(saved=saved.get(each.name)) for each in comparison.measures),
        notes=(*_notes(energy, name, other, len(ended) - len(alike)), *comparison.notes),
    )
    shown: dict[str, JobReport | GroupComparison] = {"compare": comparison}
    labels = [size_label(left[0]), size_label(right[0])]
    if view.report is not None:
        facts = view.report.facts
        curves = tuple(each for each in facts.curves if each.size in labels)
        sizes = [each for each in facts.sizes if each.label in labels]
        sizes.sort(key=lambda each: labels.index(each.label))  # for the colours of the other figure
        if curves:
            shown["curves"] = JobReport(replace(facts, curves=curves, sizes=tuple(sizes)))

    query = [("job", view.job), ("size", first), ("size", second)]
    version = document.figures_version(view.job, view.version, first, second)
    title = f"{view.job}: {other} and {right[0].global_batch_size}"
    picture = _pictures(shown, query, version)
    head = tag("p", _LINKS.link_job(view.job), class_="job")
    drawn = picture("curves", f"Learning curves of {other} and {name}.")
    curve = figure(drawn, "The newest runs of both. Dashed: the target.") if drawn else ""
    content = join(
        (
            comparison_content(comparison, picture, head),
            section("Learning curves", curve, id="curves") if curve else "",
        )
    )
    return Compared(title, view.job, version, shown, content)


_RULE = (
    "The differences in cost and energy are expected for further runs, by the rule of zeusrun "
    "history, with 90 % ranges."
)


def _notes(energy: Estimate | None, name: str, other: str, left_out: int) -> list[str]:
    notes = [_RULE]
    if energy is not None:
        notes.insert(
            0, f"Of energy alone: {unbroken(claim_against(energy, name, other, 'energy'))}."
        )
    if left_out:
        runs = plural(left_out, "run")
        notes.append(f"Left out: {runs} with another objective, hardware or kind of energy.")
    return notes


def choose_two(named: Sequence[str], what: str) -> Sequence[str]:
    """Return the two things that an address names; raises ``NotFoundError``."""
    named = [each.lstrip("0") or "0" if each.isdecimal() else each for each in named]
    if len(named) != 2 or named[0] == named[1]:
        count = len(set(named)) or "none"
        raise NotFoundError(f"Choose two {what} to compare; the address names {count}.")
    return named
