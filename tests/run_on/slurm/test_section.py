"""The section ``run_on.slurm`` of a job file, and what goes with it."""

from __future__ import annotations

import pytest

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.hosts import Host
from zeusrun.jobfile.plugged import count_ranks
from zeusrun.jobfile.settings import read_settings
from zeusrun.jobfile.spec import load_spec
from zeusrun.run_on.slurm.section import Slurm

WHOLE = {
    "partition": "gpu",
    "account": "team a",
    "qos": "high",
    "constraint": "a100&ib",
    "gres": "gpu:4",
    "cpus_per_task": 8,
    "time": "8h",
    "requeue": False,
    "extra": [
        "--exclude=n7",
        "--comment=a b",
        "--exclusive",
        "--nodelist=n1",
        "--time-min=1",
        "--x11",
        "--my_site=1",
    ],
    "setup": "module load cuda\nexport A='1: 2'\n",
    "python": "apptainer exec image.sif python3",
}


@pytest.mark.parametrize("written", ["slurm", {"slurm": {}}])
def test_the_word_slurm_is_the_section_with_its_defaults(tmp_path, written):
    spec = load_job(tmp_path, run_on=written)
    assert spec.run_on.slurm == Slurm()
    assert spec.run_on.slurm.time is None
    assert (spec.run_on.slurm.requeue, spec.run_on.slurm.extra, spec.run_on.slurm.setup) == (
        True,
        (),
        "",
    )
    assert spec == load_job(tmp_path, run_on="slurm")
    with pytest.raises(JobFileError, match="does not name Slurm any more"):
        Slurm.of(load_job(tmp_path).run_on)
    with pytest.raises(JobFileError, match="does not name Slurm any more"):
        Slurm.of(load_job(tmp_path, run_on={"hosts": ["a"]}).run_on)


@pytest.mark.parametrize("section", [{}, WHOLE, {"time": "2h"}])
def test_a_copy_of_the_job_and_a_server_read_the_same_section(tmp_path, section):
    spec = load_job(tmp_path, run_on={"slurm": section, "nic": "ib0"}, launch={"nnodes": 2})
    copy = tmp_path / "copy.yaml"
    copy.write_text(spec.to_yaml())
    assert load_spec(copy).run_on == spec.run_on == read_settings(spec.to_yaml(), "job").run_on


def test_overrides_set_its_keys(tmp_path):
    source = load_job(tmp_path, run_on="slurm").source
    spec = load_spec(source, ["run_on.slurm.time=8h", "run_on.slurm.partition=gpu"])
    assert (spec.run_on.slurm.time, spec.run_on.slurm.partition) == ("8h", "gpu")
    assert load_spec(source, ["run_on.nic=ib0"]).run_on.slurm == Slurm()
    assert load_spec(source, ["run_on=local"]).run_on is None
    hosts = load_spec(source, ["run_on.slurm=null", "run_on.hosts=[a, b]"])
    assert (hosts.run_on.slurm, hosts.run_on.hosts) == (None, ("a", "b"))
    local = load_job(tmp_path, run_on="local").source
    assert load_spec(local, ["run_on.slurm.gres=gpu:4"]).run_on.slurm.gres == "gpu:4"


def refused(tmp_path, section):
    with pytest.raises(JobFileError) as error:
        load_job(tmp_path, run_on={"slurm": section})
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("time", ["8 hours", "8:00:00", "-5", 90, "", "x", True])
def test_another_time_limit_is_refused(tmp_path, time):
    assert "'run_on.slurm.time' must be" in refused(tmp_path, {"time": time})


def test_a_time_limit_of_0_is_refused(tmp_path):
    assert "'run_on.slurm.time' must be more than 0" in refused(tmp_path, {"time": "0s"})


