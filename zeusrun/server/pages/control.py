"""What a page shows and does to a run that goes on: the end of its log, and cancelling it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.history.base import HEARTBEAT_S
from zeusrun.view.report.markup import Html, details, escape, join, section, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.sql.survey import RunningTrial


def control(found: Sequence[RunningTrial], address: str, *, may_cancel: bool) -> Html:
    """Return the end of the log of the run that was found, and how to cancel it."""
    if not found:  # it has ended
        return Html()
    running = found[0]
    lines = running.live.get("log")
    log = Html()
    if isinstance(lines, list) and lines:
        caption = (
            "The last lines of rank 0, as its launcher has sent them. Secrets that zeusrun knows "
            "are masked."
        )
        shown = tag("pre", *(escape(f"{line}\n") for line in lines), tabindex=0)
        log = section("Log", tag("p", caption, class_="note"), shown, id="log")
    return join((log, _cancelling(running, address, may_cancel=may_cancel)))


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
    effect = tag("p", f"{within[:1].upper()}{within[1:]}.", class_="note")
    return details("Cancel this run", effect, form)
