"""The section ``loader`` of a job file, and what the next run is told of earlier ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.factories import build_trial
from tests.jobfile.test_spec import MINIMAL
from zeusrun.choice.problem import find_speed_variant
from zeusrun.errors import JobFileError
from zeusrun.jobfile.plugged import Chosen
from zeusrun.jobfile.spec import load_spec
from zeusrun.lever import LOADER_WORKERS, Lever
from zeusrun.trial.values import WorkersChange


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "train.py").write_text("")

    def load(loader, more=""):
        path = tmp_path / "job.yaml"
        path.write_text(f"{MINIMAL}{more}loader: {loader}\n")
        return load_spec(path)

    return load


@pytest.mark.parametrize(
    ("loader", "variant"),
    [
        ("{}", None),
        ("{workers: script}", None),
        ("{workers: tune, max_workers: 3}", "tune"),
        ("{workers: 4}", "4"),
    ],
)
def test_each_way_to_get_workers_is_compared_with_itself(spec, loader, variant):
    loaded = spec(loader)
    assert find_speed_variant(loaded) == variant
    assert loaded.variant is None  # the epochs of others count
    every_key = json.dumps(loaded.loader.model_dump())  # as in the job.yaml of a run
    assert spec(every_key).loader == loaded.loader


@pytest.mark.parametrize(
    ("loader", "more", "problem"),
    [
        ("{workers: 0}", "", "must be script, tune or a number from 1 to 1024, not 0"),
        ("{workers: -2}", "", "not -2"),
        ("{workers: 5000}", "", "not 5000"),
        ("{workers: [2]}", "", "not [2]"),
        ("{workers: many}", "", "'loader.workers'"),
        ("{workers: 2.5}", "", "'loader.workers'"),
        ("{workers: true}", "", "'loader.workers'"),
        ("{workers: null}", "", "'loader.workers'"),
        ("{workers: tune, max_workers: 0}", "", "'loader.max_workers'"),
        ("{wokers: tune}", "", "workers"),
        ("{workers: tune}", "instrument: false\nmetrics: {a: {file: a.csv}}\n", "instrument"),
        (
            "{workers: tune}",
            "launch: {nproc_per_node: 1}\nelastic: {max: 2}\n",
            "cannot be used together with 'elastic'",
        ),
    ],
)
def test_a_wrong_value_is_told_in_a_sentence(spec, loader, more, problem):
    with pytest.raises(JobFileError) as refused:
        spec(loader, more)
    assert problem in str(refused.value)
    assert "\n\n" not in str(refused.value)


FAST = WorkersChange(3.0, 4, True, 0.01, 0.2)
CHANGES = (WorkersChange(0.0, 2, False, 0.03, 0.8), FAST, WorkersChange(9.0, 8, False))


def told(spec, *earlier, **changes):
    trial = build_trial(host="a", **changes)
    section = spec("{workers: tune}").loader
    return section.tell(Chosen(None, trial, None, earlier))["loader"]


def test_the_next_run_begins_with_the_fastest_of_the_newest_run_on_this_machine(spec):
    known = build_trial(host="a", workers=CHANGES)
    assert known.lever == Lever(LOADER_WORKERS, 4)
    assert told(spec, known)["start"] == [4, True, 0.2]
    slow = replace(known, workers=(WorkersChange(0.0, 1, False, 0.5, 0.9),))
    assert told(spec, known, slow)["start"] == [1, False, 0.9]
    assert told(spec, known, build_trial(host="a"))["start"] == [4, True, 0.2]
    for other in (replace(known, host="b"), replace(known, gpu_count=1)):
        assert told(spec, other)["start"] is None
    assert told(spec)["start"] is None
    assert build_trial().lever is None


def test_numbers_of_which_a_worker_died_are_never_tried_again_on_this_machine(spec):
    died = build_trial(host="a", workers=(*CHANGES, WorkersChange(5.0, 8, False, died=True)))
    assert told(spec, died, build_trial(host="a"))["never"] == [8]
    assert told(spec, replace(died, host="b"))["never"] == []


def test_the_ranks_are_told_nothing_if_the_script_decides(spec):
    assert spec("{}").loader.tell(Chosen(None, build_trial(), None)) == {}


def test_the_next_run_is_explained_in_a_sentence(spec):
    hardware = build_trial().hardware
    tuned = spec("{workers: tune}").loader
    text = tuned.explain([build_trial(workers=CHANGES)], hardware)
    assert text == (
        "the next run begins with 4 loader workers that stay, the fastest of an earlier run: "
        "20% of the time waited for data"
    )
    assert "of the script, and tries others" in tuned.explain([], hardware)
    assert spec("{workers: 4}").loader.explain([], hardware) is None
