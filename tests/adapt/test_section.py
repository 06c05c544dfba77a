"""The section ``adapt``: what it accepts, and what the ranks get of it."""

from __future__ import annotations

import json

import pytest

from tests.factories import load_job
from zeusrun.adapt.rank.policies import POLICIES, Limits
from zeusrun.adapt.section import ADAPT_POLICIES, read_schedule
from zeusrun.errors import JobFileError
from zeusrun.jobfile.spec import load_spec

SIZES = {"default": 64, "candidates": [32, 64, 128]}


def load(folder, *, learning_rate="none", sizes=SIZES, job=None, **batch_size):
    adapt = {"batch_size": batch_size, "learning_rate": learning_rate}
    return load_job(folder, batch_size=sizes, adapt=adapt, **(job or {}))


def test_without_the_section_nothing_adapts(tmp_path):
    spec = load_job(tmp_path)
    assert (spec.adapt, spec.variant) == (None, None)


def test_every_policy_of_the_job_file_has_its_rule(tmp_path):
    assert set(ADAPT_POLICIES) == set(POLICIES)
    for name in ADAPT_POLICIES:
        options = {"schedule": {"schedule": "2:64"}}.get(name, {})
        adapt = load(tmp_path, policy=name, **options).adapt
        assert adapt.measures == (name == "noise-scale")
        assert adapt.batch_variant == {"schedule": "schedule 2:64"}.get(name, name)


def test_the_range_is_that_of_the_candidates(tmp_path):
    spec = load(tmp_path, policy="noise-scale")
    assert spec.adapt.limits(spec.batch_size) == (32, 128)
    spec = load(tmp_path, policy="noise-scale", min=48, max=96)
    assert spec.adapt.limits(spec.batch_size) == (48, 96)
    spec = load(tmp_path, policy="noise-scale", max=4096, sizes={**SIZES, "per_device_max": 64})
    assert spec.adapt.limits(spec.batch_size) == (32, 4096)


def test_a_section_that_asks_for_nothing_is_an_error(tmp_path):
    for adapt in ({}, {"learning_rate": "sqrt"}):
        with pytest.raises(JobFileError, match="the key 'batch_size' is missing under 'adapt'"):
            load_job(tmp_path, adapt=adapt)
    with pytest.raises(JobFileError, match="the key 'noise_scale' is missing under 'watch'"):
        load_job(tmp_path, watch={})


def test_what_needs_hooks_is_refused_without_them(tmp_path):
    with pytest.raises(JobFileError, match="'watch' needs the hooks of zeusrun; remove"):
        load_job(tmp_path, instrument=False, watch={"noise_scale": {}})


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"watch": {"noise_scale": {"alpha": 0.01}}}, "unknown key 'alpha' under 'watch.noise_"),
        ({"watch": {"noise_scale": {"every": 3}}}, "did you mean 'interval'"),
        ({"adapt": {"batch_size": {"policy": "seesaw"}}}, "'seesaw'"),
        ({"adapt": {"batch_size": {"policy": "norm-test"}}}, "'norm-test'"),
        ({"adapt": {"batch_size": {"policy": "double-on-rise"}}}, "'double-on-rise'"),
        (
            {"adapt": {"batch_size": {"policy": "noise-scale"}, "learning_rate": "adascale"}},
            "learning_rate",
        ),
    ],
)
def test_what_an_earlier_version_had_is_an_error(tmp_path, section, sentence):
    with pytest.raises(JobFileError, match=sentence):
        load_job(tmp_path, batch_size=SIZES, **section)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy": "noise-scale", "every": 1}, "must be such as 1 epoch or 100 steps, not 1"),
        ({"policy": "noise-scales"}, r"did you mean 'noise-scale'\?"),
        ({"policy": "a b:C"}, "or module:Class, not 'a b:C'"),
        ({"policy": ["noise-scale", "mine:C"]}, "may only list classes of your own"),
        ({"policy": []}, "must be a policy, module:Class, or a list"),
        ({"policy": 3}, "must be a policy, module:Class, or a list"),
        ({"policy": "noise-scale", "every": "often"}, "must be such as 1 epoch or 100 steps"),
        ({"policy": "noise-scale", "every": "0 steps"}, "must be such as 1 epoch or 100 steps"),
        ({"policy": "noise-scale", "min": 128, "max": 64}, "is 64, less than min"),
        ({"policy": "noise-scale", "max": 256}, r"above the largest candidate \(128\)"),
        ({"policy": "noise-scale", "max": 48}, r"does not contain batch_size.default \(64\)"),
        ({"policy": "noise-scale", "growth": 1}, "growth"),
        (
            {"policy": "noise-scale", "growth": 1.00001},
            "growth",
        ),  # each decision would take a second
        ({"policy": "noise-scale", "schedule": "1:64"}, "only goes with policy: schedule"),
        ({"policy": "schedule"}, "is missing: policy schedule needs it"),
        ({"policy": "schedule", "schedule": "10-64"}, "must be pairs of an epoch"),
        ({"policy": "schedule", "schedule": "10:64,5:32"}, "in ascending order"),
        ({"policy": "schedule", "schedule": "10:64,20:256"}, "a schedule with 256, outside 32"),
        ({"policy": "schedule", "schedule": "10:63"}, "2 processes cannot share evenly: 63"),
    ],
)
def test_what_cannot_be_is_an_error_with_its_line(tmp_path, options, sentence):
    with pytest.raises(JobFileError, match=rf"job.yaml:\d+: .*{sentence}"):
        load(tmp_path, job={"launch": {"nproc_per_node": 2}}, **options)


