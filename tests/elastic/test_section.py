"""The section ``elastic``: what it accepts, and what the agent and the ranks get of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import build_trial, load_job
from zeusrun.elastic.plan import Plan
from zeusrun.elastic.section import Elastic, Provision, read_steps
from zeusrun.errors import JobFileError
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.processes.command import Torchrun, build_command
from zeusrun.launcher.rundir.layout import RunPaths

PATHS = RunPaths(Path("/runs/job/job-1-1"))
TORCHRUN = Torchrun(("python", "-m", "torchrun"), "2.13", frozenset())
HOSTS = {"hosts": ["a", "b"]}
SIZES = {"default": 32, "candidates": [32, 64]}


def load(folder, job=None, **elastic):
    changes = {"launch": {"nproc_per_node": 2}, **(job or {})}
    return load_job(folder, elastic={"max": 4, **elastic}, **changes)


def build(spec, **trial):
    return build_command(spec, build_trial(**trial), PATHS, TORCHRUN, {})


def test_without_the_section_the_ranks_are_fixed_and_torchrun_starts_them(tmp_path):
    spec = load_job(tmp_path, launch={"nproc_per_node": 2})
    assert spec.elastic is None
    command = build(spec)
    assert command.argv[:3] == TORCHRUN.argv
    assert "ZEUSRUN_PARTS" not in command.env


def test_only_the_most_ranks_must_be_given(tmp_path):
    assert load(tmp_path).elastic == Elastic(max=4)
    elastic = Elastic(max=4)
    assert (elastic.min, elastic.steps, elastic.provision, elastic.listen) == (1, None, None, None)
    assert (elastic.losses, elastic.lost_by, elastic.hang_s) == (3, "killed", 60)


@pytest.mark.parametrize(
    "elastic",
    [
        {"min": 2, "max": 2},
        {"steps": "10:4,100:1"},
        {"steps": " 10 : 4 , 100:0"},
        {"steps": "0:4"},
        {"provision": {"by": "joules"}},
        {"provision": {"by": "throughput", "every": 7}},
        {"listen": "127.0.0.1:9100"},
        {"listen": "[::1]:9100"},
        {"losses": 0, "lost_by": "any", "hang_s": 0.5},
    ],
)
def test_the_copy_of_a_job_file_is_the_same_job(tmp_path, elastic):
    spec = load(tmp_path, **elastic)
    copy = tmp_path / "elsewhere" / "job.yaml"
    copy.parent.mkdir()
    copy.write_text(spec.to_yaml())
    assert load_spec(copy).elastic == spec.elastic == Elastic(**{"max": 4, **elastic})


@pytest.mark.parametrize(
    ("elastic", "sentence"),
    [
        ({"min": 5}, r"'elastic.max' is 4, less than min \(5\)"),
        ({"min": 0}, "'elastic.min' must be greater than or equal to 1, not 0"),
        ({"max": 256}, "'elastic.max' must be less than or equal to 255, not 256"),
        ({"min": True}, "'elastic.min' must be a whole number, not true"),
        ({"steps": "10-2"}, "must be pairs of a step and a number of ranks, such as 10:2,100:1"),
        ({"steps": ""}, "must be pairs of a step"),
        ({"steps": "10:2,"}, "must be pairs of a step"),
        ({"steps": "-1:2"}, "must be pairs of a step"),
        ({"steps": "\u0661:2"}, "must be pairs of a step"),
        ({"steps": 602}, 'must be text, not 602; put it in quotes: "602"'),
        ({"steps": "10:2,10:3"}, "must name each step once, in ascending order"),
        ({"steps": "10:2,5:3"}, "must name each step once, in ascending order"),
        ({"steps": "10:5"}, "names 5, which is not between min"),
        ({"min": 2, "steps": "10:1"}, "names 1, which is not between min"),
        ({"listen": "9100"}, "must be an address and a port, such as 127.0.0.1:9100, not '9100'"),
        ({"listen": ":9100"}, "must be an address and a port"),
        ({"listen": "127.0.0.1"}, "must be an address and a port"),
        ({"listen": "127.0.0.1:http"}, "must be an address and a port"),
        ({"listen": "127.0.0.1:65536"}, "must be an address and a port"),
        ({"listen": "127.0.0.1:0"}, "must be an address and a port"),
        ({"provision": {}}, "the key 'by' is missing under 'elastic.provision'"),
        ({"provision": {"by": "watts"}}, "must be 'throughput' or 'joules', not 'watts'"),
        ({"provision": {"by": "joules", "every": 0}}, "must be greater than or equal to 1, not 0"),
        ({"losses": -1}, "'elastic.losses' must be greater than or equal to 0, not -1"),
        ({"lost_by": "all"}, "must be 'killed' or 'any', not 'all'"),
        ({"hang_s": 0}, "'elastic.hang_s' must be greater than 0, not 0"),
        ({"most": 3}, "unknown key 'most' under 'elastic'"),
        ({"max": 33}, "has max: 33, but a batch size of 16 has fewer samples than ranks"),
    ],
)
def test_what_cannot_be_is_one_sentence_with_its_line(tmp_path, elastic, sentence):
    with pytest.raises(JobFileError, match=rf"job.yaml:\d+: .*{sentence}") as error:
        load(tmp_path, **elastic)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            {"launch": {"nproc_per_node": 8}},
            r"begins with launch.nproc_per_node, .* a number between min \(1\) and max \(4\), not 8",
        ),
        ({"launch": {"nproc_per_node": "gpu"}}, r"must be a number between .*, not gpu"),
        ({"launch": {"nproc_per_node": "auto"}}, r"must be a number between .*, not auto"),
        (
            {"launch": {"nproc_per_node": 1, "distributed": False}},
            "needs launch.distributed: true",
        ),
        (
            {"launch": {"nproc_per_node": 2, "torchrun": {"role": "a"}}},
            "without torchrun; remove it",
        ),
        (
            {"run_on": HOSTS, "launch": {"nproc_per_node": 4}},
            r"launch.nproc_per_node on all hosts, which must be a number .*, not 8",
        ),
        ({"instrument": False}, "needs the hooks of zeusrun; remove instrument: false"),
        ({"watch": {"noise_scale": {}}}, "cannot be used together with 'watch'; keep one of them"),
        (
            {"adapt": {"batch_size": {"policy": "noise-scale"}}, "batch_size": SIZES},
            "cannot be used together with 'adapt'; keep one of them",
        ),
    ],
)
def test_sections_that_do_not_allow_it_are_named(tmp_path, job, sentence):
    with pytest.raises(JobFileError, match=rf"job.yaml:\d+: 'elastic' .*{sentence}") as error:
        load(tmp_path, job)
    assert "\n" not in str(error.value)


def test_an_override_is_checked_as_the_job_file_is(tmp_path):
    load(tmp_path)
    spec = load_spec(tmp_path / "job.yaml", ["elastic.steps=5:3", "elastic.min=2"])
    assert spec.elastic == Elastic(min=2, max=4, steps="5:3")
    with pytest.raises(JobFileError, match="less than min"):
        load_spec(tmp_path / "job.yaml", ["elastic.min=5"])


def test_the_schema_has_the_section_and_no_other_key():
    schemas = spec_json_schema()["$defs"]
    assert set(schemas["Elastic"]["properties"]) == set(Elastic.model_fields)
    assert set(schemas["Provision"]["properties"]) == set(Provision.model_fields)
    assert schemas["Elastic"]["required"] == ["max"]
    assert not schemas["Elastic"]["additionalProperties"]


schedules = st.dictionaries(st.integers(0, 10**9 - 1), st.integers(0, 255), min_size=1, max_size=9)


@given(schedules, st.sampled_from([",", " , "]))
def test_every_schedule_is_read_as_it_is_written(steps, comma):
    text = comma.join(f"{step}:{size}" for step, size in sorted(steps.items()))
    assert read_steps(text) == dict(sorted(steps.items()))


@given(st.text(alphabet="0123:, -x", max_size=20))
def test_a_text_is_a_schedule_or_an_error(text):
    try:
        steps = read_steps(text)
    except ValueError as error:
        assert "must" in str(error)
    else:
        assert steps
        assert list(steps) == sorted(steps)


def test_the_agent_gets_its_plan_and_the_command_of_a_rank(tmp_path):
    job = {"args": ["--cost", "$$5"], "launch": {"nproc_per_node": 2, "max_restarts": 3}}
    spec = load(tmp_path, job, min=2, losses=1, lost_by="any", hang_s=9)
    command = build(spec)
    python, option, program, plan, *rank = command.argv
    assert (python, option) == (sys.executable, "-c")
    assert "zeusrun.elastic.agent" in program
    assert Plan(**json.loads(plan)) == Plan("job-1-1", 2, 32, 3, 2, 4, 1, "any", 9)
    assert rank[:2] == [sys.executable, "-u"]
    assert rank[-2:] == ["--cost", "$5"]  # torchrun's $$ is not for this agent


def test_by_default_only_a_killed_rank_counts_as_lost(tmp_path):
    plan = Plan(**json.loads(build(load(tmp_path)).argv[3]))
    assert plan == Plan("job-1-1", 2, 32, 0, 1, 4, 3, "killed", 60)


@pytest.mark.parametrize(("steps", "expected"), [(None, None), ("10:4,100:0", "10:4,100:0")])
def test_the_ranks_get_the_schedule(tmp_path, steps, expected):
    env = build(load(tmp_path, steps=steps)).env
    given = {"policy": None, "steps": expected, "ranks": 2, "per_device_max": None}
    assert json.loads(env["ZEUSRUN_PARTS"])["elastic"] == given | {
        "batch_size": "kept",
        "learning_rate": "none",
    }


def test_a_batch_size_that_is_scaled_is_a_variant_and_the_learning_rate_may_follow_it(tmp_path):
    spec = load(tmp_path, batch_size="scaled", learning_rate="sqrt")
    assert spec.variant == "ranks"
    assert json.loads(build(spec).env["ZEUSRUN_PARTS"])["elastic"]["learning_rate"] == "sqrt"
    assert load(tmp_path).variant is None


def test_the_learning_rate_cannot_follow_a_batch_size_that_stays(tmp_path):
    with pytest.raises(JobFileError, match="is sqrt, but the batch size stays; add  batch_size: s"):
        load(tmp_path, learning_rate="sqrt")
