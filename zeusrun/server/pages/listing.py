"""Lists of jobs and of runs whose order, search and page stand in the address: a view is a link."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from zeusrun.history.sql.survey import SORTS, Wanted
from zeusrun.trial import TrialStatus
from zeusrun.view.report.markup import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST = 200  # characters of a field
_MOST_PAGES = 10**6
_LARGEST = 1 << 62
_TEXTS = frozenset({"job", "status", "host", "gpu"})  # sorted from A to Z first
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Listing:
    """The part of an address that describes a list; wrong values are left out.

    Attributes:
        address: Of the page, relative to itself.
        place: The id of the section with the list.
        fields: What is searched for, by the name of the field.
        sort: By what the list is sorted; one of ``sorts``, the first of which is the default.
        descending: In which direction.
        page: Of the list, from 1.
        problems: Sentences on values that were left out.
    """

    address: str
    place: str
    sorts: Sequence[str]
    fields: Mapping[str, str]
    sort: str
    descending: bool
    page: int
    problems: tuple[str, ...] = ()

    def link(self, page: int = 1, sort: str | None = None, *, descending: bool = True) -> str:
        """Return the address of the same search on another page, or in another order."""
        if sort is None:
            sort, descending = self.sort, self.descending
        query = dict(self.fields)
        if (sort, descending) != (self.sorts[0], _begins_high(self.sorts[0])):
            query["sort"] = f"-{sort}" if descending else sort
        if page > 1:
            query["page"] = str(page)
        return f"{self.address}{'?' if query else ''}{urlencode(query)}#{self.place}"

    def heading(self, column: str) -> tuple[str, str | None] | None:
        """Return the address of the other order of a column, and the present one if it is sorted.

        ``None``: nothing can be sorted by it.
        """
        sort = column.lower().replace(" ", "-")
        if sort not in self.sorts:
            return None
        is_own = sort == self.sort
        descending = not self.descending if is_own else _begins_high(sort)
        now = ("descending" if self.descending else "ascending") if is_own else None
        return self.link(sort=sort, descending=descending), now

    def pages(self, label: str, total: int, shown: int) -> Html:
        """Return the links to the pages before and after; nothing if there is one."""
        last = max(1, -(-total // shown))
        page = min(self.page, last)
        if last == 1:
            return Html()
        parts: list[str] = [f"Page {page:,} of {last:,}"]
        parts += [tag("a", "first", href=self.link())] if page > 2 else []
        parts += [tag("a", "previous", href=self.link(page - 1))] if page > 1 else []
        parts += [tag("a", "next", href=self.link(page + 1))] if page < last else []
        spaced = [each for part in parts for each in (part, " ")]
        return tag("nav", tag("p", *spaced), aria_label=label, class_="pages")

    def form(self, label: str, *inputs: str) -> Html:
        """Return the form of a search, which keeps the order."""
        order = self.link().partition("sort=")[2].partition("#")[0]
        hidden = tag("input", type="hidden", name="sort", value=order) if order else ""
        none = tag("a", "show all", href=f"{self.address}#{self.place}") if self.fields else ""
        problems = [tag("p", each, class_="caution") for each in self.problems]
        return join(
            (
                tag(
                    "form",
                    *(hidden, *inputs, tag("button", "Search"), none),
                    action=f"{self.address}#{self.place}",
                    class_="find",
                    role="search",
                    aria_label=label,
                ),
                *problems,
            )
        )

    def input(self, name: str, label: str, kind: str = "search") -> Html:
        """Return a field of the form."""
        value = self.fields.get(name, "")
        field = tag("input", id=name, type=kind, name=name, value=value, autocomplete="off")
        return tag("label", tag("span", label), field, class_=f"field {name}")

    def choice(self, name: str, label: str, options: Mapping[str, str]) -> Html:
        """Return a field with a few possible values; ``options``: their texts by value."""
        own = self.fields.get(name)
        items = (
            tag("option", text, value=value, selected="selected" if value == own else None)
            for value, text in {"": "any", **options}.items()
        )
        return tag("label", tag("span", label), tag("select", *items, name=name), class_="field")


def _begins_high(sort: str) -> bool:
    """Whether the first click on a heading sorts from the largest to the smallest."""
    return sort not in _TEXTS


def read_listing(
    query: Mapping[str, str], address: str, place: str, sorts: Sequence[str], fields: Sequence[str]
) -> Listing:
    """Return what an address says of a list; a wrong order or page is the default."""
    given = {name: query.get(name, "").strip()[:_LONGEST] for name in (*fields, "sort", "page")}
    known = {name: text for name, text in given.items() if text and text.isprintable()}
    order, page = known.pop("sort", ""), known.pop("page", "")
    sort, descending = order.removeprefix("-"), order.startswith("-")
    if sort not in sorts:
        sort, descending = sorts[0], _begins_high(sorts[0])
    number = int(page) if page.isdecimal() else 1
    number = number if 1 <= number <= _MOST_PAGES else 1
    return Listing(address, place, sorts, known, sort, descending, number)


RUN_SORTS = tuple(SORTS)
RUN_FIELDS = ("status", "size", "host", "gpu", "from", "to")
_STATUSES = {each.value: each.value for each in TrialStatus} | {
    TrialStatus.DISPATCHED.value: "runs now"
}


def read_wanted(
    query: Mapping[str, str], address: str, sorts: Sequence[str]
) -> tuple[Listing, Wanted]:
    """Return what an address says of a list of runs, and what to ask the database for."""
    listing = read_listing(query, address, "runs", sorts, RUN_FIELDS)
    fields, problems = dict(listing.fields), []
    if (status := fields.get("status")) and status not in _STATUSES:
        problems.append(f"{fields.pop('status')} is not a status of a run.")
    size = fields.get("size", "")
    if size and not (size.isdecimal() and int(size) < _LARGEST):
        problems.append(f"{fields.pop('size')} is not a batch size; write a number such as 256.")
    days = {}
    for name in ("from", "to"):
        if text := fields.get(name):
            try:
                days[name] = _start_of(text)
            except ValueError:
                problems.append(f"{fields.pop(name)} is not a date; write one such as 2026-03-31.")
    listing = replace(listing, fields=fields, problems=tuple(problems))
    wanted = Wanted(
        sort=listing.sort,
        descending=listing.descending,
        page=listing.page,
        status=fields.get("status"),
        batch_size=int(fields["size"]) if "size" in fields else None,
        host=fields.get("host"),
        gpu=fields.get("gpu"),
        since=days["from"].timestamp() if "from" in days else None,
        until=(days["to"] + _DAY).timestamp() if "to" in days else None,
    )
    return listing, wanted


def _start_of(day: str) -> dt.datetime:
    """Return when a day begins in UTC: an address means the same to everybody."""
    found = dt.datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=dt.timezone.utc)
    if not 1 < found.year < dt.MAXYEAR:
        raise ValueError(day)
    return found


def runs_form(listing: Listing) -> Html:
    """Return the form that searches runs."""
    return listing.form(
        "Find runs",
        listing.choice("status", "status", _STATUSES),
        listing.input("size", "batch size"),
        listing.input("host", "host"),
        listing.input("gpu", "GPU"),
        listing.input("from", "from (UTC)", "date"),
        listing.input("to", "to (UTC)", "date"),
    )
