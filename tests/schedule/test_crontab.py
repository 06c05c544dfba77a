"""The entry in a crontab: whatever else is there stays as it is, byte for byte."""

from __future__ import annotations

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import shebang
from tests.schedule import fake_crontab
from tests.schedule.model import AT
from tests.schedule.ticks import tick
from zeusrun.errors import LaunchError, UsageError
from zeusrun.schedule import crontab as crontabs
from zeusrun.schedule.crontab import (
    add_entry,
    build_command,
    find_entry,
    find_neglect,
    install,
    marker,
    read_crontab,
    remove_entry,
    uninstall,
    write_crontab,
)

crontab = fake_crontab.crontab
HOME = Path("/home/me/zeusrun")
COMMAND = build_command("/venv/bin/python", HOME)
LINES = st.one_of(
    st.sampled_from(
        [
            "",
            "# a comment, zeusrun schedule tick",
            "  # indented",
            "MAILTO=me@example.org",
            "FOO = 'a b'",
            "PATH=/usr/bin:/bin",
            "0  2 * * *   cmd --with 'two  spaces' # and a comment",
            "*/5 * * * *\tdate +\\%F",
            "@daily backup",
            "@reboot start",
            "this line is wrong",
            "0 2 * * * torchrun train.py\r",
            marker(Path("/another/home")).decode(),
            build_command("/venv/bin/python", Path("/another/home")),
        ]
    ),
    st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=40),
)
CRONTABS = st.builds(
    lambda lines, end: ("\n".join(lines) + end).encode(),
    st.lists(LINES, max_size=8),
    st.sampled_from(["", "\n", "\n\n"]),
)


@given(CRONTABS)
def test_what_is_installed_and_removed_again_leaves_a_crontab_as_it_was(text):
    installed = install(text, HOME, COMMAND)
    ended = text if not text or text.endswith(b"\n") else text + b"\n"  # as cron requires
    assert installed.startswith(ended)
    assert uninstall(installed, HOME) == ended
    assert install(installed, HOME, COMMAND) == installed
    other = build_command("/other/bin/python", HOME)
    changed = install(installed, HOME, other)
    assert changed == installed.replace(COMMAND.encode(), other.encode())
    assert uninstall(changed, HOME) == ended


@given(CRONTABS, CRONTABS)
def test_what_was_added_after_it_stays_too(text, later):
    installed = install(text, HOME, COMMAND) + later
    ended = text if not text or text.endswith(b"\n") else text + b"\n"
    assert uninstall(installed, HOME) == ended + later


@given(CRONTABS)
def test_where_nothing_is_installed_nothing_is_removed(text):
    assert uninstall(text, HOME) == text


def test_two_homes_have_an_entry_each():
    other = Path("/home/me/zeusrun2")
    both = install(install(b"", HOME, COMMAND), other, build_command("/venv/bin/python", other))
    assert both.count(b"schedule tick") == 2
    assert uninstall(both, HOME) == install(b"", other, build_command("/venv/bin/python", other))


def test_an_entry_whose_command_was_taken_out_by_hand_is_made_again():
    alone = marker(HOME) + b"\n0 1 * * * mine\n"
    assert install(alone, HOME, COMMAND) == install(b"", HOME, COMMAND) + b"0 1 * * * mine\n"


@pytest.mark.parametrize("home", ["/home/me", "/home/my home/50% 'of' it", "/h/$HOME/`x`;rm"])
def test_the_command_means_the_same_to_a_shell_whatever_the_paths_hold(home, tmp_path):
    tells = tmp_path / 'tells its % "arguments"'
    tells.write_text(
        f"{shebang()}import os, sys\nprint([os.environ['ZEUSRUN_HOME'], *sys.argv[1:]])"
    )
    tells.chmod(0o700)
    line = build_command(str(tells), Path(home), ["PYTHONPATH=/a b"])
    assert line.startswith("* * * * * ")
    # As cron does it: an unescaped % ends the command, the rest goes to the shell.
    command = line.removeprefix("* * * * * ").replace(r"\%", "%")
    assert "%" not in line.replace(r"\%", "")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([home, "-m", "zeusrun", "schedule", "tick"])
    assert shlex.split(command)[0] == "cd"


@pytest.mark.parametrize(
    ("python", "home", "variable", "named"),
    [
        ("/python", "/home/me\n* * * * * evil", "A=b", r"'ZEUSRUN_HOME=/home/me\\n\* "),
        ("/bin/\r/python", "/home/me", "A=b", r"'/bin/\\r/python': "),
        ("/python", "/home/me", "PYTHONPATH=/a\n/b", r"'PYTHONPATH=/a\\n/b': "),
    ],
)
def test_what_would_make_lines_of_its_own_is_refused(python, home, variable, named):
    with pytest.raises(UsageError, match=named + ".*a crontab cannot contain"):
        build_command(python, Path(home), [variable])


def test_a_path_of_any_bytes_is_written_as_it_is():
    home = Path(os.fsdecode(b"/home/\xff"))
    command = build_command("/python", home)
    assert b"'ZEUSRUN_HOME=/home/\xff'" in install(b"", home, command)


def test_where_there_was_no_crontab_there_is_none_again(crontab):
    assert read_crontab() == b""
    write_crontab(install(b"", HOME, COMMAND))
    assert crontab.read_bytes() == install(b"", HOME, COMMAND)
    write_crontab(uninstall(read_crontab(), HOME))
    assert not crontab.exists()