@pytest.mark.parametrize(
    "option",
    [
        *("--nodes=2", "--nod=2", "--ntasks=4", "--ntasks-per-node=4", "--no-requeue"),
        *("--signal=B:USR1@60", "--error=x", "--open-mode=append", "--parsable", "--wrap=true"),
    ],
)
def test_an_option_that_has_a_key_or_is_zeusruns_own_is_refused(tmp_path, option):
    said = refused(tmp_path, {"extra": ["--exclude=n7", option]})
    name = option.partition("=")[0]
    assert f"'run_on.slurm.extra[1]' cannot contain {name}: zeusrun decides it" in said


@pytest.mark.parametrize(
    "option", ["exclude=n7", "n7", " ", "-", "--", "--a -N2", "-w n1", "-N2", "--nodes 2"]
)
def test_an_item_of_extra_is_one_option(tmp_path, option):
    said = refused(tmp_path, {"extra": [option]})
    assert "'run_on.slurm.extra[0]' must be one option of sbatch, such as --exclude=n7" in said


@pytest.mark.parametrize(
    "key", ["partition", "account", "qos", "constraint", "gres", "python", "extra"]
)
def test_a_text_is_one_line(tmp_path, key):
    text = "--a\n#SBATCH --array=1"
    said = refused(tmp_path, {key: [text] if key == "extra" else text})
    assert f"'run_on.slurm.{key}" in said
    assert "must be one line without control characters" in said


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"partition": ""}, "'run_on.slurm.partition' must be something"),
        ({"account": 12}, 'must be text, not 12; put it in quotes: "12"'),
        ({"cpus_per_task": 0}, "'run_on.slurm.cpus_per_task' must be greater than or equal to 1"),
        ({"requeue": "no"}, "'run_on.slurm.requeue' must be true or false"),
        ({"partion": "gpu"}, "unknown key 'partion' under 'run_on.slurm'; did you mean 'partition"),
        ({"nodes": 2}, "under 'run_on.slurm'; did you mean 'launch.nnodes'?"),
        ({"nnodes": 2}, "under 'run_on.slurm'; 'nnodes' belongs under 'launch'"),
        ("gpu", "'run_on.slurm' must be a section of 'key: value' lines, not 'gpu'"),
    ],
)
def test_what_it_cannot_be_is_refused(tmp_path, section, words):
    assert words in refused(tmp_path, section)


def test_within_the_allocation_the_hosts_are_known_and_reached_by_srun(tmp_path):
    spec = load_job(tmp_path, run_on={"slurm": {}, "nic": "ib0"}, launch={"nnodes": 2})
    inside = spec.run_on.model_copy(update={"hosts": ("n1", "n2")})
    assert inside.host_list(tmp_path, 2) == (Host("n1", None), Host("n2", None))
    assert (inside.nic, inside.fan_out) == ("ib0", None)
    assert " ".join(inside.fan_out_command(Host("{host}", None))) == Slurm.fan_out
    words = inside.fan_out_command(Host("n2", None))
    assert words[0] == "srun"
    assert "--nodelist=n2" in words


def test_a_fan_out_of_the_job_file_stays(tmp_path):
    run_on = load_job(tmp_path, run_on={"slurm": {}, "fan_out": "rsh {host}"}).run_on
    assert run_on.fan_out_command(Host("n1", None)) == ["rsh", "n1"]


def test_the_number_of_nodes_is_that_of_launch(tmp_path):
    sizes = {"default": 96, "candidates": [96]}
    launch = {"nnodes": 3, "nproc_per_node": 4}
    spec = load_job(tmp_path, run_on="slurm", launch=launch, batch_size=sizes)
    assert count_ranks(dict(spec)) == 12
    with pytest.raises(JobFileError, match="12 processes cannot share evenly"):
        load_job(tmp_path, run_on="slurm", launch=launch)


@pytest.mark.parametrize("nnodes", [None, 1])
@pytest.mark.parametrize("more", [{"distributed": False}, {"gpus": "auto"}, {"gpus": "shared"}])
def test_one_node_is_as_one_machine(tmp_path, nnodes, more):
    assert load_job(tmp_path, run_on="slurm", launch={"nnodes": nnodes, **more}).run_on
