"""The console: what others wrote is printed, and not obeyed."""

from __future__ import annotations

import io

from rich.text import Text

from tests.factories import REACHED, build_trial
from zeusrun.launcher.events import Printed
from zeusrun.view.console import PlainConsole, plain_table
from zeusrun.view.live import SubmitView
from zeusrun.view.tables import trial_sheet

TITLE = "\x1b]0;not yours\x1b\\"

TERMINAL = {"force_terminal": True, "color_system": "standard"}


def printed(renderable, **how):
    console = PlainConsole(file=io.StringIO(), width=40, **how)
    console.print(renderable)
    return console.file.getvalue()


def test_styles_are_obeyed_and_texts_are_not():
    seen = printed(Text(f"{TITLE}a\x1b[2Jb\u202e", style="red"), **TERMINAL)
    assert seen == "\x1b[31mab\\u202e\x1b[0m\n"


def test_the_columns_of_a_table_stay_in_line():
    table = plain_table()
    table.add_column("name")
    table.add_column("value")
    table.add_row(Text(f"{TITLE}metric"), "1")
    table.add_row("loss", "2")
    *_, first, second = printed(table).splitlines()
    assert first.index("1") == second.index("2")


def test_the_sheet_of_a_trial_holds_nothing_to_obey():
    trial = build_trial(metric=f"{TITLE}loss", gpu_model="\x1b[5mGPU", gpu_count=1)
    outcome = vars(REACHED) | {"reason": f"{TITLE}done", "warnings": ("\x9b2J",)}
    seen = printed(trial_sheet(trial.finish(type(REACHED)(**outcome)), TITLE, run_dir_exists=True))
    assert "\x1b" not in seen
    assert "\x9b" not in seen
    assert "done" in seen


def test_lines_of_ranks_keep_their_colours_only():
    console = PlainConsole(file=io.StringIO(), width=60, **TERMINAL)
    with SubmitView(console, quiet=False) as view:
        view.show(Printed(0, (f"{TITLE}\x1b[32mgreen\x1b[0m\x1b[2K", "\x9b31m")))
    seen = console.file.getvalue()
    assert "\x1b[32mgreen\x1b[0m\n" in seen
    assert "not yours" not in seen
    assert r"\x9b31m" in seen
