"""What choosing batch sizes has saved compared with always using the default.

One run is luck. So a recurrence counts with what a run with its batch size is expected to cost, and
is compared with what a run of the default is expected to cost, in the same era of the training, on
the same devices. What is expected, and how sure that is, is recomputed at every look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.analysis.estimates import NetAmounts, Savings, find_ended, is_forced, is_other

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial


NEWEST = 1000  # older trials are not compared


def find_savings(trials: Sequence[Trial]) -> Savings:
    """Compare each recurrence, with all its attempts, with the default batch size.

    Compared are the recurrences since the training last changed, under the objective, learning-rate
    rule, devices and kind of energy of the newest run that shows its cost. Left out is what the
    user forced, and a recurrence with an attempt of unknown cost. ``trials`` are of one job, oldest
    first.
    """
    trials = trials[-NEWEST:]
    ended = find_ended(trials)
    if not any(any(map(is_other, attempts)) and not is_forced(attempts) for attempts in ended):
        return Savings(len(ended), explored=False)
    from zeusrun.analysis.comparison import compare  # noqa: PLC0415 - numpy, and few jobs need it

    return compare(trials, ended)


def find_net_amounts(trials: Sequence[Trial], savings: Savings) -> NetAmounts:
    """Return what the compared recurrences saved, by the energy that runs are expected to take.

    Every joule counts with the price and the carbon of the recurrence in which it was saved, so a
    cheaper hour is not taken for a cheaper batch size. ``trials`` are of one job, oldest first.
    """
    if not savings.by_trial:
        return NetAmounts()
    from zeusrun.analysis.comparison import sum_energy  # noqa: PLC0415 - as above

    return sum_energy(trials[-NEWEST:], savings)
