"""What is said of a training that changes between its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import build_trial
from zeusrun.bandit.eras import (
    Change,
    compare_training,
    continue_training,
    describe_eras,
    find_differences,
)
from zeusrun.bandit.proof import changed_parts
from zeusrun.launcher.supervision.verdict import find_reporting
from zeusrun.trial import CurvePoint, TrialStatus

REACHED = TrialStatus.REACHED


def runs(scripts, status=REACHED, part="script"):
    """Finished runs, one a recurrence, whose part had these values; ``.`` is unknown."""
    return [
        build_trial(n, status=status, fingerprint=None if each == "." else {part: each})
        for n, each in enumerate(scripts, 1)
    ]


def told(now, trials, part="script"):
    return describe_eras(compare_training({part: now}, trials), "train.py")


def test_nothing_is_said_of_a_training_as_before():
    assert told("a", []) == told("a", runs("aaa")) == told("a", runs("..")) == []


def test_a_change_is_dated_by_the_last_run_with_another_fingerprint():
    assert told("b", runs("aa")) == [
        "train.py changed since run 2; the next runs will show how far earlier ones count"
    ]
    assert compare_training({"script": "b"}, runs("aa.")).changes == (Change("script", 2),)


@pytest.mark.parametrize(
    ("part", "name"), [("args", "the arguments"), ("env", "the variables in env")]
)
def test_each_part_that_changed_has_a_sentence(part, name):
    trials = runs("a", part=part)
    then = "changed since run 1; the next runs will show how far earlier ones count"
    assert told("b", trials, part) == [f"{name} {then}"]
    both = {"script": "a", part: "a"}
    eras = compare_training({"script": "b", part: "b"}, [replace(trials[0], fingerprint=both)])
    assert describe_eras(eras, "train.py") == [f"train.py {then}", f"{name} {then}"]


def test_of_learning_keys_the_other_sentences_say_what_still_counts():
    (sentence,) = told("b", runs("a", part="learning"), "learning")
    assert sentence.endswith("of the job file changed since run 1")


def test_unfinished_runs_and_unknown_parts_are_not_compared():
    running = runs("a", TrialStatus.DISPATCHED)
    assert told("b", running) == told("b", runs("a", part="args")) == []


def test_a_part_that_changes_nearly_every_run_is_ignored_and_that_is_said_once():
    dates = "abcdefgh"
    said = [told(now, runs(dates[:n]), "script") for n, now in enumerate(dates)]
    assert [len(each) for each in said] == [0, 1, 1, 1, 0, 0, 0, 0]
    assert said[3] == ["train.py changed in nearly every run; from now on zeusrun ignores this"]
    assert compare_training({"script": "h"}, runs(dates[:7])).ignored == {"script"}


def test_three_edits_of_a_script_that_seldom_changes_count():
    edits = compare_training({"script": "d"}, runs("a" * 15 + "bc"))
    assert not edits.ignored
    assert [change.part for change in edits.changes] == ["script"]


def test_two_runs_of_one_day_leave_a_date_ignored():
    assert compare_training({"script": "e"}, runs("abcdd")).ignored == {"script"}


def test_a_part_that_stays_again_is_announced_again():
    assert told("e", runs("abcddddd")) == [
        "train.py changed since run 8; the next runs will show how far earlier ones count"
    ]


def test_a_part_is_not_said_to_be_ignored_a_second_time():
    assert told("h", runs("abcdddddfg")) == []


def test_attempts_of_one_recurrence_count_as_one_run():
    attempts = [build_trial(1, n, status=REACHED, fingerprint={"script": "a"}) for n in (1, 2, 3)]
    later = [
        build_trial(n, status=REACHED, fingerprint={"script": x}) for n, x in ((2, "b"), (3, "c"))
    ]
    assert compare_training({"script": "d"}, [*attempts, *later]).ignored == {"script"}


def test_a_trial_that_changed_while_it_was_preempted_counts_as_it_ended():
    trials = runs(["a", "a+b"])
    assert told("b", trials) == []
    assert changed_parts(trials[1]) == ["script"]


@pytest.mark.parametrize(
    ("then", "differ"),
    [
        ("..", "  "),  # nothing is known: as today
        ("..aa", "aaaa"),  # runs of an earlier zeusrun are those of the first known training
        (".a.b.", "aa   "),
        ("a.b.a.", "a  aa "),
    ],
)
def test_a_run_whose_training_is_unknown_counts_as_the_next_known_one(then, differ):
    found = find_differences(runs(then), {"script": "b"})
    assert found == [None if each == " " else f"script:{each}" for each in differ]


def test_before_a_trial_that_changed_while_it_was_preempted_its_first_hash_held():
    old, mixed = runs(["."])[0], build_trial(2, status=REACHED, fingerprint={"script": "a+b"})
    assert find_differences([old, mixed], {"script": "b"}) == ["script:a", None]


def preempted(fingerprint, **changes):
    status = TrialStatus.PREEMPTED
    return build_trial(status=status, fingerprint=fingerprint, **{"time_s": 2.0, **changes})


def test_a_trial_that_continues_has_its_first_and_its_last_hash():
    before = preempted({"script": "a", "args": "x", "env": "e"}, warnings=("hot",))
    now = {"script": "b", "args": "y", "learning": "l"}
    edited, warning = continue_training(before, now, {"args"}, "train.py")
    assert edited.fingerprint == {"script": "a+b", "args": "x", "env": "e", "learning": "l"}
    assert changed_parts(edited) == ["script"]
    assert edited.warnings == ("hot", warning)
    assert warning == (
        "train.py changed while job-1-1 was preempted; it is continued, but only its speed counts "
        "for later choices"
    )
    assert continue_training(edited, {"script": "b"}, (), "train.py") == (edited, None)
    again, _ = continue_training(edited, {"script": "c"}, (), "train.py")
    assert again.fingerprint["script"] == "a+c"


def test_a_trial_that_continues_as_it_was_does_not_change():
    before = preempted({"script": "a"})
    assert continue_training(before, {"script": "a"}, (), "train.py") == (before, None)
    assert continue_training(preempted(None), {"script": "a"}, (), "x.py") == (
        preempted(None),
        None,
    )


def test_a_trial_that_had_not_begun_to_train_has_todays_fingerprint():
    after = preempted({"script": "b"}, time_s=None)
    before = preempted({"script": "a"}, time_s=None)
    assert continue_training(before, {"script": "b"}, (), "train.py") == (after, None)


def test_a_metric_that_another_batch_size_reported_is_found_within_the_training():
    curve = (CurvePoint(1, 2.0, None, 0.4),)
    known = {"curve": curve, "fingerprint": {"script": "a"}}
    own = build_trial(5, global_batch_size=16, fingerprint={"script": "a"})
    four = build_trial(1, status=REACHED, global_batch_size=4, **known)
    assert find_reporting(own, [four]) == four
    others = [
        replace(four, fingerprint={"script": "b"}),
        replace(four, metric="loss"),
        replace(four, curve=()),
        replace(four, observed_batch_size=8),
        replace(four, forgotten=True),
        replace(four, variant="grow"),
    ]
    assert find_reporting(own, others) is None
    same_size = build_trial(2, status=REACHED, global_batch_size=16, **known)
    assert find_reporting(own, [four, same_size]) is None  # its batch size is no cause
