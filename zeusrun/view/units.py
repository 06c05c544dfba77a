"""Formats numbers for people. Unknown is a dash."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.clock import local_time
from zeusrun.cost import energy_text
from zeusrun.reasons import short_text
from zeusrun.target import describe_target
from zeusrun.trial import EnergySource, SizeChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial
    from zeusrun.trial.values import NoisePoint, SyncChange, WorldChange

UNKNOWN = "–"  # noqa: RUF001 - a dash is meant
MINUS = "−"  # noqa: RUF001 - a minus is meant
_SOURCE_MARKS = {
    EnergySource.COUNTER: "",
    EnergySource.INTEGRATED: "∫",
    EnergySource.ESTIMATED: "~",
}
_LEAST_MONEY = 0.0001
_J_PER_WH = 3600.0
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))
_LEAST_CARBON_G = 0.001
_SIZES = 3  # numbers of ranks that a table shows
_BARS = "▁▂▃▄▅▆▇█"
_WAYS = {
    "examples": "of the normalisation layers",
    "micro_batches": "from micro-batches",
}


def number(value: float | None, form: str = "") -> str:
    """Return a number in a format, such as ``.4g``."""
    return UNKNOWN if value is None else format(value, form)


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: ``1 rank``, ``2 ranks``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count(value: float | None) -> str:
    """Return a count, such as ``12.5`` epochs or ``1,234,567`` samples."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:{',.0f' if value >= 1000 else 'g'}}"


def three_digits(value: float) -> str:
    """Return a number rounded to three significant digits, such as ``0.125`` or ``12,300``."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def short_count(value: float) -> str:
    """Return a count for the tick of an axis: ``500``, ``100k``, ``2.5M``."""
    size, suffix = next(each for each in _COUNTS if abs(value) >= each[0])
    return f"{value / (size or 1.0):.6g}{suffix}"


def energy(joules: float | None, *, like: float | None = None) -> str:
    """Return joules of cost with three digits and a prefix: ``1.24 kJ``.

    ``like``: in the unit of this amount, here and below.
    """
    return UNKNOWN if joules is None else energy_text(joules, like)


def gain(joules: float) -> str:
    """Return saved joules with their sign: ``+412 J``, ``−143 J``."""  # noqa: RUF002
    sign = "+" if joules > 0 else MINUS if joules < 0 else ""
    return sign + energy_text(abs(joules))


def energy_range(range_j: tuple[float, float] | None) -> str:
    """Return two amounts of joules in the unit of the larger one: ``0.62-1.01 kJ``."""
    if range_j is None:
        return UNKNOWN
    low, high = (energy_text(joules, range_j[1]) for joules in range_j)
    return f"{low.partition(' ')[0]}{UNKNOWN}{high}"


def power(watts: float | None) -> str:
    """Return whole watts, or two digits below 10 W."""
    return UNKNOWN if watts is None else f"{watts:{'.2g' if watts < 10 else '.0f'}} W"


def celsius(degrees: float | None) -> str:
    """Return a temperature in whole degrees."""
    return UNKNOWN if degrees is None else f"{degrees:.0f} °C"


def duration(seconds: float | None) -> str:
    """Return seconds as ``8.3 s``, ``2 m 05 s`` or ``1 h 12 m``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def size(count_bytes: int) -> str:
    """Return bytes with three digits and a prefix: ``1.24 MB``."""
    return energy_text(count_bytes).replace("J", "B")  # the prefixes are the same


def money(amount: float | None, currency: str | None, *, like: float | None = None) -> str:
    """Return an amount of money: ``0.0042 EUR``, ``3.10 EUR``, ``1,240 EUR``.

    From 1 on in hundredths, from 1,000 on in whole units; below, two digits that count.
    """
    if amount is None:
        return UNKNOWN
    size, sign = abs(amount), MINUS if amount < 0 else ""
    like = size if like is None else abs(like)
    if not like:
        text = "0"
    elif like < _LEAST_MONEY:
        text = f"{'>' if sign else '<'}{sign}{_LEAST_MONEY}"
    elif like < 0.995:
        leading = math.floor(math.log10(float(f"{like:.2g}")))
        text = f"{sign}{size:.{1 - leading}f}"
    else:
        text = f"{sign}{size:.2f}" if like < 999.995 else f"{sign}{size:,.0f}"
    return f"{text} {currency}" if currency else text


