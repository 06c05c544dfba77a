"""The section ``run_on`` of a job file, and what goes with it."""

from __future__ import annotations

import os
import threading

import pytest
import yaml

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.hosts import Host
from zeusrun.jobfile.plugged import count_ranks
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.settings import read_settings
from zeusrun.jobfile.spec import load_spec


def hosts_of(spec):
    return spec.run_on.host_list(spec.source.parent, spec.launch.nnodes)


HOSTS = {"hosts": ["a", "b:1"]}


@pytest.mark.parametrize("written", ["local", None])
def test_local_is_the_same_as_no_section(tmp_path, written):
    spec = load_job(tmp_path, run_on=written)
    assert spec.run_on is None
    assert count_ranks(dict(spec)) == 1
    assert spec == load_job(tmp_path)


def test_it_names_the_hosts_and_says_how_they_are_reached(tmp_path):
    spec = load_job(tmp_path, run_on=HOSTS)
    assert hosts_of(spec) == (Host("a", None), Host("b", 1))
    assert spec.run_on.ports is None
    assert spec.run_on.fan_out_command(Host("me@b", 2)) == ["ssh", "-o", "BatchMode=yes", "me@b"]
    more = {"port_range": "29400-29499", "fan_out": "srun -w '{host}' -n 1", "nic": "ib0"}
    run_on = load_job(tmp_path, run_on={**HOSTS, **more}).run_on
    assert run_on.ports == (29400, 29499)
    assert run_on.fan_out_command(Host("b", None)) == ["srun", "-w", "b", "-n", "1"]
    assert (
        load_job(tmp_path, run_on={**HOSTS, "fan_out": "join"}).run_on.fan_out_command(
            Host("b", None)
        )
        is None
    )


def test_a_copy_of_the_job_reads_the_same_hostfile(tmp_path):
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\n")
    spec = load_job(tmp_path, run_on={"hostfile": "hosts"})
    copy = tmp_path / "elsewhere" / "copy.yaml"
    copy.parent.mkdir()
    copy.write_text(spec.to_yaml())
    assert hosts_of(load_spec(copy)) == hosts_of(spec) == (Host("a", 4), Host("b", 4))


def test_a_hostfile_may_be_a_pipe_and_is_read_only_at_the_start(tmp_path):
    os.mkfifo(tmp_path / "hosts")
    spec = load_job(tmp_path, run_on={"hostfile": "hosts"})
    writer = threading.Thread(target=(tmp_path / "hosts").write_text, args=("a\na\n",))
    writer.start()
    assert hosts_of(spec) == (Host("a", 2),)
    writer.join()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "'run_on.hostfile': .*hosts: there is no such file"),
        (b"a\nb:x", "hosts:2: a host must be written as"),
        (b"a\n\xff", "hosts:2: this line is not UTF-8 text; is it a hostfile?"),
        (b"a " * (1 << 20), "is larger than 1,024 KiB"),
        (b"", "there is no host"),
        (b"a\nb\nc", "hosts has 3 hosts, but launch.nnodes is 2"),
    ],
)
def test_a_hostfile_that_cannot_be_used_is_an_error_with_its_place(tmp_path, content, words):
    if content is not None:
        (tmp_path / "hosts").write_bytes(content)
    spec = load_job(tmp_path, run_on={"hostfile": "hosts"}, launch={"nnodes": 2})
    with pytest.raises(JobFileError, match=words):
        hosts_of(spec)


def test_overrides_set_its_keys(tmp_path):
    source = load_job(tmp_path, run_on=HOSTS).source
    assert load_spec(source, ["run_on.nic=eth0"]).run_on.nic == "eth0"
    assert load_spec(source, ["run_on=local"]).run_on is None
    local = load_job(tmp_path, run_on="local").source
    spec = load_spec(local, ["run_on.hosts=[a, b:1]", "run_on.nic=eth0"])
    assert (spec.run_on.hosts, spec.run_on.nic) == (("a", "b:1"), "eth0")


