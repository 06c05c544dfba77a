"""Which options of torchrun a job file may have, and which ``init`` writes into it."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from tests.factories import load_job
from tests.jobfile.test_guess import draft_of
from zeusrun.errors import JobFileError
from zeusrun.jobfile.guess.command import read_command
from zeusrun.jobfile.guess.guess import build_guess
from zeusrun.jobfile.guess.script import Script
from zeusrun.jobfile.torchrun_options import OWNED, option_words
from zeusrun.launcher.processes.command import find_torchrun

KNOWN = find_torchrun().flags


def load(folder, **options):
    return load_job(folder, launch={"torchrun": options})


def words_of(folder, known=KNOWN, **options):
    spec = load(folder, **options)
    return option_words(spec.launch.torchrun, known, spec.source)


def test_every_option_of_the_installed_torchrun_is_passed_on_or_refused(tmp_path):
    names = {flag[2:].replace("-", "_") for flag in KNOWN}
    assert names >= OWNED.keys()
    passed = {"log_dir", "role", "start_method", "event_log_handler", "virtual_local_rank"}
    assert names - OWNED.keys() == {*passed, "numa_binding"}
    words = words_of(tmp_path, **dict.fromkeys(passed, "x"))
    assert {word.partition("=")[0] for word in words} <= KNOWN


@pytest.mark.parametrize("name", [*OWNED, "log_dir", "nproc-per-node", "rdzv-conf"])
def test_what_zeusrun_owns_is_refused_by_name_with_the_line(tmp_path, name):
    if (why := OWNED.get(name.replace("-", "_"))) is None:
        assert load(tmp_path, **{name: "x"}).launch.torchrun == {name: "x"}
        return
    with pytest.raises(JobFileError) as refused:
        load(tmp_path, **{name: 3})
    sentence = f"'launch.torchrun' must not contain '{name}': {why}"
    assert re.fullmatch(rf".*/job.yaml:\d+: {re.escape(sentence)}", str(refused.value))


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_an_option_has_a_plain_value(tmp_path, value):
    with pytest.raises(JobFileError, match=r"must have text, a number or true for 'role'"):
        load(tmp_path, role=value)


def test_options_are_written_as_torchrun_reads_them(tmp_path):
    options = {"log_dir": "a b", "event-log-handler": 3, "virtual_local_rank": True, "role": False}
    words = {"--log-dir=a b", "--event-log-handler=3", "--virtual-local-rank"}
    assert set(words_of(tmp_path, **options)) == words
    assert words_of(tmp_path, (), later=1) == ("--later=1",)  # the source of torchrun is unreadable


@pytest.mark.parametrize(
    ("name", "meant"),
    [("log_dirs", "; did you mean 'log-dir'?"), ("typo", ""), ("t", ""), ("--role", "role")],
)
def test_a_name_that_torchrun_lacks_is_an_error_with_the_job_file(tmp_path, name, meant):
    with pytest.raises(JobFileError) as refused:
        words_of(tmp_path, **{name: "x"})
    assert str(refused.value).startswith(f"{tmp_path}/job.yaml: 'launch.torchrun' has ")
    assert meant in str(refused.value)


@pytest.mark.parametrize(
    ("options", "passed", "lost"),
    [
        ("--standalone --nnodes=1 --max-restarts 2 --rdzv-backend=c10d", None, []),
        ("--rdzv_endpoint localhost:0 --nproc-per-node 2", None, []),
        ("--numa-binding node --virtual-local-rank", {"numa_binding": "node", "virtual_local_rank": True}, []),
        ("--log-dir=l/x --role 3 --start-method fork", {"log_dir": "l/x", "role": "3", "start_method": "fork"}, []),
        ("-t 3 --role a", {"role": "a"}, ["tee"]),
        ("-r 1:3 --local-ranks-filter 0", None, ["redirects", "local_ranks_filter"]),
        ("--signals-to-handle SIGUSR1 --monitor_interval 1", None, ["signals_to_handle", "monitor_interval"]),
        ("--rdzv-conf a=1 --master-port 1", None, ["rdzv_conf", "master_port"]),
        ("--rdzv-backend etcd --rdzv-endpoint a:1", None, ["rdzv_backend", "rdzv_endpoint"]),
        ("--run-path --logs-specs a", None, ["run_path", "logs_specs"]),
        ("--typo 3 --nproc 2", None, ["typo", "nproc"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("program", ["torchrun", "python -m torch.distributed.run"])
def test_init_passes_on_what_it_can_and_warns_of_each_other_option(program, options, passed, lost):
    command = f"{program} {options} train.py"
    guess = build_guess(read_command(shlex.split(command), KNOWN), Script(""), gpus=0, cpus=2)
    assert yaml.safe_load(draft_of(command, guess))["launch"].get("torchrun") == passed
    assert len(guess.warnings) == len(lost)
    for name, warning in zip(lost, guess.warnings, strict=True):
        assert f"--{name}" in warning
        assert OWNED.get(name, "the installed torchrun has no option") in warning


def test_without_a_torchrun_init_keeps_what_may_be_an_option():
    launched = read_command(shlex.split("torchrun --tee 3 --later 1 train.py"))
    assert launched.torchrun == {"later": "1"}
    assert len(launched.warnings) == 1