def carbon(grams: float | None, *, like: float | None = None) -> str:
    """Return grams with three digits and a unit: ``412 g``, ``1.30 kg``, ``<0.001 g``."""
    if grams is None:
        return UNKNOWN
    if 0 < (grams if like is None else abs(like)) < _LEAST_CARBON_G:
        return f"<{_LEAST_CARBON_G} g"
    text = energy_text(grams, like).replace("J", "g")  # the prefixes are the same
    return text.replace("Mg", "t").replace("Gg", "kt").replace("-", MINUS)


def electricity(
    joules: float | None, source: EnergySource | None = None, *, like: float | None = None
) -> str:
    """Return energy as a bill has it, marked by source: ``12.4 kWh``, ``~580 Wh``.

    Less than 1 Wh is in joules.
    """
    if joules is None:
        return UNKNOWN
    like, mark = joules if like is None else like, _SOURCE_MARKS[source] if source else ""
    if abs(like) < _J_PER_WH:
        return mark + energy_text(joules, like).replace("-", MINUS)
    text = energy_text(joules / _J_PER_WH, like / _J_PER_WH)
    return mark + text.replace("J", "Wh").replace("-", MINUS)


def spent(trial: Trial) -> list[str]:
    """Return what a trial cost in money and in carbon, as far as it is known."""
    price = [] if trial.price is None else [money(trial.price, trial.currency)]
    return price + ([] if trial.carbon_g is None else [f"{carbon(trial.carbon_g)} CO2e"])


