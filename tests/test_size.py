"""The package stays small, and one submit short to follow."""

from __future__ import annotations

import ast

import pytest

from tests.size import (
    BUDGETS,
    LOADED_BUDGET,
    PARTS,
    SLACK,
    WALK_BUDGET,
    Walk,
    count_code,
    count_loaded,
    count_parts,
    find_loaded,
    walk,
)
from tests.source import MODULES, trees


def find_wrong(lines, budgets, slack=SLACK):
    """Return the parts whose budget must change, with the lines that they have."""
    return {part: lines[part] for part in lines if not 0 <= budgets[part] - lines[part] <= slack}


def test_no_part_has_more_lines_than_its_budget_and_no_budget_is_idle():
    lines = count_parts()
    assert lines.keys() == BUDGETS.keys()
    assert find_wrong(lines, BUDGETS) == {}
    for other in (1, -SLACK - 1):
        wrong = {part: budget + other for part, budget in BUDGETS.items()}
        assert find_wrong(wrong, BUDGETS) == wrong


def test_every_pattern_of_a_part_fits_a_module():
    for begin in (each for begins in PARTS.values() for each in begins):
        assert any(name.startswith(begin) for name in MODULES), begin


def test_a_reader_of_one_submit_visits_as_many_files_as_is_written_down():
    """A walk that is shorter has lost a call, or its budget is idle."""
    assert walk(dict(trees())) == WALK_BUDGET


def test_a_local_submit_loads_no_more_of_the_package_and_no_torch(tmp_path):
    names = find_loaded(tmp_path)
    assert "torch" not in names
    loaded = count_loaded(names)
    assert find_wrong(loaded._asdict(), LOADED_BUDGET._asdict(), slack=200) == {}
    assert count_loaded({*names, "zeusrun.server.app"}).modules == loaded.modules + 1


def test_only_lines_with_code_count():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = (\n    1\n)  # and another\n'
    assert count_code(text, ast.parse(text)) == 3
    text = "x = f'''\n\n# {1}\n'''\n"
    assert count_code(text, ast.parse(text)) == 4


CALLS = (
    "def submit(owner: Owner): owner.act()",
    "def submit(owner: Owner | None): owner.act()",
    "def submit(): Owner().act()",
    "def submit(): owner = Owner(); owner.act()",
    "def submit():\n    with Owner() as owner: owner.act()",
    "def submit(): owner = find_owner(); owner.act()",
    "def submit(): help_out()",
    "def submit(): other.help_out()",
    "def submit(holder: Holder): holder.owner.act()",
    "def submit(): inside()\ndef inside(): help_out()",
)
"""Ways to call what is in another module, which calls what is in a third."""
OTHER = """
from zeusrun.view.third import end

class Owner:
    def act(self):
        self._more()

    def _more(self):
        end()

class Holder:
    owner: Owner

def find_owner() -> Owner:
    pass

def help_out():
    end()
"""


@pytest.mark.parametrize("submit", CALLS)
def test_a_walk_follows_names_imports_constructors_and_annotations(submit):
    names = "Holder, Owner, find_owner, help_out"
    modules = {
        "launcher/attempts/recurrence.py": "from zeusrun.view import other\n"
        f"from zeusrun.view.other import {names}\n{submit}",
        "view/other.py": OTHER,
        "view/third.py": "def end(): pass",
    }
    walked = walk({name: ast.parse(text) for name, text in modules.items()})
    assert walked == Walk(files=3, stops=3, returns=0)


def test_a_walk_counts_who_is_visited_again():
    text = "from zeusrun.view.other import help_out\n"
    text += "def submit(): help_out(); inside()\ndef inside(): pass"
    modules = {"launcher/attempts/recurrence.py": text, "view/other.py": "def help_out(): pass"}
    walked = walk({name: ast.parse(text) for name, text in modules.items()})
    assert walked == Walk(files=2, stops=3, returns=1)
