"""Joins the parts of a trial that was preempted and continued. Pure.

Each field of the record has a joiner. A joiner gets both parts and the name of the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zeusrun.cost import add, add_known, cost_j
from zeusrun.trial.values import (
    CurvePoint,
    EnergySource,
    HostShare,
    Interruption,
    NoisePoint,
    SyncChange,
    WorkersChange,
    WorldChange,
    join_changes,
    join_curves,
    join_syncs,
    spread_samples,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Joiner: TypeAlias = "Callable[[Parts, str], Any]"


class Parts(NamedTuple):
    """A trial as it was before its last part, and the outcome of that part."""

    trial: Any  # a ``Trial``, whose module imports this one
    last: Any  # an ``Outcome``

    def both(self, name: str) -> tuple[Any, Any]:
        """Return the values of a field before and in the last part."""
        return getattr(self.trial, name), getattr(self.last, name)

    @property
    def trained(self) -> bool:
        """Whether training started in the last part."""
        return self.last.time_s is not None

    @property
    def source(self) -> EnergySource | None:
        """The weaker energy source; ``None`` if a source is unknown, or only one is measured."""
        sources: tuple[EnergySource | None, ...] = self.both("energy_source")
        if not self.trained:
            return sources[0]
        known = [each for each in sources if each is not None]
        mixed = len({each.measured for each in known}) > 1
        return None if mixed or len(known) < len(sources) else max(known)  # larger is weaker

    def earlier(self) -> list[CurvePoint]:
        """Return the points of the earlier curve that the last part does not repeat."""
        curve = self.last.curve
        return [each for each in self.trial.curve if not curve or each.epoch < curve[0].epoch]

    def since(self, points: Sequence[CurvePoint]) -> list[CurvePoint]:
        """Return points of the last part with time and energy since the start of the trial."""
        time_s = self.trial.time_s
        energy_j = None if metered(self, "energy_j") is None else self.trial.energy_j
        return [
            each._replace(time_s=time_s + each.time_s, energy_j=add(energy_j, each.energy_j))
            for each in points
        ]


def _of_values(join: Callable[[Any, Any], Any]) -> Joiner:
    """Return a joiner that uses only the two values of its field."""
    return lambda parts, name: join(*parts.both(name))


total = _of_values(add)
known_total = _of_values(add_known)
sizes = _of_values(join_changes)
rows = _of_values(lambda before, last: (*before, *last))
last_known = _of_values(lambda before, last: last or before)
last_measured = _of_values(lambda before, last: before if last is None else last)  # 0 is known


def shares(parts: Parts, name: str) -> tuple[HostShare, ...]:
    """Add the energy of each host; unknown if the host did not take part in both parts."""
    before, last = parts.both(name)
    earlier = {share[:2]: share.energy_j for share in before}
    sums = [add(earlier.get(share[:2]), share.energy_j) for share in last]
    return tuple(each._replace(energy_j=sum_j) for each, sum_j in zip(last, sums, strict=True))


def seen(parts: Parts, name: str) -> bool | None:
    """Return whether the value is true in a part; ``None`` if that is unknown."""
    both = parts.both(name)
    return True if any(both) else None if None in both else False


def trained(parts: Parts, name: str) -> float | None:
    """Add an amount of the training; a part without training adds nothing."""
    before, last = parts.both(name)
    return add(before, last) if parts.trained else before


def metered(parts: Parts, name: str) -> float | None:
    """Add energy or an amount derived from it; estimates and measurements are never added."""
    return None if parts.trained and parts.source is None else trained(parts, name)


def weaker(parts: Parts, _name: str) -> EnergySource | None:
    """Return the weaker energy source; ``None`` if the energy is unknown."""
    return None if metered(parts, "energy_j") is None else parts.source


def weighed(parts: Parts, _name: str) -> float | None:
    """Return the cost of both parts in joules."""
    max_power_w = last_measured(parts, "max_power_w")
    energy_j, time_s = metered(parts, "energy_j"), trained(parts, "time_s")
    return cost_j(energy_j, max_power_w, time_s, parts.trial.eta_knob)


def priced(parts: Parts, name: str) -> float | None:
    """Add the prices of the energy; ``None`` if their currencies differ."""
    differ = parts.trained and parts.trial.currency != parts.last.currency
    return None if differ else metered(parts, name)


def currency(parts: Parts, _name: str) -> str | None:
    """Return the currency of the price; ``None`` if the price is unknown."""
    return None if priced(parts, "price") is None else parts.trial.currency


def common(parts: Parts, name: str) -> float | None:
    """Return the value if both parts have the same; ``None`` if they differ."""
    before, last = parts.both(name)
    return before if before == last or not parts.trained else None


def longer(parts: Parts, name: str) -> float | None:
    """Return the value of the longer part."""
    both: tuple[float | None, float | None] = parts.both(name)
    return both[1] if (parts.last.time_s or 0.0) > parts.trial.time_s else both[0]


def counted(parts: Parts, name: str) -> int | None:
    """Return the epochs of the last part, which continues the count of the part before.

    ``None`` if the training may have started again from the beginning.
    """
    return None if any(parts.both("unclear")) else last_known(parts, name)


def of_span(parts: Parts, name: str) -> float | None:
    """Add a count over the span; unknown if the last part has only the count to its end."""
    before, last = parts.both(name)
    lost = last is None and getattr(parts.last, f"whole_{name}") is not None
    return None if lost else add_known(before, last)


def best(parts: Parts, name: str) -> float | None:
    """Return the better value of the metric."""
    choose = min if parts.trial.mode == "min" else max
    return choose((each for each in parts.both(name) if each is not None), default=None)


def curve(parts: Parts, _name: str) -> tuple[CurvePoint, ...]:
    """Return the joined curve by epochs."""
    points = (*parts.earlier(), *parts.since(parts.last.curve))
    return thin_curve(points, parts.trial.target, parts.trial.mode)


def curve_by_samples(parts: Parts, name: str) -> tuple[CurvePoint, ...]:
    """Return the joined curve by samples, which the last part counts from 0.

    Empty if no part has such a curve.
    """
    trial, (before, last) = parts.trial, parts.both(name)
    if not before and not last:
        return ()
    done = parts.earlier()[-1].epoch if parts.earlier() else 0
    first = before or spread_samples(trial.curve, trial.samples)
    later = last or spread_samples(parts.last.curve, parts.last.whole_samples, done)
    shifted = [each._replace(epoch=(trial.samples or 0) + each.epoch) for each in later]
    return thin_curve((*first, *parts.since(shifted)), trial.target, trial.mode)


def noise(parts: Parts, name: str) -> tuple[NoisePoint, ...]:
    """Return the joined noise curve; its samples count from the start of the trial."""
    samples, progress = parts.trial.samples or 0, parts.trial.progress
    return join_curves(*parts.both(name), samples, progress if samples else 0.0)


def worlds(parts: Parts, name: str) -> tuple[WorldChange, ...]:
    """Return the changes of the ranks; each part begins with the number of ranks of the trial."""
    trial, (before, last) = parts.trial, parts.both(name)
    if not before and not last:
        return ()
    from zeusrun.trial.resizes import join_worlds  # noqa: PLC0415 - of elastic trainings alone

    begin = [WorldChange(0.0, 0, trial.world_size, step=0)]
    done = trial.time_s or 0.0, trial.epochs or 0, trial.whole_steps or 0
    return join_worlds(before or begin, [*begin, *last] if parts.trained else last, *done)


def workers(parts: Parts, name: str) -> tuple[WorkersChange, ...]:
    """Return the numbers of loader workers of both parts."""
    before, last = parts.both(name)
    since_s = parts.trial.time_s or 0.0
    return (*before, *(each._replace(time_s=since_s + each.time_s) for each in last))


def syncs(parts: Parts, name: str) -> tuple[SyncChange, ...]:
    """Return the synchronization changes of both parts."""
    return join_syncs(*parts.both(name), parts.trial.epochs or 0)


def interrupted(parts: Parts, name: str) -> tuple[Interruption, ...]:
    """Return the interruptions of both parts, and the interruption between them."""
    before, last = parts.both(name)
    if not parts.trained:
        return tuple(before)
    time_s, done = parts.trial.time_s or 0.0, parts.trial.epochs or 0
    later = [Interruption(time_s + cut.time_s, cut.epochs or done) for cut in last]
    return (*before, Interruption(time_s, done), *later)