def percent(fraction: float | None) -> str:
    """Return a fraction as whole percent: ``18 %``, with a space that does not break."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{round(100 * fraction)}\N{NO-BREAK SPACE}%".replace("-", MINUS)


def moment(rfc3339: str, form: str = "%m-%d %H:%M") -> str:
    """Return a recorded time in the local time zone, by default month, day, hour and minute."""
    time = local_time(rfc3339)
    return rfc3339[:16] if time is None else time.strftime(form)


def minute(rfc3339: str | None = None) -> str:
    """Return a recorded time in the local time zone, with its date."""
    return UNKNOWN if rfc3339 is None else moment(rfc3339, "%Y-%m-%d %H:%M")


def shortened(text: str, width: int = 20) -> str:
    """Return text of at most ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def capitalized(text: str) -> str:
    """Return a text with a capital first letter; the rest is unchanged."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return a text as a sentence, with a capital first letter and a full stop."""
    return f"{capitalized(text)}."


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Return a curve as one line of bars, at most ``width`` wide; gaps are spaces."""
    kept = values[:: max(1, math.ceil(len(values) / width))]
    known = [value for value in kept if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    # Halved, because the difference of two huge values could overflow.
    span = high / 2 - low / 2 or 1.0
    top = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[min(top, round((value / 2 - low / 2) / span * top))]
        for value in kept
    )


def batch_size(trial: Trial) -> str:
    """Return the batch size, such as ``256≠64`` where 256 was chosen but the run used 64.

    ``16→64`` is a run that adapted its batch size, from 16 at its start to 64 at its end.
    """
    chosen, observed = trial.global_batch_size, trial.observed_batch_size
    if trial.last_batch_size != chosen:
        return f"{chosen}→{trial.last_batch_size}"
    used = observed or ("its own" if trial.unapplied else chosen)
    return f"{chosen}≠{used}" if used != chosen else str(chosen)


def ranks(trial: Trial) -> str:
    """Return the number of ranks, such as ``2→4``, or ``2→…→3`` of a run with many changes."""
    sizes = [str(each.world_size) for each in trial.world_sizes] or [str(trial.world_size)]
    return "→".join(sizes if len(sizes) <= _SIZES else [sizes[0], "…", sizes[-1]])


def ranks_text(trial: Trial) -> str:
    """Return ``1 rank``, ``2 ranks`` or ``2→4 ranks``."""
    return f"{ranks(trial)} ranks" if trial.world_sizes else plural(trial.world_size, "rank")


def sync_text(change: SyncChange) -> str:
    """Return a change of how the ranks agree: ``bf16 from epoch 3 on: 3 of 4 ranks were slow``."""
    return f"{change.way} from epoch {change.epochs + 1} on: {change.why}"


def path_text(changes: Sequence[SizeChange | WorldChange], last: int = 0) -> str | None:
    """Return the batch sizes or the ranks of a run; ``None`` if they are unknown.

    Such as ``64 → 128 at epoch 3``, or ``2 → 4 after 3 epochs``. ``last``: the number of the last
    changes to show; 0 for all.
    """
    if not changes:
        return None
    first, *later = changes
    shown = later[-last:] if last else later
    parts = [str(_size_of(first))]
    if len(shown) < len(later):
        parts.append("…")
    parts += [f"{_size_of(change)} {_when(change)}" for change in shown]
    return " → ".join(parts)


def _size_of(change: SizeChange | WorldChange) -> int:
    return change.batch_size if isinstance(change, SizeChange) else change.world_size


def _when(change: SizeChange | WorldChange) -> str:
    if isinstance(change, SizeChange):
        return f"at epoch {change.epoch}"
    return f"after {plural(change.epochs, 'epoch') if change.epochs else duration(change.time_s)}"


def target_text(trial: Trial) -> str:
    """Return the target of a trial, such as ``target ≥ 0.95``."""
    return f"target {describe_target(trial.target, trial.mode)}"


def limit_text(trial: Trial) -> str:
    """Return the limit of a trial, such as ``150 W, 3 others tried``."""
    others = {point.power_limit_w for point in trial.power_profile} - {trial.power_limit_w, None}
    tried = f", {plural(len(others), 'other')} tried" if others else ""
    return power(trial.power_limit_w) + tried


def waiting_text(trial: Trial) -> str | None:
    """Return how long a step waits for data; ``None`` if that is unknown.

    ``87 ms of a step of 212 ms wait for data: 41 %``. A step includes its part of the evaluations.
    """
    wait_s, time_s, steps = trial.data_wait_s, trial.time_s, trial.steps
    if wait_s is None or not time_s or not steps:
        return None
    waits, lasts = short_text(wait_s / steps), short_text(time_s / steps)
    return f"{waits} of a step of {lasts} wait for data: {percent(wait_s / time_s)}"


def workers_text(trial: Trial) -> str | None:
    """Return how long a step took with each number of loader workers; ``None``: none was measured.

    ``a step takes 34 ms with 1, 18 ms with 2, 16 ms with 2 that stay, unknown with 4``.
    """
    found: dict[str, str] = {}
    for each in trial.workers:
        name = f"{each.workers} that stay" if each.stays else str(each.workers)
        if each.died:
            found[name] = f"with {name} one died"
        elif each.step_s is not None or name not in found:
            step = "unknown" if each.step_s is None else short_text(each.step_s)
            found[name] = f"{step} with {name}"
    known = any(each.died or each.step_s is not None for each in trial.workers)
    return f"a step takes {', '.join(found.values())}" if known else None


def noise_text(point: NoisePoint) -> str:
    """Return a noise scale in samples with its range: ``83 (60 to 110)``, or ``at least 40``."""
    if point.value is None or point.high is None:
        return f"at least {three_digits(point.low)}"
    low, value, high = map(three_digits, (point.low, point.value, point.high))
    return f"{value} ({low} to {high})"


def gradients_text(seen: Progress | Trial, *, whole: bool = False) -> str | None:
    """Return the newest noise scale and variance; ``None`` if there is no noise scale.

    ``whole``: show how the noise scale went.
    """
    curve, variance, how = seen.noise_curve, seen.gradient_variance, seen.gradients_of
    if not curve:
        return None
    drawn = [point.known for point in curve] if whole and len(curve) > 1 else []
    bars = f"{sparkline(drawn, 20)} " if drawn else ""
    way = f" · {_WAYS[how]}" if how in _WAYS else ""
    spread = "" if variance is None else f" · variance {number(variance, '.3g')}"
    return f"noise scale {bars}{noise_text(curve[-1])} samples{spread}{way}"
