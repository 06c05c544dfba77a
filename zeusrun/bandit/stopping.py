"""Whether a running trial is hopeless: a bound on its cost, tightened by its learning curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.observation import better
from zeusrun.cost import energy_text

if TYPE_CHECKING:
    from zeusrun.bandit.observation import Pace, Running
    from zeusrun.trial import Bound


def hopeless(bound: Bound | None, mode: str, running: Running) -> str | None:
    """Return why a trial cannot reach the target within its bound, or ``None`` to go on.

    To be called at the end of an epoch. A trial that has come a share of the way has to keep to
    that share of its bound; the way is measured by the epochs in which trials that reached the
    target had come as far, one epoch being granted.

    Args:
        bound: Of the trial; ``None`` for none.
        mode: Whether a higher or a lower metric is better.
        running: The trial now.
    """
    if bound is None or running.cost_j is None:
        return None
    next_j = running.cost_j / max(1, running.epochs)
    if running.cost_j + next_j > bound.cost_j:
        left = "its cost passed" if running.cost_j > bound.cost_j else "one more epoch would pass"
        return f"{left} the bound of {energy_text(bound.cost_j)}"
    if not bound.paces:
        return None
    share = share_done(bound.paces, mode, running.best_value)
    if running.cost_j <= share * bound.cost_j:
        return None
    return (
        f"after {running.epochs} {'epoch' if running.epochs == 1 else 'epochs'} it has come "
        f"{share:.0%} of the way at most, for {energy_text(running.cost_j)} of the "
        f"{energy_text(bound.cost_j)} that it may cost"
    )


def share_done(paces: tuple[Pace, ...], mode: str, best_value: float | None) -> float:
    """Return how much of the way to the target a best value can be, at most 1."""
    shares = 0.0
    for pace in paces:
        behind = pace[-1][0]
        for epoch, value in pace:
            if best_value is None or better(mode, value, best_value):
                behind = epoch
                break
        shares += min(1.0, (behind + 1) / pace[-1][0])
    return shares / len(paces)
