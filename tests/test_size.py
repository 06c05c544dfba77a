"""The package stays small, and one submit short to follow."""

from __future__ import annotations

import ast

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


def find_wrong(lines, budgets):
    """Return the parts whose budget must change, with the lines that they have."""
    return {part: lines[part] for part in lines if not 0 <= budgets[part] - lines[part] <= SLACK}


def test_no_part_has_more_lines_than_its_budget_and_no_budget_is_idle():
    lines = count_parts()
    assert lines.keys() == BUDGETS.keys()
    assert find_wrong(lines, BUDGETS) == {}
    one_more = {part: BUDGETS[part] + 1 for part in BUDGETS}
    assert find_wrong(one_more, BUDGETS) == one_more


def test_every_pattern_of_a_part_fits_a_module():
    for begin in (each for begins in PARTS.values() for each in begins):
        assert any(name.startswith(begin) for name in MODULES), begin


def test_a_reader_of_one_submit_visits_no_more_files_and_makes_no_more_stops():
    walked = walk(dict(trees()))
    assert all(now <= most for now, most in zip(walked, WALK_BUDGET, strict=True)), walked


def test_a_local_submit_loads_no_more_of_the_package_and_no_torch(tmp_path):
    names = find_loaded(tmp_path)
    assert "torch" not in names
    loaded = count_loaded(names)
    assert all(now <= most for now, most in zip(loaded, LOADED_BUDGET, strict=True)), loaded
    assert count_loaded({*names, "zeusrun.server.app"}).modules == loaded.modules + 1


def test_only_lines_with_code_count():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = (\n    1\n)  # and another\n'
    assert count_code(text, ast.parse(text)) == 3
    text = "x = f'''\n\n# {1}\n'''\n"
    assert count_code(text, ast.parse(text)) == 4


def test_a_walk_follows_names_imports_constructors_and_annotations():
    recurrence = """
from zeusrun.view.other import Owner, help_out

def submit(owner: Owner):
    owner.act()
    help_out()
    inside()

def inside():
    Owner().act()
"""
    other = """
class Owner:
    def act(self):
        self._more()

    def _more(self):
        pass

def help_out():
    pass
"""
    modules = {"launcher/recurrence.py": recurrence, "view/other.py": other}
    walked = walk({name: ast.parse(text) for name, text in modules.items()})
    assert walked == Walk(files=2, stops=3, returns=1)
