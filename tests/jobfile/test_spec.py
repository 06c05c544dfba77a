"""The job file as a value: keys, defaults, placeholders, schema, round trip."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from zeusrun.errors import ExitCode, JobFileError
from zeusrun.jobfile.placeholders import PLACEHOLDERS, expand_placeholders
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.spec import JobSpec, load_spec

SAMPLE = Path(__file__).resolve().parents[2] / "jobs" / "digits.yaml"
MINIMAL = """\
name: digits
script: train.py
objective: {metric: acc, target: 0.9}
batch_size: {candidates: [128, 32, 64]}
"""


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")

    def write(text=MINIMAL):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path

    return write


def test_every_key_that_is_left_out_has_the_default_of_the_design(job_file):
    spec = load_spec(job_file())
    assert spec.model_dump(exclude={"name", "script", "workdir"}) == {
        "learning_rate": None,
        "module": None,
        "args": (),
        "env": {},
        "instrument": True,
        "run_on": None,
        "launch": {
            "nproc_per_node": 1,
            "gpus": "all",
            "distributed": True,
            "nnodes": None,
            "max_restarts": 0,
            "grace_period_s": 30.0,
            "torchrun": {},
        },
        "objective": {
            "metric": "acc",
            "target": 0.9,
            "mode": "max",
            "max_epochs": 40,
            "eta_knob": 0.5,
            "on_target": "stop",
            "missing_metric": "stop",
        },
        "batch_size": {
            "candidates": (32, 64, 128),
            "default": 64,
            "apply": "script",
            "per_device_max": None,
        },
        "policy": {
            "name": "auto",
            "window": None,
            "control": None,
            "seed": 0,
            "learn_from_shared": False,
        },
        "early_stop": {"cost_factor": 2.0},
        "attempts": 5,
        "power_limit": {
            "mode": "optimize",
            "watts": None,
            "objective": "cost",
            "factor": None,
        },
        "stall": {"after_s": 60.0, "action": "report"},
        "metrics": {
            "source": "auto",
            "pattern": (),
            "path": None,
            "name": None,
            "epoch": None,
            "step": None,
        },
        "watch": None,
        "adapt": None,
        "elastic": None,
        "sync": None,
        "loader": None,
        "price": None,
        "carbon": None,
        "pue": None,
        "schedule": None,
        "notify": {
            "command": (),
            "url": None,
            "on": ("missed", "failed", "lost", "regression", "recovered"),
            "timeout_s": 10.0,
        },
        "history": {"url": None, "wait_s": 300.0, "offline": "fail"},
        "keep": {"last": None},
        "timeout_s": None,
    }


def test_the_sample_job_loads(monkeypatch):
    monkeypatch.chdir("/")
    spec = load_spec(SAMPLE)
    assert (spec.name, spec.launch.nproc_per_node) == ("digits", 2)
    assert spec.batch_size.candidates == (16, 32, 64, 128, 256, 512)
    assert spec.script_path({}) == SAMPLE.parent.parent / "examples" / "digits" / "train.py"


def test_paths_are_relative_to_the_job_file(job_file, monkeypatch):
    path = job_file(MINIMAL + "workdir: out\n")
    (path.parent / "out").mkdir()
    monkeypatch.chdir(path.parent.parent)
    spec = load_spec(Path(path.parent.name) / "job.yaml")
    assert spec.source == path
    assert spec.script == "train.py"
    assert spec.script_path({}) == path.parent / "train.py"
    assert spec.workdir == spec.workdir_path({}) == path.parent / "out"


def test_workdir_is_the_directory_of_the_job_file_by_default(job_file):
    path = job_file()
    assert load_spec(path).workdir == path.parent


def test_paths_take_placeholders_even_absolute_ones(job_file, tmp_path):
    text = MINIMAL.replace("train.py", "${job}/train.py") + "workdir: ${run_dir}/w\n"
    spec = load_spec(job_file(text))
    values = {"job": "digits", "run_dir": "/runs/1"}
    assert spec.script_path(values) == tmp_path / "digits" / "train.py"
    assert spec.workdir_path(values) == Path("/runs/1/w")


def test_a_dollar_in_the_directory_of_the_job_file_is_no_placeholder(tmp_path):
    directory = tmp_path / "a$b"
    directory.mkdir()
    (directory / "train.py").touch()
    (directory / "job.yaml").write_text(MINIMAL)
    spec = load_spec(directory / "job.yaml")
    assert spec.workdir_path({}) == directory
    assert spec.script_path({}) == directory / "train.py"


def test_a_module_takes_the_place_of_the_script(job_file):
    spec = load_spec(job_file(MINIMAL.replace("script: train.py", "module: package.train")))
    assert spec.module == "package.train"
    assert spec.script_path({}) is None


def test_numbers_in_args_and_env_arrive_as_they_were_written(job_file):
    spec = load_spec(
        job_file(MINIMAL + "args: [--lr, 1.10, 1e-3, 007]\nenv: {THREADS: 1, X: .5}\n")
    )
    assert spec.args == ("--lr", "1.10", "1e-3", "007")
    assert spec.env == {"THREADS": "1", "X": ".5"}


@pytest.mark.parametrize("text", ["no", "on", "1:30", "2024-01-01", "0x10", "1_000"])
def test_what_only_old_yaml_takes_for_another_type_is_text(job_file, text):
    assert load_spec(job_file(MINIMAL + f"args: [{text}]\n")).args == (text,)


@pytest.mark.parametrize(("written", "value"), [("1e-3", 0.001), ("1E2", 100.0), ("5", 5.0)])
def test_a_number_is_a_number_however_it_is_written(job_file, written, value):
    spec = load_spec(job_file(MINIMAL + f"learning_rate: {{base: {written}}}\n"))
    assert spec.learning_rate is not None
    assert spec.learning_rate.base == value


def test_overrides_win_over_the_file_and_later_ones_over_earlier(job_file):
    overrides = ["objective.eta_knob=0.25", "objective.eta_knob=0.8", "learning_rate.base=1e-3"]
    overrides += ["batch_size={default: 4, candidates: [8, 4]}", "args=[--x, 1.0]", "timeout_s="]
    spec = load_spec(job_file(), [*overrides, "env.A=b=c", "name=other"])
    assert spec.objective.eta_knob == 0.8
    assert spec.objective.target == 0.9
    assert spec.learning_rate is not None
    assert spec.learning_rate.base == 0.001
    assert spec.batch_size.candidates == (4, 8)
    assert spec.args == ("--x", "1.0")
    assert spec.env == {"A": "b=c"}
    assert spec.timeout_s is None
    assert spec.name == "other"


def test_an_override_may_mend_what_is_wrong_in_the_file(job_file):
    path = job_file(MINIMAL.replace("0.9", "high"))
    assert load_spec(path, ["objective.target=0.5"]).objective.target == 0.5


def test_the_spec_is_frozen_down_to_its_environment(job_file):
    spec = load_spec(job_file(MINIMAL + "env: {A: b}\n"))
    with pytest.raises(ValidationError, match="frozen"):
        spec.objective.target = 1.0
    with pytest.raises(TypeError):
        spec.env["A"] = "c"


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("linear", [0.01, 0.02, 0.08]),
        ("sqrt", [0.02 / math.sqrt(2), 0.02, 0.04]),
        ("none", [0.02] * 3),
    ],
)
def test_the_learning_rate_follows_the_batch_size(job_file, scale, expected):
    spec = load_spec(job_file(MINIMAL + f"learning_rate: {{base: 0.02, scale: {scale}}}\n"))
    assert [spec.learning_rate_for(size) for size in (32, 64, 256)] == pytest.approx(expected)


def test_without_a_learning_rate_section_the_rate_is_unknown(job_file):
    assert load_spec(job_file()).learning_rate_for(32) is None


@pytest.mark.parametrize("processes", ["gpu", "cpu", "auto", "1"])
def test_the_world_size_is_checked_when_it_is_known(job_file, processes):
    spec = load_spec(job_file(MINIMAL + f"launch: {{nproc_per_node: {processes}}}\n"))
    spec.check_world_size(32)
    with pytest.raises(JobFileError, match=r"48 processes cannot share evenly: 32, 64, 128; use"):
        spec.check_world_size(48)


def test_every_placeholder_is_accepted_and_expands(job_file):
    text = " ".join(f"${{{name}}}" for name in PLACEHOLDERS)
    spec = load_spec(job_file(f'{MINIMAL}args: ["{text}"]\nlearning_rate: {{base: 1}}\n'))
    values = {name: f"<{name}>" for name in PLACEHOLDERS}
    assert expand_placeholders(spec.args[0], values) == " ".join(values.values())


def test_a_doubled_dollar_is_a_dollar_and_values_are_not_expanded_again():
    assert (
        expand_placeholders("$$5 $${job} ${job}", {"job": "${trial}$$"}) == "$5 ${job} ${trial}$$"
    )


def test_a_placeholder_may_be_divided_where_every_candidate_can_be(job_file):
    divided = MINIMAL + 'args: [--bs, "${local_batch_size/2}"]\nlaunch: {nproc_per_node: 2}\n'
    spec = load_spec(job_file(divided))
    assert expand_placeholders(spec.args[1], {"local_batch_size": "32"}) == "16"
    with pytest.raises(JobFileError, match="local_batch_size/2}' is no whole number for 33"):
        expand_placeholders(spec.args[1], {"local_batch_size": "33"})
    with pytest.raises(JobFileError, match="is no whole number: 6; use multiples of 4"):
        load_spec(job_file(divided), ["batch_size={default: 8, candidates: [6, 8]}"])
    for text in ("batch_size/0", "batch_size/", "batch_size/x", "max_epochs/2"):
        with pytest.raises(JobFileError, match="can be divided, by a whole number"):
            load_spec(job_file(), [f'args=["${{{text}}}"]'])


def test_a_placeholder_without_a_value_is_an_error_and_not_an_empty_text():
    with pytest.raises(JobFileError, match="learning_rate") as caught:
        expand_placeholders("--lr=${learning_rate}", {"job": "digits"})
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_a_job_written_as_yaml_loads_as_the_same_job_from_anywhere(job_file, tmp_path):
    text = MINIMAL.replace("digits", "1e5") + (
        'args: [--a, 1e-3, "no", "$$x", "a: b", "é"]\nenv: {A: 010, B: "true"}\n'
        "learning_rate: {base: 1e-3}\nearly_stop: {cost_factor: null}\n"
        "power_limit: {mode: fixed, watts: 200}\n"
    )
    spec = load_spec(job_file(text.replace("1e5", "'1e5'")), ["objective.eta_knob=1"])
    elsewhere = tmp_path / "elsewhere" / "job.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(spec.to_yaml(), encoding="utf-8")
    again = load_spec(elsewhere)
    moved = {"source", "script"}
    assert again.model_dump(exclude=moved) == spec.model_dump(exclude=moved)
    assert again.script_path({}) == spec.script_path({})


def _sections_of(schema):
    """Yield each object of a schema that has keys: its dotted name and its schema."""
    yield "", schema
    for name, entry in schema["properties"].items():
        for option in [entry, *entry.get("anyOf", [])]:
            if "$ref" in option:
                yield name, schema["$defs"][option["$ref"].rpartition("/")[2]]


def test_the_schema_knows_every_key_of_a_job_and_no_other(job_file):
    text = MINIMAL + "learning_rate: {base: 1}\nschedule: {cron: '@daily'}\n"
    text += "price: {per_kwh: 1, currency: EUR}\ncarbon: {g_per_kwh: 1}\n"
    text += "run_on: {hosts: [a, b]}\nwatch: {noise_scale: {}}\nadapt: {batch_size: {policy: noise-scale}}\nsync: {}\n"
    record = load_spec(job_file(text)).model_dump(mode="json")
    for alone in ("elastic: {max: 2}\n", "loader: {}\n"):
        name = alone.partition(":")[0]
        record[name] = load_spec(job_file(MINIMAL + alone)).model_dump(mode="json")[name]
    for name, section in _sections_of(spec_json_schema()):
        keys = record[name] if name else record
        assert set(section["properties"]) == set(keys)
        assert section["additionalProperties"] is False


def test_the_schema_describes_every_key_and_section():
    schema = spec_json_schema()
    for name, section in [*_sections_of(schema), ("run_on.slurm", schema["$defs"]["Slurm"])]:
        assert section["description"], name
        for key, entry in section["properties"].items():
            assert "$ref" in entry or entry["description"], key


def test_the_schema_requires_what_has_no_default():
    required = {name: set(s.get("required", ())) for name, s in _sections_of(spec_json_schema())}
    assert {name: keys for name, keys in required.items() if keys} == {
        "": {"name", "objective", "batch_size"},
        "objective": {"metric", "target"},
        "batch_size": {"candidates"},
        "learning_rate": {"base"},
        "watch": {"noise_scale"},
        "adapt": {"batch_size"},
        "elastic": {"max"},
        "price": {"currency"},
    }


def test_the_schema_lets_numbers_stand_in_args_and_env():
    properties = spec_json_schema()["properties"]
    assert properties["args"]["items"]["anyOf"][0]["type"] == ["string", "number"]
    plain, *_ = properties["env"]["additionalProperties"]["anyOf"]
    assert plain["type"] == ["string", "number"]


def test_a_job_built_from_python_values_keeps_the_same_rules(tmp_path):
    values = {
        "source": tmp_path / "job.yaml",
        "name": "digits",
        "module": "train",
        "objective": {"metric": "acc", "target": 1},
        "batch_size": {"candidates": [64]},
    }
    assert JobSpec.model_validate(values).workdir == tmp_path
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**values, "attempts": True})


def test_a_surrogate_pair_as_json_writes_it_is_one_character(tmp_path):
    (tmp_path / "t\U0001f600.py").write_text("")
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL.replace("train.py", '"t\\ud83d\\ude00.py"'))
    assert str(load_spec(path).script) == "t\U0001f600.py"
