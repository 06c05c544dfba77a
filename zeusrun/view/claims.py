"""What is said of a saving, wherever it is said: a number with its range, or that nothing shows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.view import units
from zeusrun.view.units import MINUS, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.analysis.estimate import Estimate, NetAmounts

    Amount: TypeAlias = tuple[Estimate, Callable[[float], str], str]


def is_good(estimate: Estimate | None) -> bool | None:
    """Whether something is saved (``True``) or lost (``False``); ``None``: neither is sure."""
    return None if estimate is None or not estimate.is_shown else estimate.low > 0


def claim_share(share: Estimate, of: str = "") -> str:
    """Return what is saved: ``saves 14 % (9 to 19 %)``, or that no difference shows.

    ``of`` is what saves, such as `` a run``.
    """
    if share.low > 0:
        return f"saves {_percent(share.value)} %{of} ({_range(share.low, share.high)})"
    if share.high < 0:
        return f"costs {_percent(-share.value)} % more{of} ({_range(-share.high, -share.low)})"
    return f"no difference can be shown yet ({_range(share.low, share.high)})"


def claim_amount(amount: Estimate, text: Callable[[float], str], what: str = "") -> str:
    """Return what was saved or lost in all: ``12.4 kWh of energy (9.1 to 15.7 kWh) saved``.

    ``text`` writes an amount that is not negative; ``what`` is such as `` of energy``.
    """
    return _claim([(amount, text, what)])


def _claim(amounts: Sequence[Amount]) -> str:
    """Return what was saved, then what was lost, then what shows neither."""
    saved = [
        f"{text(each.value)}{what}{_ends(each.low, each.high, text)}"
        for each, text, what in amounts
        if each.low > 0
    ]
    lost = [
        f"{text(-each.value)}{what}{_ends(-each.high, -each.low, text)}"
        for each, text, what in amounts
        if each.high < 0
    ]
    neither = [
        f"{join_ends(signed(each.low, text), signed(each.high, text))}{what}"
        for each, text, what in amounts
        if not each.is_shown
    ]
    parts = [f"{', '.join(saved)} saved"] if saved else []
    parts += [f"{', '.join(lost)} more than the default alone"] if lost else []
    parts += [f"no saving can be shown yet ({', '.join(neither)})"] if neither else []
    return "; ".join(parts)


def _ends(low: float, high: float, text: Callable[[float], str]) -> str:
    """Return where an amount lies, such as `` (9 to 12 J)``; nothing if there is no doubt."""
    ends = signed(low, text), signed(high, text)
    return "" if len(set(ends)) == 1 else f" ({join_ends(*ends)})"


def join_ends(low: str, high: str) -> str:
    """Return a range, with the unit once if both ends have the same."""
    number, _, unit = low.partition(" ")  # a duration such as 3 m 38 s has two
    return f"{number if high.partition(' ')[2] == unit else low} to {high}"


def net_text(net: NetAmounts, net_cost: Estimate) -> str:
    """Return what was saved in all, with its range, in energy, money and carbon."""
    amounts: list[Amount] = []
    if net.energy_j is not None:
        amounts.append((net.energy_j, units.electricity, " of energy"))
    for name, sum_ in net.money.items():
        amounts.append((sum_, functools.partial(_money, name), ""))
    if net.carbon_g is not None:
        amounts.append((net.carbon_g, units.carbon, " CO2e"))
    return _claim(amounts or [(net_cost, units.energy, " of cost")])


def short_share(share: Estimate) -> str:
    """Return a share with its range for a cell of a table: ``14 % (9 to 19 %)``."""
    return f"{_percent(share.value)} % ({_range(share.low, share.high)})"


def money_saved(net: NetAmounts) -> str:
    """Return the money that was saved for a cell of a table."""
    sums = [
        short_amount(amount, functools.partial(_money, currency))
        for currency, amount in net.money.items()
    ]
    return ", ".join(sums) or UNKNOWN


def _money(currency: str, amount: float) -> str:
    return units.money(amount, currency)


def short_amount(amount: Estimate | None, text: Callable[[float], str]) -> str:
    """Return an amount for a cell of a table; a dash if none is shown."""
    if amount is None or not amount.is_shown:
        return UNKNOWN
    return signed(amount.value, text)


def signed(amount: float, text: Callable[[float], str]) -> str:
    """Return an amount with its sign if it is negative; ``text`` writes one that is not."""
    return f"{MINUS}{text(-amount)}" if amount < 0 else text(amount)


def _range(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)} %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}".replace("-0", "0").replace("-", MINUS)