@pytest.mark.parametrize(
    ("run_on", "words"),
    [
        ("slrum", "'run_on' must be local, or a section .*'slrum'$"),
        ("Local", "not 'Local'"),
        ("k8s", "{slurm: ...}, {kubernetes: ...}, not 'k8s'$"),
        (
            ["a", "b"],
            r"'run_on' must be local, or a section .* not \['a', 'b'\]$",
        ),
        (4, "'run_on' must be a section of 'key: value' lines, not 4"),
        ({}, "'run_on' takes exactly one of hosts, hostfile, slurm, kubernetes; it has none"),
        ({"slurm": None}, "'run_on' takes exactly one of hosts, .* it has none"),
        ({**HOSTS, "hostfile": "x"}, "'run_on' takes exactly one of .*; it has hosts and hostfile"),
        ({**HOSTS, "slurm": {}}, "'run_on' takes exactly one of .*; it has hosts and slurm"),
        (
            {"hostfile": "x", "slurm": {}},
            "'run_on' takes exactly one of .*; it has hostfile and slurm",
        ),
        ({"hosts": ["a", "-x"]}, r"'run_on.hosts\[1\]' must be written as a, b:4, .* not '-x'"),
        ({"hosts": ["a", 4]}, r"'run_on.hosts\[1\]' must be written as .* not '4'"),
        ({"hosts": ["a", "a:2"]}, "'run_on.hosts' must name each host once; .* a; "),
        ({"nodes": ["a"]}, "unknown key 'nodes' under 'run_on'; did you mean 'hosts'"),
        ({**HOSTS, "nic": "eth 0"}, "'run_on.nic' must be the name of a network interface"),
        ({**HOSTS, "nic": "-eth0"}, "'run_on.nic' must be the name of a network interface"),
        ({**HOSTS, "port_range": 29400}, "'run_on.port_range' must be two ports"),
        ({**HOSTS, "port_range": "29400"}, "'run_on.port_range' must be two ports from 1024"),
        ({**HOSTS, "port_range": "80-90"}, "such as 29400-29499, not '80-90'"),
        ({**HOSTS, "port_range": "5000-4000"}, "not '5000-4000'"),
        ({**HOSTS, "port_range": "5000-65536"}, "not '5000-65536'"),
        ({**HOSTS, "fan_out": "ssh"}, "'run_on.fan_out' must be join, or a command such as"),
        ({**HOSTS, "fan_out": "{host}"}, "'run_on.fan_out' must be join, or a command such as"),
        ({**HOSTS, "fan_out": "ssh '{host}"}, "'run_on.fan_out' must be join, or a command"),
        ({**HOSTS, "heartbeat_s": 1}, "'run_on.heartbeat_s' must be greater than or equal to 2"),
    ],
)
def test_what_it_cannot_be_is_refused(tmp_path, run_on, words):
    with pytest.raises(JobFileError, match=words) as error:
        load_job(tmp_path, run_on=run_on)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("run_on", "launch", "words"),
    [
        (HOSTS, {"distributed": False}, "'launch' has distributed: false, which is for one proc"),
        (HOSTS, {"gpus": "auto"}, "'launch' has gpus: auto, .*only gpus: all is possible"),
        (HOSTS, {"gpus": "shared"}, "'launch' has gpus: shared"),
        (HOSTS, {"nnodes": 3}, "'launch' has nnodes: 3, but run_on.hosts has 2; remove nnodes"),
        (HOSTS, {"nnodes": 1}, "'launch' has nnodes: 1, but run_on.hosts has 2"),
        ("local", {"nnodes": 2}, "'launch' has nnodes: 2, .* run_on: slurm, or {hosts: .a, b.}"),
        ("slurm", {"nnodes": 2, "distributed": False}, "remove it, or nnodes: 2"),
        ("slurm", {"nnodes": 2, "gpus": "auto"}, "gpus: auto, but with nnodes: 2, only gpus: all"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, run_on, launch, words):
    with pytest.raises(JobFileError, match=words) as error:
        load_job(tmp_path, run_on=run_on, launch=launch)
    assert "\n" not in str(error.value)


def test_a_wrong_section_is_the_only_problem(tmp_path):
    with pytest.raises(JobFileError) as error:
        load_job(tmp_path, run_on={"hosts": []}, launch={"nnodes": 2})
    assert "\n" not in str(error.value)


def test_nnodes_may_say_the_number_of_hosts_once_more(tmp_path):
    assert load_job(tmp_path, run_on=HOSTS, launch={"nnodes": 2}).launch.nnodes == 2
    assert load_job(tmp_path, launch={"nnodes": 1}).run_on is None


def test_batch_sizes_are_shared_by_the_processes_of_all_hosts(tmp_path):
    sizes = {"default": 64, "candidates": [64, 96]}
    load_job(tmp_path, run_on=HOSTS, batch_size=sizes)
    with pytest.raises(JobFileError, match="3 processes cannot share evenly: 64"):
        load_job(tmp_path, run_on={"hosts": ["a", "b:2"]}, batch_size=sizes)


@pytest.mark.parametrize(
    ("run_on", "nproc", "ranks"),
    [
        (None, 4, 4),
        (None, "gpu", None),
        (HOSTS, 4, 5),
        (HOSTS, "gpu", None),
        ({"hosts": ["a:2", "b:2"]}, "gpu", 4),
        ({"hostfile": "hosts"}, 4, None),
        ("slurm", 4, 4),
        ("slurm", "gpu", None),
    ],
)
def test_the_ranks_are_known_only_if_the_job_file_says_them(tmp_path, run_on, nproc, ranks):
    sizes = {"default": 20, "candidates": [20]}
    launch = {"nproc_per_node": nproc}
    spec = load_job(tmp_path, run_on=run_on, launch=launch, batch_size=sizes)
    assert count_ranks(dict(spec)) == ranks


def test_a_server_reads_it_too(tmp_path):
    spec = load_job(tmp_path, run_on={"hosts": ["a", "b"]}, launch={"nnodes": 2})
    assert read_settings(spec.to_yaml(), "job").run_on == spec.run_on


def test_the_schema_has_its_short_form():
    forms = spec_json_schema()["properties"]["run_on"]["anyOf"]
    assert {"const": "local"} in forms
    assert {"const": "slurm"} in forms


def test_machines_and_nodes_are_known_as_its_hosts(tmp_path):
    path = load_job(tmp_path).source
    job = yaml.safe_load(path.read_text())
    for name in ("machines", "nodes"):
        path.write_text(yaml.safe_dump({**job, name: ["a", "b"]}))
        with pytest.raises(JobFileError, match=r"did you mean 'run_on\.hosts'"):
            load_spec(path)
