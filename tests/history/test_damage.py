"""A file that is not a history: kept, named, and its last good copy offered."""

from __future__ import annotations

import json
import os
import re
import threading

import pytest

from tests.contracts.history import REACHED, begin, build_trial
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.schema import SCHEMA
from zeusrun.history.tinydb.store import TinyDBHistory

HEADER = {"meta": {"1": {"schema": 1}}}
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
    "schema of a wrong type": b'{"meta": {"1": {"schema": true}}, "trials": {}}',
    "no trials": json.dumps(HEADER).encode(),
    "trials as a list": json.dumps({**HEADER, "trials": [RECORD]}).encode(),
    "a trial that is none": with_trials(_1={"trial": "digits-1-1"}).encode(),
    "a number that is none": with_trials(_1={**RECORD, "cost_j": "cheap"}).encode(),
    "a bad curve": with_trials(_1={**RECORD, "curve": [[1, "x", None, 0.5]]}).encode(),
    "NaN": with_trials(_1={**RECORD, "cost_j": float("nan")}).encode(),
    "infinite": with_trials(_1={**RECORD, "cost_j": 7e99}).encode().replace(b"e+99", b"e+999"),
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
def test_a_damaged_file_is_set_aside_unchanged_and_named(history, path, content):
    path.write_bytes(content)
    message = refusal(history.trials, "digits")
    (aside,) = path.parent.glob("digits.json.corrupt-*")
    assert re.fullmatch(r"digits\.json\.corrupt-\d{8}T\d{6}Z", aside.name)
    assert str(aside) in message
    assert aside.read_bytes() == content
    assert not path.exists()


@pytest.mark.parametrize("use", ["trials", "find", "begin", "finish"])
def test_every_use_of_a_damaged_file_offers_its_last_good_copy(history, path, use):
    copy = path.with_name("digits.json.bak")
    os.utime(copy, (1748779200, 1748779200))
    path.write_bytes(b"{")
    message = refusal(*uses(history)[use])
    assert "1 trial and is of 2025-06-01 12:00:00 UTC" in message
    assert "`zeusrun repair --restore digits` goes on from it" in message


@pytest.mark.parametrize("use", ["trials", "find", "begin", "finish"])
def test_while_only_the_copy_is_left_the_offer_is_repeated(history, path, use):
    path.write_bytes(b"{")
    first = refusal(history.trials, "digits")
    again = refusal(*uses(history)[use])
    assert "is missing" in again
    assert first[first.index("its last good copy") :] in again
    assert str(next(path.parent.glob("*.corrupt-*"))) in again
    assert history.jobs() == ["digits"]
    assert len(list(path.parent.glob("*.corrupt-*"))) == 1


def test_the_offered_restore_goes_on_from_the_copy(history, path):
    path.write_bytes(b"")
    refusal(history.trials, "digits")
    history.restore("digits", [])
    assert history.trials("digits") == [build_trial(1).finish(REACHED)]
    assert begin(history).recurrence == 2


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


def test_without_a_copy_the_next_run_starts_afresh(tmp_path, path):
    history = TinyDBHistory(tmp_path)
    begin(history)
    path.write_bytes(b"{")
    message = refusal(history.trials, "digits")
    assert "no earlier copy" in message
    assert "the next run starts a fresh history" in message
    assert begin(history).recurrence == 1


def test_a_damaged_copy_is_set_aside_too_and_the_next_run_starts_afresh(history, path):
    copy = path.with_name("digits.json.bak")
    path.write_bytes(b"{")
    copy.write_bytes(b"[")
    message = refusal(history.trials, "digits")
    (aside,) = path.parent.glob("digits.json.bak.corrupt-*")
    assert f"copy digits.json.bak is damaged, too (it is not JSON: {message_of(b'[')})" in message
    assert str(aside) in message
    assert aside.read_bytes() == b"["
    assert begin(history).recurrence == 1


def message_of(content):
    with pytest.raises(json.JSONDecodeError) as info:
        json.loads(content)
    return str(info.value)


def test_a_copy_of_a_newer_schema_is_kept(history, path):
    copy = path.with_name("digits.json.bak")
    path.write_bytes(b"{")
    copy.write_text(json.dumps({"meta": {"1": {"schema": SCHEMA + 1}}}))
    for _ in range(2):
        message = refusal(begin, history)
        assert "newer zeusrun" in message
        assert "starts a fresh history" not in message
    assert copy.exists()


def test_a_second_damage_in_the_same_second_overwrites_nothing(history, path):
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        refusal(history.trials, "digits")
    kept = {aside.read_bytes() for aside in path.parent.glob("digits.json.corrupt-*")}
    assert kept == {b"first", b"second", b"third"}


def test_a_file_that_is_damaged_while_a_trial_is_chosen_is_set_aside(history, path):
    version = history.snapshot("digits").version
    path.write_bytes(b"{")
    message = refusal(lambda: history.begin(build_trial(3), after=version))
    assert "was set aside" in message
    assert "its last good copy has 1 trial" in message


def test_damage_in_one_job_leaves_the_others_alone(history, path):
    begin(history, build_trial(job="other"))
    path.write_bytes(b"{")
    refusal(history.trials, "digits")
    assert history.finish("other-1-1", REACHED) == history.find("other-1-1")


def test_a_field_no_reader_knows_that_cannot_be_rewritten_is_damage(history, path):
    content = path.read_bytes().replace(b'"steps":84', b'"steps":84,"later":1e999')
    path.write_bytes(content)
    assert len(history.trials("digits")) == 2
    refusal(begin, history)
    (aside,) = path.parent.glob("digits.json.corrupt-*")
    assert aside.read_bytes() == content


def test_many_readers_of_a_damaged_file_set_it_aside_once(history, path):
    path.write_bytes(b"{")
    start = threading.Barrier(8)
    messages = []

    def read():
        start.wait()
        messages.append(refusal(history.trials, "digits"))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == 8
    assert sum("is damaged" in message for message in messages) == 1
    assert all("its last good copy has 1 trial " in message for message in messages)
    assert [aside.read_bytes() for aside in path.parent.glob("*.corrupt-*")] == [b"{"]
