"""Lists of jobs and of runs whose order, search and page stand in the address: a view is a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

from zeusrun.history.sql.survey import Wanted
from zeusrun.view.report.markup import Html, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Row = TypeVar("_Row")
_LONGEST = 200  # largest number of characters of a search
_MOST_PAGES = 10**6
_TEXTS = frozenset({"job", "status", "host", "gpu"})  # sorted from A to Z first


@dataclass(frozen=True)
class Listing:
    """The search, order and page of a list, as an address of a page describes them.

    Attributes:
        address: The address of the page, relative to itself.
        place: The id of the section with the list.
        search: The text of the search; empty for all.
        sort: The key by which the list is sorted; one of ``sorts``, whose first is the default.
        descending: Whether the largest value comes first.
        page: The number of the page of the list, from 1.
    """

    address: str
    place: str
    sorts: Sequence[str]
    search: str
    sort: str
    descending: bool
    page: int

    def link(self, page: int = 1, sort: str | None = None, *, descending: bool = True) -> str:
        """Return the address of the same search on another page, or in another order."""
        if sort is None:
            sort, descending = self.sort, self.descending
        query = {"q": self.search} if self.search else {}
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
        page, last = self._pages(total, shown)
        if last == 1:
            return Html()
        parts: list[str] = [f"Page {page:,} of {last:,}"]
        parts += [tag("a", "first", href=self.link())] if page > 2 else []
        parts += [tag("a", "previous", href=self.link(page - 1))] if page > 1 else []
        parts += [tag("a", "next", href=self.link(page + 1))] if page < last else []
        spaced = [each for part in parts for each in (part, " ")]
        return tag("nav", tag("p", *spaced), aria_label=label, class_="pages")

    def page_of(self, rows: Sequence[_Row], shown: int) -> Sequence[_Row]:
        """Return the rows of this page, of ``shown`` on each; beyond the last one, of that."""
        page, _ = self._pages(len(rows), shown)
        return rows[(page - 1) * shown : page * shown]

    def _pages(self, total: int, shown: int) -> tuple[int, int]:
        """Return the number of this page and that of the last one."""
        last = max(1, -(-total // shown))
        return min(self.page, last), last

    def form(self, label: str, hint: str) -> Html:
        """Return the search form, which keeps the order; ``hint`` names what a search finds."""
        order = self.link().partition("sort=")[2].partition("#")[0]
        hidden = tag("input", type="hidden", name="sort", value=order) if order else ""
        field = tag("input", id="q", type="search", name="q", value=self.search, autocomplete="off")
        address = f"{self.address}#{self.place}"
        return tag(
            "form",
            hidden,
            tag("label", tag("span", hint), field),
            tag("button", "Search"),
            tag("a", "show all", href=address) if self.search else "",
            action=address,
            class_="find",
            role="search",
            aria_label=label,
        )

    def wanted(self) -> Wanted:
        """Return the request to the database for the runs of this list."""
        words = tuple(dict.fromkeys(self.search.split()))[:_MOST_WORDS]
        return Wanted(self.sort, self.descending, self.page, words)


_MOST_WORDS = 6  # largest number of words of a search; each is compared with every run


def _begins_high(sort: str) -> bool:
    """Whether the first click on a heading sorts from the largest to the smallest."""
    return sort not in _TEXTS


def read_listing(
    query: Mapping[str, str], address: str, place: str, sorts: Sequence[str]
) -> Listing:
    """Return the list that an address describes; wrong values are replaced by the defaults."""
    search, order, page = (query.get(name, "").strip() for name in ("q", "sort", "page"))
    search = search[:_LONGEST] if search.isprintable() else ""
    sort, descending = order.removeprefix("-"), order.startswith("-")
    if sort not in sorts:
        sort, descending = sorts[0], _begins_high(sorts[0])
    number = int(page) if page.isdecimal() and len(page) < _LONGEST else 1
    number = number if 1 <= number <= _MOST_PAGES else 1
    return Listing(address, place, sorts, search, sort, descending, number)
