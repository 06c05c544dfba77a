"""The page that puts two batch sizes of a job side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.usual import has_cost, setting
from zeusrun.server.pages import document
from zeusrun.view import units
from zeusrun.view.claims import claim_against, is_good
from zeusrun.view.report.compare import compare, of_size
from zeusrun.view.report.facts import JobReport
from zeusrun.view.report.headline import capitalized, unbroken
from zeusrun.view.report.markup import Html, figure, join, section, tag
from zeusrun.view.report.page import comparison_content
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.analysis.amounts import Estimate
    from zeusrun.server.pages.reports import JobView, Shares
    from zeusrun.trial import Trial
    from zeusrun.view.report.compare import GroupComparison

_LINKS = document.Links()


class NotFoundError(Exception):
    """There is no such page, or nothing to put side by side; the message is for people."""


class Compared(NamedTuple):
    """Two batch sizes of a job side by side; ``shown`` is what each figure shows."""

    title: str
    job: str
    version: str
    shown: Mapping[str, JobReport | GroupComparison]
    content: Html


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

    asked = urlencode([("job", view.job), ("size", first), ("size", second)]) + "&"
    version = document.figures_version(view.job, view.version, first, second)
    title = f"{view.job}: {other} and {right[0].global_batch_size}"

    def picture(name: str, label: str) -> Html | None:
        own = shown.get(name)
        draw = own and document.picture_of(own, "compare", version, asked)
        return draw(name, label) if draw else None

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
        claim = unbroken(claim_against(energy, name, other, "energy"))
        notes = [f"Of energy alone: {claim}.", _RULE]
    if left_out:
        runs = plural(left_out, "run")
        notes.append(f"Left out: {runs} with another objective, hardware or kind of energy.")
    return notes


def choose_two(sizes: Sequence[str]) -> Sequence[str]:
    """Return the two batch sizes that an address names; raises ``NotFoundError``."""
    sizes = [each.lstrip("0") or "0" if each.isdecimal() else each for each in sizes]
    if len(sizes) != 2 or sizes[0] == sizes[1]:
        count = len(set(sizes)) or "none"
        raise NotFoundError(f"Choose two batch sizes of a job; the address names {count}.")
    return sizes
