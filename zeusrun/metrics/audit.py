"""Says why a metric was proposed, and whether what was printed agrees with it. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from zeusrun.metrics.propose_pattern import read_line
from zeusrun.metrics.seen import EVALUATIONS, names_an_evaluation
from zeusrun.sidecar.events import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.seen import Seen


def describe_choice(
    proposal: Proposal, seen: Mapping[tuple[str, str], Seen], printed: Sequence[str]
) -> Iterator[str]:
    """Yield sentences on a proposed metric: what it is, how it is logged, what agrees with it."""
    name, source = proposal.metric, proposal.source
    values = seen.get((name, source))
    better = "lower" if proposal.mode == "min" else "higher"
    what = "of an evaluation, " if names_an_evaluation({name: 0.0}) else ""
    how = "as the script prints it"
    if values is not None and source != "stdout":
        by = "the script" if source == REPORT else source
        how = f"reported by {by}, in {values.times} record{'s' * (values.times != 1)}"
        if values.parts > 1:
            how += (
                f"; the script logs {values.parts} values in an evaluation, and their mean counts. "
                "For AUC or F1 that is only near"
            )
    yield f"Chosen: {name} ({what}{better} is better), {how}."
    others = sorted(other for other, by in seen if seen[other, by].each_step)
    if others:
        yield f"No results, because they are logged in every step: {', '.join(others[:5])}."
    if values is not None and (line := find_agreeing(printed, name, proposal.last)) is not None:
        yield f"It agrees with the printed line: {line.strip()}"


def is_alike(logged: str, printed: str) -> bool:
    """Whether a printed metric is, by its name, what is logged under another one."""
    own, other = (set(re.findall(r"[a-z]+", each.lower())) for each in (logged, printed))
    return bool(own - EVALUATIONS) and own - EVALUATIONS <= other and not other & {"train"}


def find_agreeing(printed: Sequence[str], metric: str, value: float) -> str | None:
    """Return the last printed line with a metric of such a name and value; ``None`` without one."""
    own = {word[:3] for word in set(re.findall(r"[a-z]+", metric.lower())) - EVALUATIONS}
    for line in reversed(printed):
        for number in read_line(line[:1000]):
            text = line[number.start : number.end]
            words = {word[:3] for word in re.findall(r"[a-z]+", number.name)}
            if "." not in text or not words & own:
                continue
            scale = 100 if line[number.end : number.end + 1] == "%" else 1
            if _rounds_to(value * scale, text) or (scale == 1 and _rounds_to(value * 100, text)):
                return line
    return None


def _rounds_to(value: float, text: str) -> bool:
    """Whether a value is a printed number, within one of its last digit."""
    try:
        shown = Decimal(text)
    except ArithmeticError:
        return False
    exponent = shown.as_tuple().exponent
    digits = len(shown.as_tuple().digits)
    return (
        isinstance(exponent, int)
        and digits > 1
        and abs(Decimal(repr(value)) - shown) <= Decimal(1).scaleb(exponent)
    )