def test_only_the_own_entry_is_found(crontab):
    other = Path("/home/me/zeusrun2")
    assert find_entry(HOME) == []
    crontab.write_text("0 3 * * * true\n")
    add_entry(other, COMMAND)
    assert find_entry(HOME) == []
    add_entry(HOME, COMMAND)
    assert find_entry(HOME) == [marker(HOME).decode(), COMMAND]
    remove_entry(HOME)
    assert find_entry(HOME) == []


def test_in_the_second_in_which_cron_reads_nothing_is_changed(crontab, monkeypatch):
    waited = []

    def edit_meanwhile(seconds):
        waited.append(seconds)
        if seconds:
            crontab.write_bytes(b"# another one's\n")

    monkeypatch.setattr("zeusrun.schedule.crontab.time.sleep", edit_meanwhile)
    monkeypatch.setattr("zeusrun.schedule.crontab.read_clock", lambda: 6_000_000_000.5)
    add_entry(HOME, COMMAND)
    assert waited == [1.5]
    assert crontab.read_bytes().startswith(b"# another one's\n# zeusrun: ")
    add_entry(HOME, COMMAND)  # which changes nothing
    monkeypatch.setattr("zeusrun.schedule.crontab.read_clock", lambda: 6_000_000_030.0)
    remove_entry(HOME)
    assert waited == [1.5, 0.0]


def test_entries_that_several_homes_add_at_once_are_all_there(crontab):
    homes = [Path(f"/home/me/{number}") for number in range(8)]
    with ThreadPoolExecutor(len(homes)) as pool:
        list(pool.map(lambda home: add_entry(home, COMMAND), homes))
    assert all(marker(home) in crontab.read_bytes() for home in homes)
    with ThreadPoolExecutor(len(homes)) as pool:
        list(pool.map(remove_entry, homes))
    assert not crontab.exists()


@pytest.mark.parametrize("overwrites", [1, 4, 9])
def test_what_another_editor_overwrites_is_written_again(crontab, monkeypatch, overwrites):
    left = iter(range(overwrites))

    def write_late(text):
        write_crontab(text)
        if next(left, None) is not None:
            crontab.write_bytes(b"# another one's\n")

    monkeypatch.setattr(crontabs, "write_crontab", write_late)
    monkeypatch.setattr("zeusrun.schedule.crontab.read_clock", lambda: 6_000_000_030.0)
    if overwrites < 5:
        add_entry(HOME, COMMAND)
        assert crontab.read_bytes() == install(b"# another one's\n", HOME, COMMAND)
    else:
        with pytest.raises(
            LaunchError, match="the crontab keeps no change: another program writes it"
        ):
            add_entry(HOME, COMMAND)


@pytest.mark.skipif(os.getuid() == 0, reason="root may open every file")
def test_a_lock_of_another_user_in_the_way_is_no_reason_to_fail(crontab, tmp_path):
    (tmp_path / f"zeusrun-crontab-{os.getuid()}.lock").touch(mode=0)
    add_entry(HOME, COMMAND)
    assert marker(HOME) in crontab.read_bytes()


def test_a_crontab_that_refuses_is_told_in_its_own_words(crontab):
    refusing = Path(crontab.parent / "bin" / "crontab")
    refusing.write_text(
        "#!/bin/sh\necho 'you (me) are not allowed to use this program' >&2\nexit 1\n"
    )
    with pytest.raises(LaunchError, match=r"cannot be read: you .me. are not allowed"):
        read_crontab()
    with pytest.raises(LaunchError, match=r"the crontab did not change: you .me. are not allowed"):
        write_crontab(b"x\n")


def test_without_crontab_what_to_do_instead_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError, match="there is no crontab here; run `zeusrun schedule daemon`"
    ):
        read_crontab()


@pytest.fixture
def read_as(monkeypatch, schedules):
    """Say what the crontab holds, and which processes there are."""

    def use(text=None, names=("cron",)):
        entry = marker(schedules.directory.parent) if text is None else text
        monkeypatch.setattr(crontabs, "read_crontab", lambda: entry)
        found = [type("P", (), {"info": {"name": name}}) for name in names]
        monkeypatch.setattr(crontabs.psutil, "process_iter", lambda _what: found)

    return use


def beat(schedules, at):
    tick(schedules, AT)
    os.utime(schedules.heartbeat, (at, at))


def test_a_tick_that_came_lately_is_enough(schedules, nightly, read_as):
    read_as(b"", ())
    nightly()
    beat(schedules, AT)
    assert find_neglect(schedules, AT + 100) is None


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (
            (b"", ["cron"]),
            "the crontab has no entry of zeusrun; `zeusrun schedule add JOB.yaml` adds it",
        ),
        ((None, ["bash"]), "no cron daemon runs here; start it"),
        ((None, ["cron"]), "though cron runs; see the log of cron"),
    ],
)
def test_why_nothing_is_started_is_told(schedules, nightly, read_as, world, said):
    read_as(*world)
    nightly()
    beat(schedules, AT)
    what, advice = find_neglect(schedules, AT + 1000)
    assert what.startswith("nothing")
    assert said in f"{what}; {advice}"
    assert "since 20" in what
    assert advice


def test_cron_gets_its_minute(schedules, nightly, read_as):
    read_as()
    nightly()
    assert find_neglect(schedules, AT) is None
