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
MEASURED = [[2, False, 0.03, 0.8], [4, True, 0.01, 0.2]]


def tuned(*workers, **changes):
    return build_trial(host="a", speed_variant="tune", workers=workers, **changes)


def told(spec, *earlier, section="{workers: tune}"):
    chosen = Chosen(None, build_trial(host="a"), None, earlier)
    return spec(section).loader.tell(chosen)["loader"]


def test_the_next_run_goes_on_with_what_runs_have_measured_on_this_machine(spec):
    known = tuned(*CHANGES[:2])
    assert told(spec, known)["start"] == [4, True, 0.2, None]
    assert sorted(told(spec, known)["measured"]) == MEASURED
    slow = tuned(WorkersChange(0.0, 1, False, 0.5, 0.9))
    both = told(spec, known, slow)
    assert (both["start"], len(both["measured"])) == ([4, True, 0.2, None], 3)
    assert told(spec, known, build_trial(host="a"))["start"] == [4, True, 0.2, None]
    for other in ({"host": "b"}, {"gpu_count": 1}, {"speed_variant": "2"}):
        assert told(spec, replace(known, **other))["start"] is None
    assert told(spec)["start"] is None


def test_what_was_not_measured_to_the_end_is_next(spec):
    found = told(spec, tuned(*CHANGES))
    assert found["start"] == [8, False, None, None]
    assert sorted(found["measured"]) == MEASURED
    again = tuned(WorkersChange(0.0, 8, False))  # it has ended too early, too
    assert told(spec, tuned(*CHANGES), again)["start"] == [8, False, None, None]
    crashed = tuned(FAST._replace(step_s=None, wait=None, settled="1 of 8"))
    assert told(spec, tuned(*CHANGES), crashed)["start"] == [4, True, 0.2, "1 of 8"]


def test_steps_of_another_batch_size_are_not_compared(spec):
    ended = FAST._replace(settled="1 of 8")
    other = tuned(ended, global_batch_size=64)
    found = told(spec, other)
    assert (found["start"], found["measured"]) == ([4, True, None, None], [])
    own = tuned(CHANGES[0], global_batch_size=32)
    both = told(spec, own, other)
    assert (both["start"], both["measured"]) == ([2, False, 0.8, None], MEASURED[:1])
    busy = tuned(ended, shared=True)  # other programs may have taken the cores
    assert (told(spec, busy)["start"], told(spec, busy)["measured"]) == ([4, True, None, None], [])
    died = tuned(WorkersChange(5.0, 3, False, died=True), global_batch_size=128)
    assert told(spec, other, died)["start"] is None


def test_the_best_is_that_at_which_the_search_has_ended(spec):
    ended = FAST._replace(time_s=12.0, workers=2, stays=False, step_s=0.0101, settled="1 of 8")
    assert told(spec, tuned(*CHANGES, ended))["start"] == [2, False, 0.2, "1 of 8"]
    assert tuned(*CHANGES, ended).best_workers == ended


def test_numbers_of_which_a_worker_died_and_larger_ones_are_never_tried_again(spec):
    died = tuned(*CHANGES, WorkersChange(5.0, 3, False, died=True))
    found = told(spec, tuned(*CHANGES), died, build_trial(host="a"))
    assert found["never"] == [3]
    assert found["start"] == [2, False, 0.8, None]
    assert found["measured"] == MEASURED[:1]
    assert told(spec, died, section="{workers: 3}")["never"] == [3]
    assert told(spec, replace(died, host="b"))["never"] == []
    assert "begins with 2 loader workers, and tries" in spec("{workers: tune}").loader.explain(
        [died], died.hardware
    )


def test_the_ranks_are_told_nothing_if_the_script_decides(spec):
    assert spec("{}").loader.tell(Chosen(None, build_trial(), None)) == {}


def test_the_next_run_is_explained_in_a_sentence(spec):
    hardware = build_trial().hardware
    section = spec("{workers: tune}").loader
    text = section.explain([tuned(*CHANGES[:2])], hardware)
    assert text == (
        "a run of batch size 32 begins with 4 loader workers that stay, and tries other numbers"
    )
    ended = tuned(*CHANGES[:1], FAST._replace(settled="1 of 8"))
    assert section.explain([ended], hardware) == (
        "a run of batch size 32 begins with 4 loader workers that stay, the best number: 20 % of "
        "the time waits for data"
    )
    one = tuned(WorkersChange(0.0, 1, False, 0.01, 0.0, settled="1 of 8"))
    assert "with 1 loader worker, the best number: 0 %" in section.explain([one], hardware)
    assert "of the script, and tries others" in section.explain([], hardware)
    left_alone = tuned(data_wait_s=3.0)
    assert "as they are; its log says why" in section.explain([left_alone], hardware)
    assert "tries others" in section.explain([tuned(data_wait_s=None)], hardware)
    assert spec("{workers: 4}").loader.explain([], hardware) is None
