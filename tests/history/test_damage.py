"""A damaged history is refused and left alone, until it is restored."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from tests.contracts.history import REACHED, begin, build_trial
from tests.history.tables import read_plain, write_plain
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.tinydb import storage
from zeusrun.history.tinydb.store import TinyDBHistory

HEADER = {"meta": {"1": {"version": 1}}}
RECORD = build_trial(1).to_json()


def with_trials(**trials):
    return json.dumps({**HEADER, "trials": {key.strip("_"): t for key, t in trials.items()}})


DAMAGES = {
    "empty": b"",
    "blank": b" \n",
    "zeros": b"\0" * 512,
    "not UTF-8": b'{"meta": "\xff\xfe"}',
    "truncated": with_trials(_1=RECORD).encode()[:-40],
    "another JSON": b"[1, 2]",
    "no header": b'{"trials": {}}',
    "version of a wrong type": b'{"meta": {"1": {"version": true}}, "trials": {}}',
    "no trials": json.dumps(HEADER).encode(),
    "trials as a list": json.dumps({**HEADER, "trials": [RECORD]}).encode(),
    "a trial that is none": with_trials(_1={"trial": "digits-1-1"}).encode(),
    "a number that is none": with_trials(_1={**RECORD, "cost_j": "cheap"}).encode(),
    "a bad curve": with_trials(_1={**RECORD, "curve": [[1, "x", None, 0.5]]}).encode(),
    "NaN": with_trials(_1={**RECORD, "cost_j": float("nan")}).encode(),
    "infinite": with_trials(_1={**RECORD, "cost_j": 7e99}).encode().replace(b"e+99", b"e+999"),
    "a negative time": with_trials(_1={**RECORD, "time_s": -5.0}).encode(),
    "a negative time in a curve": with_trials(
        _1={**RECORD, "curve": [[1, -2.0, None, 0.5]]}
    ).encode(),
    "the same trial twice": with_trials(_1=RECORD, _2=RECORD).encode(),
    "a trial of another job": with_trials(_1={**RECORD, "job": "mnist"}).encode(),
    "a record without number": with_trials(x=RECORD).encode(),
}


@pytest.fixture
def history(tmp_path):
    """A history of two trials, the second begun and written last, so the copy has one."""
    history = TinyDBHistory(tmp_path)
    begin(history)
    history.finish("digits-1-1", REACHED)
    begin(history)
    return history


@pytest.fixture
def path(tmp_path):
    return tmp_path / "digits.json"


def refusal(use, *arguments):
    with pytest.raises(HistoryError) as info:
        use(*arguments)
    assert info.value.exit_code is ExitCode.HISTORY
    assert "\n" not in str(info.value)
    return str(info.value)


def uses(history):
    return {
        "trials": (history.trials, "digits"),
        "find": (history.find, "digits-1-1"),
        "begin": (begin, history),
        "finish": (history.finish, "digits-2-1", REACHED),
    }


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_named_and_left_alone_until_it_is_restored(history, path, content):
    path.write_bytes(content)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    message = refusal(history.trials, "digits")
    assert f"the history {path} is damaged" in message
    assert before == {file: file.read_bytes() for file in path.parent.iterdir()}
    done = history.restore("digits", [])
    assert re.fullmatch(r"digits\.json\.corrupt-\d{8}T\d{6}Z", done.aside.name)
    assert done.aside.read_bytes() == content
    assert history.trials("digits") == [build_trial(1).finish(REACHED)]
    assert begin(history).recurrence == 2


@pytest.mark.parametrize("use", ["trials", "find", "begin", "finish"])
def test_every_use_of_a_damaged_file_says_how_to_rebuild_it(history, path, use):
    path.write_bytes(b"{")
    message = refusal(*uses(history)[use])
    assert "`zeusrun repair --restore digits` sets aside what is damaged" in message
    assert path.read_bytes() == b"{"


@pytest.mark.parametrize("use", ["trials", "find", "begin", "finish"])
def test_while_only_the_copy_is_left_every_use_is_refused(history, path, use):
    path.unlink()
    assert "it is missing" in refusal(*uses(history)[use])
    assert history.jobs() == ["digits"]


@pytest.mark.parametrize("left", ["digits.json.bak", "digits.volumes/000001.json"])
def test_while_anything_is_left_no_fresh_history_hides_it(history, path, left):
    content = path.read_bytes()
    for file in path.parent.iterdir():
        file.unlink()
    target = path.parent / left
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
    assert history.jobs() == ["digits"]
    assert "is missing" in refusal(history.trials, "digits")
    refusal(begin, history)
    history.restore("digits", [])
    assert len(history.trials("digits")) == 2


def test_a_damaged_copy_is_set_aside_too_and_the_history_starts_afresh(history, path):
    copy = path.with_name("digits.json.bak")
    path.write_bytes(b"{")
    copy.write_bytes(b"[")
    done = history.restore("digits", [])
    (aside,) = path.parent.glob("digits.json.bak.corrupt-*")
    assert any(f"{copy} was damaged: it is not JSON" in problem for problem in done.problems)
    assert aside.read_bytes() == b"["
    assert not copy.exists()
    assert begin(history).recurrence == 1


def test_a_second_damage_in_the_same_second_overwrites_nothing(history, path):
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        history.restore("digits", [])
    kept = {aside.read_bytes() for aside in path.parent.glob("digits.json.corrupt-*")}
    assert kept == {b"first", b"second", b"third"}


def test_a_file_that_is_damaged_while_a_trial_is_chosen_is_named(history, path):
    version = history.snapshot("digits").version
    path.write_bytes(b"{")
    message = refusal(lambda: history.begin(build_trial(3), after=version))
    assert "is damaged" in message


def test_damage_in_one_job_leaves_the_others_alone(history, path):
    begin(history, build_trial(job="other"))
    path.write_bytes(b"{")
    refusal(history.trials, "digits")
    assert history.finish("other-1-1", REACHED) == history.find("other-1-1")


def test_a_field_no_reader_knows_that_cannot_be_rewritten_is_damage(history, path):
    write_plain(path, read_plain(path))
    content = path.read_bytes().replace(b'"steps":84', b'"steps":84,"later":1e999')
    path.write_bytes(content)
    assert len(history.trials("digits")) == 2
    refusal(begin, history)
    assert path.read_bytes() == content
    assert history.restore("digits", []).aside.read_bytes() == content


def test_a_flipped_bit_never_goes_unnoticed(history, path):
    whole, content = history.trials("digits"), path.read_bytes()
    rng = random.Random(1)
    for _ in range(600):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            assert TinyDBHistory(path.parent).trials("digits") == whole  # white space
        except HistoryError as error:
            assert "is damaged: " in str(error)
            assert "repair --restore digits" in str(error)


def test_a_record_without_a_checksum_among_others_has_changed(history, path):
    content = path.read_bytes()
    assert content.count(b',"crc":') > 2
    for changed in (b',"crb":', b',"crc ":'):
        at = content.rindex(b',"crc":')
        path.write_bytes(content[:at] + changed + content[at + 7 :])
        refusal(history.trials, "digits")
    path.write_bytes(re.sub(rb',"crc":\d+', b"", content))  # as another program may write it
    assert len(history.trials("digits")) == 2


def test_an_empty_record_of_a_later_version_has_no_checksum_and_is_kept():
    tables = {"meta": {"1": {"version": 1}}, "trials": {}, "extra": {"1": {"a": 1}, "2": {}}}
    content = storage.encode_tables(tables)
    assert storage.read_tables(Path("digits.json"), content) == tables


def test_a_changed_record_is_taken_from_the_copy_or_the_run_directory_and_the_others_stay(
    history, path
):
    third = begin(history)
    before = history.trials("digits")
    content = path.read_bytes()
    changed = content.replace(b'"trial":"digits-1-1"', b'"trial":"digits-9-1"', 1)
    changed = changed.replace(b'"trial":"digits-3-1"', b'"trial":"digits-8-1"', 1)
    path.write_bytes(changed)
    refusal(history.trials, "digits")
    done = history.restore("digits", [third])
    assert history.trials("digits") == before
    assert (done.copy, done.found) == ("present", ("digits-3-1",))
    assert "these records have changed, and are left out: 1, 3" in done.problems[0]
    assert done.aside.read_bytes() == changed


def in_the_way(path, kind):
    path.unlink()
    if kind == "directory":
        path.mkdir()
        (path / "x").touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to(os.devnull)


KINDS = ["directory", "pipe", "circle", "socket", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_the_way_of_a_history_is_told_set_aside_and_restored(history, path, kind):
    begin(history)  # so that the copy has both
    whole = history.trials("digits")[:2]
    in_the_way(path, kind)
    for act in (lambda: history.trials("digits"), lambda: begin(history)):
        with pytest.raises(
            HistoryError, match="damaged: it is not a regular file; `zeusrun repair"
        ):
            act()
    done = history.restore("digits", [])
    assert history.trials("digits") == whole
    assert (done.copy, path.is_file(), path.is_symlink()) == ("bak", True, False)
    if kind == "directory":
        assert (done.aside / "x").exists()
    else:
        assert os.path.lexists(done.aside)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_the_way_of_the_copy_is_set_aside_with_it(history, path, kind):
    copy = path.with_name("digits.json.bak")
    in_the_way(copy, kind)
    path.write_bytes(b"{")
    done = history.restore("digits", [build_trial(1)])
    assert (done.copy, history.trials("digits")) == (None, [build_trial(1)])
    begin(history)
    assert copy.is_file()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_history_that_is_a_link_stays_one(history, path, tmp_path, dangling):
    there = tmp_path / "elsewhere" / "digits.json"
    there.parent.mkdir()
    path.rename(there)
    path.symlink_to(there)
    if dangling:
        there.unlink()
        path.with_name("digits.json.bak").unlink()
    begin(history)
    assert path.is_symlink()
    assert there.is_file()
    assert len(TinyDBHistory(path.parent).trials("digits")) == (1 if dangling else 3)
    assert sorted(each.name for each in there.parent.iterdir()) == ["digits.json"]


def test_a_link_to_another_disk_keeps_the_state_before_the_last_write(history, path):
    disks = [disk for disk in ("/dev/shm", "/var/tmp") if os.path.isdir(disk)]
    others = [disk for disk in disks if os.stat(disk).st_dev != os.stat(path).st_dev]
    if not others:
        pytest.skip("there is one disk here")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        there = Path(folder) / "digits.json"
        shutil.move(path, there)
        path.symlink_to(there)
        before = there.read_bytes()
        begin(history)
        assert path.with_name("digits.json.bak").read_bytes() == before
        path.unlink()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "directory"])
def test_what_is_in_the_way_of_the_turns_is_replaced(history, path, kind):
    turns = path.with_name("digits.json.turns")
    turns.touch()
    in_the_way(turns, kind)
    assert history.ask_turn("digits").number == 1
    assert turns.is_file()
