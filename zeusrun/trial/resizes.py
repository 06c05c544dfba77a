"""Joins the changes of the ranks of an elastic training, and describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.reasons import short_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial.values import WorldChange


def since_begin(changes: Sequence[WorldChange], training_t: float) -> tuple[WorldChange, ...]:
    """Return changes with seconds since the training began in place of monotonic seconds.

    Empty if the number of ranks never changed.
    """
    return join_worlds(
        (), [each._replace(time_s=max(0.0, each.time_s - training_t)) for each in changes]
    )


def join_worlds(
    before: Sequence[WorldChange],
    since: Sequence[WorldChange],
    time_s: float = 0.0,
    epochs: int = 0,
    steps: int = 0,
) -> tuple[WorldChange, ...]:
    """Return both parts; empty if the number of ranks never changed.

    The first part has trained for ``time_s``, ``epochs`` and ``steps``.
    """
    joined = list(before)
    for change in since:
        if not joined or joined[-1].world_size != change.world_size:
            step = None if change.step is None else steps + change.step
            at_s, done = time_s + change.time_s, change.epochs or epochs
            joined.append(change._replace(time_s=at_s, epochs=done, step=step))
    return tuple(joined) if len(joined) > 1 else ()


def describe_resize(before: int, change: WorldChange) -> str:
    """Return ``1 → 2 ranks in 2.9 s, the others paused 65 ms, step 840``.

    ``before``: ranks; 0 if none of them stays.
    """
    arrow, now, step = f"{before} → " if before else "", change.world_size, change.step
    took = "" if change.took_s is None else f" in {short_text(change.took_s)}"
    pause = "" if change.paused_s is None else f", the others paused {short_text(change.paused_s)}"
    ranks = "ranks" if arrow or now > 1 else "rank"
    return f"{arrow}{now} {ranks}{took}{pause}" + ("" if step is None else f", step {step}")
