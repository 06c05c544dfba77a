"""What is worth telling about how a script uses zeusrun, while it runs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.launcher.progress import Progress

_TRAINS_ON = (
    "the target was reached, and the script trains on: it does not ask whether to stop. Loop over "
    "`run.epochs(default=...)`, or add `if run.should_stop(): break` after `run.report(...)`; with "
    "objective.on_target: continue it may train on"
)


def find_remarks(progress: Progress, metric: str, *, stops_at_target: bool) -> dict[str, str]:
    """Return what can be told now, by kind: each kind is to be told once.

    Args:
        progress: Of the trial.
        metric: Its name in the job file.
        stops_at_target: Whether the script is told to stop at the target.
    """
    remarks = {}
    if progress.seen_metrics and metric not in progress.seen_metrics:
        names = ", ".join(sorted(progress.seen_metrics)[:10])
        remarks["metric"] = (
            f"the first report has no {metric!r}; it has {names}. If objective.metric is "
            "misspelt, stop and correct it"
        )
    reached = progress.reached
    if stops_at_target and reached is not None and progress.epochs > reached.epoch:
        remarks["trains on"] = _TRAINS_ON
    return remarks
