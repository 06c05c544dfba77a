"""The package stays small, and one submit short to follow."""

from __future__ import annotations

import textwrap

from tests.size import START, Walk, count_code, walk


def test_only_lines_with_code_count(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""A docstring\nof two lines."""\n\n# a comment\nx = (\n    1\n)  # and another\n'
    )
    assert count_code(path) == 3


def test_a_walk_follows_names_imports_constructors_and_annotations(tmp_path):
    launcher = tmp_path / "launcher"
    launcher.mkdir()
    (launcher / "recurrence.py").write_text(
        textwrap.dedent("""
            from zeusrun.launcher.other import Owner, help_out

            def submit(owner: Owner):
                owner.act()
                help_out()
                inside()

            def inside():
                Owner().act()
        """)
    )
    (launcher / "other.py").write_text(
        textwrap.dedent("""
            class Owner:
                def act(self):
                    self._more()

                def _more(self):
                    pass

            def help_out():
                pass
        """)
    )
    assert walk(tmp_path, START) == Walk(files=2, stops=3, returns=1)