def test_a_schedule_is_checked_again_when_the_ranks_are_counted(tmp_path):
    spec = load(
        tmp_path,
        policy="schedule",
        schedule="10:63",
        job={"launch": {"nproc_per_node": "gpu"}},
        sizes={"default": 64, "candidates": [60, 64]},
    )
    with pytest.raises(JobFileError, match="63"):
        spec.check_world_size(2)


def test_a_hook_that_hands_out_the_batch_size_has_no_loader_to_hand_it_to(tmp_path):
    with pytest.raises(JobFileError, match=r"only goes with batch_size\.apply: script"):
        load(tmp_path, policy="noise-scale", sizes={**SIZES, "apply": "dataloader"})


def test_no_hook_runs_without_the_worker(tmp_path):
    with pytest.raises(JobFileError, match="instrument: false"):
        load(tmp_path, policy="noise-scale", job={"instrument": False})


def test_classes_of_the_user_name_the_variant(tmp_path):
    adapt = load(tmp_path, policy="mine:Mine").adapt
    assert (adapt.batch_variant, adapt.measures) == ("mine:Mine", False)
    assert (
        load(tmp_path, policy=["mine:Mine", "mine:Mine"]).adapt.batch_variant
        == "mine:Mine,mine:Mine"
    )


def test_the_ranks_get_the_section_as_it_is(tmp_path, zeusrun):
    adapt = {
        "batch_size": {"policy": "noise-scale", "every": "100 steps", "growth": 1.5},
        "learning_rate": "sqrt",
    }
    job = zeusrun.job(batch_size=SIZES, adapt=adapt)
    env = json.loads(zeusrun("submit", job, "--dry-run", "--json").stdout)["env"]
    parts = json.loads(env["ZEUSRUN_PARTS"])
    given, limits = parts["adapt"], Limits.read(parts["adapt"], 1)
    assert (given["policies"], given["interval"], given["unit"]) == (["noise-scale"], 100, "step")
    assert (limits.minimum, limits.maximum, limits.growth) == (32, 128, 1.5)
    assert given["learning_rate"] == "sqrt"
    assert parts["watch"] == {"noise_scale": {"interval": 1}}


def test_schedules_are_read():
    assert read_schedule("10:64, 20:128") == {10: 64, 20: 128}


@pytest.mark.parametrize("policy", ["noise-scale", "mine:Mine", ["mine:Mine", "mine:Other"]])
def test_the_copy_of_a_job_file_is_the_same_job(tmp_path, policy):
    spec = load(tmp_path, policy=policy, every="5 steps")
    copy = tmp_path / "elsewhere" / "job.yaml"
    copy.parent.mkdir()
    copy.write_text(spec.to_yaml())
    assert load_spec(copy).adapt == spec.adapt
