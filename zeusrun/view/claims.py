"""What is said of a saving, wherever it is said: a number with its range, or that nothing shows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.analysis.estimates import Estimate, NetAmounts, Savings

    Amount: TypeAlias = tuple[Estimate, Callable[..., str], str]


def is_good(estimate: Estimate | None, *sums: Estimate | None) -> bool | None:
    """Whether something is saved (``True``) or lost (``False``); ``None``: neither is sure.

    Nor if one of the sums below it is the opposite: a saving is not called good while a sum is a
    loss, even in doubt.
    """
    if estimate is None or not estimate.is_shown:
        return None
    good = estimate.low > 0
    opposite = (each.value < 0 if good else is_good(each) for each in sums if each is not None)
    return None if any(opposite) else good


def claim_style(estimate: Estimate | None, *sums: Estimate | None) -> str:
    """Return the style of a claim on a console: a colour if something is saved or lost."""
    return {True: "green", False: "yellow", None: ""}[is_good(estimate, *sums)]


def claim_in_use(savings: Savings) -> str | None:
    """Compare the batch size in use with the default.

    ``batch size 32 saves 14 % of the cost of a run (9 to 19 %) against 64``; ``None``: unknown.
    """
    share, name, other = savings.share, f"batch size {savings.in_use}", savings.default
    if share is None:
        return None
    if not share.is_shown:
        claim = f"{name} against {other}: no difference in cost can be shown yet ({_range(share)})"
        if savings.shown_in is None:
            return claim
        more = units.plural(savings.shown_in, "more run")
        return f"{claim}; if it is as large as it looks, about {more} of each would show it"
    claim = f"costs {_percent(-share.value)} % more a run ({_range(-share)})"
    if share.low > 0:
        claim = f"saves {_percent(share.value)} % of the cost of a run ({_range(share)})"
    return f"{name} {claim} against {other}"


def claim_cost(net: Estimate) -> str:
    """Return what was saved in all: ``saved 1.24 kJ of cost (0.91 to 1.57 kJ)``."""
    return _claim([(net, units.energy, " of cost")])


def net_text(net: NetAmounts, net_cost: Estimate) -> str:
    """Return what was saved in all in energy, money and carbon; in cost if none is known."""
    amounts: list[Amount] = []
    if net.energy_j is not None:
        amounts.append((net.energy_j, units.electricity, " of energy"))
    amounts += [
        (amount, functools.partial(units.money, currency=currency), "")
        for currency, amount in net.money.items()
    ]
    if net.carbon_g is not None:
        amounts.append((net.carbon_g, units.carbon, " CO2e"))
    return _claim(amounts) if amounts else claim_cost(net_cost)


def _claim(amounts: Sequence[Amount]) -> str:
    """Return what was saved, then what was lost, then what shows neither."""
    if all(each.low == each.high == 0 for each, *_ in amounts):
        return "saved nothing"
    saved = [_sure(each, text, what) for each, text, what in amounts if each.low > 0]
    lost = [_sure(-each, text, what) for each, text, what in amounts if each.high < 0]
    neither = [
        f"{range_text(each, text)}{what}" for each, text, what in amounts if not each.is_shown
    ]
    parts = [f"saved {', '.join(saved)}"] if saved else []
    parts += [f"spent {', '.join(lost)} more than always using the default"] if lost else []
    parts += [f"no saving can be shown yet ({', '.join(neither)})"] if neither else []
    return "; ".join(parts)


def _sure(amount: Estimate, text: Callable[..., str], what: str) -> str:
    """Return an amount and its range, unless that is one number: ``9 J of cost (8 to 12 J)``."""
    value, ends = _with_range(amount, text)
    return f"{value}{what}" + (f" ({ends})" if ends else "")


def _with_range(amount: Estimate, text: Callable[..., str]) -> tuple[str, str]:
    """Return an amount and its range, in one unit; without the range if that is one number."""
    ends = range_text(amount, text)
    if " to " not in ends:
        return signed(amount.value, text), ""
    like = max(abs(amount.low), abs(amount.high))
    return signed(amount.value, functools.partial(text, like=like)), ends


def range_text(amount: Estimate, text: Callable[..., str]) -> str:
    """Return the range of an amount in one unit, that of its larger end, or one number."""
    like = max(abs(amount.low), abs(amount.high))
    if (largest := text(like)).startswith("<"):
        return f"less than {largest[1:]}"
    low, high = (
        signed(end, functools.partial(text, like=like)) for end in (amount.low, amount.high)
    )
    return low if low == high else join_ends(low, high)


def join_ends(low: str, high: str) -> str:
    """Return a range, with the unit once if both ends have the same."""
    number, _, unit = low.partition(" ")  # a duration such as 3 m 38 s has two
    return f"{number if high.partition(' ')[2] == unit else low} to {high}"


def short_share(share: Estimate) -> str:
    """Return a share with its range for a cell of a table: ``14 % (9 to 19 %)``."""
    return f"{_percent(share.value)} % ({_range(share)})"


def range_of(share: Estimate | None) -> str:
    """Return the range of a share for a narrow cell: ``9 to 19 %``, or one number if it is one."""
    if share is None:
        return units.UNKNOWN
    low, high = _percent(share.low), _percent(share.high)
    return f"{low} %" if low == high else _range(share)


def cell_share(share: Estimate) -> str:
    """Return a share for a cell of a table, or ``not shown`` if it may be 0."""
    return short_share(share) if share.is_shown else f"not shown ({_range(share)})"


def short_amount(amount: Estimate | None, text: Callable[..., str]) -> str:
    """Return an amount with its range for a cell of a table, or ``not shown`` if it may be 0."""
    if amount is None:
        return units.UNKNOWN
    if not amount.is_shown:
        return f"not shown ({range_text(amount, text)})"
    value, ends = _with_range(amount, text)
    return f"{value} ({ends})" if ends else value


def signed(amount: float, text: Callable[[float], str]) -> str:
    """Return an amount with its sign if it is negative; ``text`` writes one that is not."""
    if amount >= 0:
        return text(amount)
    size = text(-amount)
    if not size.partition(" ")[0].strip("0.,"):
        return size  # it is 0 with these decimals
    return f">{units.MINUS}{size[1:]}" if size.startswith("<") else f"{units.MINUS}{size}"


def _range(share: Estimate) -> str:
    return f"{_percent(share.low)} to {_percent(share.high)} %"


def _percent(share: float) -> str:
    percent = 100 * share
    digits = 1 if 0.05 <= abs(percent) < 0.95 else 0  # a claim that is near 0 is not one of 0
    return f"{percent + 0.0:.{digits}f}".replace("-", units.MINUS) if round(percent, 1) else "0"
