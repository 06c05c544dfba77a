"""From a job and a decision to the command that is run, and the torchrun that is installed."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import zeusrun
from tests.factories import build_trial as trial
from tests.factories import load_job
from zeusrun.errors import LaunchError
from zeusrun.launcher.processes import command
from zeusrun.launcher.processes.command import (
    Torchrun,
    build_command,
    find_torchrun,
    placeholder_values,
)
from zeusrun.launcher.rundir.layout import RunPaths

PATHS = RunPaths(Path("/runs/job/job-1-1"))
MODERN = Torchrun(("python", "-m", "torchrun"), "2.13", frozenset({"--shutdown-timeout"}))
WORKER = str(Path(zeusrun.__file__).parent / "worker" / "process" / "__main__.py")
OLD = Torchrun(("python", "-m", "torchrun"), "2.4", frozenset())


@pytest.fixture
def spec(tmp_path):
    """Load a job with changes."""
    (tmp_path / "train.py").touch()
    usual = {"script": str(tmp_path / "train.py"), "learning_rate": {"base": 0.1}}
    launch = {"nproc_per_node": 2, "grace_period_s": 30}
    return lambda **changes: load_job(tmp_path, **{"launch": launch, **usual, **changes})


def build(spec, torchrun=MODERN, environment=None, **of):
    values = {"learning_rate": 0.1, **of}
    made = trial(**values)
    return build_command(spec, made, PATHS, torchrun, environment or {})


def test_the_argument_vector_is_torchrun_then_worker_then_script(spec, tmp_path):
    assert build(spec(args=["--lr", 0.1])).argv == (
        *MODERN.argv,
        "--nnodes=1",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        "--rdzv-id=job-1-1",
        "--max-restarts=0",
        "--shutdown-timeout=30",
        "--",
        WORKER,
        str(tmp_path / "train.py"),
        "--lr",
        "0.1",
    )


def test_a_module_is_named_as_python_names_it(spec):
    assert build(spec(script=None, module="package.train")).argv[-3:] == (
        WORKER,
        "-m",
        "package.train",
    )


def test_without_instrumentation_the_worker_only_steps_aside(spec):
    argv = build(spec(instrument=False)).argv
    assert argv[argv.index(WORKER) + 1] == "--plain"


def test_a_script_that_is_not_distributed_gets_none_of_torchruns_variables(spec, tmp_path):
    argv = build(spec(launch={"distributed": False}), world_size=1).argv
    begin = argv.index("--no-python") + 2
    assert argv[begin - 1 : begin + 1] == ("--", "env")
    assert argv[-4:] == (sys.executable, "-u", WORKER, str(tmp_path / "train.py"))
    names = argv[begin + 2 : -4 : 2]
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(names)


def test_a_script_that_is_not_distributed_keeps_those_of_them_that_the_job_sets(spec):
    env = {"RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    argv = build(spec(launch={"distributed": False}, env=env), world_size=1).argv
    begin, end = argv.index("env"), argv.index(sys.executable, argv.index("env"))
    assert argv[end - 2 : end] == ("RANK=0", "MASTER_ADDR=127.0.0.1")
    assert not {"RANK", "MASTER_ADDR"} & set(argv[begin : end - 2])
    assert "WORLD_SIZE" in argv[begin:end]


def test_an_option_that_torchrun_does_not_declare_is_not_passed(spec):
    command = build(spec(), OLD)
    assert not any("shutdown" in word for word in command.argv)
    assert command.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "30"


def test_a_fraction_of_a_second_of_grace_is_rounded_up(spec):
    command = build(spec(launch={"grace_period_s": 1.2}))
    assert "--shutdown-timeout=2" in command.argv
    assert command.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "2"


def test_every_rank_is_told_the_choice(spec):
    told = build(spec()).env
    assert {name: value for name, value in told.items() if name.startswith("ZEUSRUN_")} == {
        "ZEUSRUN_JOB": "job",
        "ZEUSRUN_TRIAL": "job-1-1",
        "ZEUSRUN_ATTEMPT": "1",
        "ZEUSRUN_BATCH_SIZE": "32",
        "ZEUSRUN_MICRO_BATCH_SIZE": "16",
        "ZEUSRUN_ACCUMULATION_STEPS": "1",
        "ZEUSRUN_LEARNING_RATE": "0.1",
        "ZEUSRUN_MAX_EPOCHS": "5",
        "ZEUSRUN_METRIC": "accuracy",
        "ZEUSRUN_TARGET": "0.5",
        "ZEUSRUN_MODE": "max",
        "ZEUSRUN_ON_TARGET": "stop",
        "ZEUSRUN_RUN_DIR": str(PATHS.run_dir),
        "ZEUSRUN_SIDECAR": str(PATHS.sidecar),
        "ZEUSRUN_CHECKPOINT_DIR": str(PATHS.checkpoints),
    }


def test_a_job_without_learning_rates_tells_none(spec):
    command = build(spec(learning_rate=None), learning_rate=None)
    assert "ZEUSRUN_LEARNING_RATE" not in command.env


def test_the_environment_is_inherited_less_what_an_outer_zeusrun_told(spec):
    outer = {
        "PATH": "/bin",
        "ZEUSRUN_HOME": "/home",
        "ZEUSRUN_LEARNING_RATE": "9",
        "ZEUSRUN_X": "y",
    }
    env = build(spec(learning_rate=None), environment=outer, learning_rate=None).env
    assert (env["PATH"], env["ZEUSRUN_HOME"]) == ("/bin", "/home")
    assert not {"ZEUSRUN_LEARNING_RATE", "ZEUSRUN_X"} & env.keys()


def test_the_jobs_own_variables_win_over_inherited_ones(spec):
    env = build(spec(env={"OMP_NUM_THREADS": "1"}), environment={"OMP_NUM_THREADS": "8"}).env
    assert env["OMP_NUM_THREADS"] == "1"


def test_lives_share_no_store_where_there_may_be_several_unless_the_user_says_so(spec):
    variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert variable not in build(spec()).env
    restarted = {"launch": {"max_restarts": 1}}
    assert build(spec(**restarted)).env[variable] == "1"
    assert build(spec(**restarted), environment={variable: "0"}).env[variable] == "0"


@pytest.mark.parametrize(("inherited", "told"), [("80", "72"), ("5", "1"), ("wide", "wide")])
def test_the_width_that_a_script_is_told_leaves_room_for_the_name_of_its_rank(
    spec, inherited, told
):
    environment = {"COLUMNS": inherited}
    assert build(spec(), environment=environment).env["COLUMNS"] == told
    own = spec(env={"COLUMNS": "90"})
    assert build(own, environment=environment).env["COLUMNS"] == "90"


def test_placeholders_are_filled_in_arguments_environment_and_paths(spec, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "b32.py").touch()
    command = build(
        spec(
            script="${job}/b${batch_size}.py",
            args=["${local_batch_size}/${world_size}", "$$x"],
            env={"OUT": "${run_dir}/out"},
            workdir="${job}",
        )
    )
    assert command.argv[-3:] == (str(tmp_path / "job" / "b32.py"), "16/2", "$$x")
    assert command.env["OUT"] == f"{PATHS.run_dir}/out"
    assert command.cwd == tmp_path / "job"


def test_a_share_that_does_not_fit_a_device_is_accumulated(spec):
    names = ("local", "micro", "accumulation", "total")
    args = [
        "${local_batch_size}",
        "${micro_batch_size}",
        "${accumulation_steps}",
        "${total_accumulation_steps}",
    ]
    command = build(spec(args=args, batch_size={"per_device_max": 4}))
    assert dict(zip(names, command.argv[-4:], strict=True)) == {
        "local": "16",
        "micro": "4",
        "accumulation": "4",
        "total": "8",
    }
    assert command.env["ZEUSRUN_MICRO_BATCH_SIZE"] == "4"
    assert command.env["ZEUSRUN_ACCUMULATION_STEPS"] == "4"


def test_every_known_placeholder_has_a_value(spec):
    from zeusrun.jobfile.placeholders import PLACEHOLDERS

    values = placeholder_values(spec(), trial(learning_rate=0.1), PATHS)
    assert set(values) == set(PLACEHOLDERS)
    assert all(values.values())


def test_numbers_are_passed_without_loss(spec):
    values = placeholder_values(spec(), trial(learning_rate=0.1 + 0.2), PATHS)
    assert float(values["learning_rate"]) == 0.1 + 0.2


@pytest.mark.parametrize(("sync", "is_told"), [({}, False), ({"compress": "bf16"}, True)])
def test_the_all_reduce_of_the_script_stays_as_it_is_if_sync_changes_nothing(spec, sync, is_told):
    parts = build(spec(sync=sync)).env.get("ZEUSRUN_PARTS", "{}")
    assert ("sync" in json.loads(parts)) is is_told


def test_several_ranks_get_one_thread_each_as_from_torchrun_but_without_its_warning(spec):
    assert build(spec()).env["OMP_NUM_THREADS"] == "1"
    assert build(spec(), environment={"OMP_NUM_THREADS": "8"}).env["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in build(spec(), world_size=1).env


def test_the_installed_torchrun_declares_what_we_pass_it():
    found = find_torchrun()
    assert found.argv[:2] == (sys.executable, "-c")
    release, _, _ = found.version.partition("+")  # the package of a CUDA build may not name it
    assert release == importlib.metadata.version("torch").partition("+")[0]
    assert found.flags >= {
        "--nnodes",
        "--nproc-per-node",
        "--max-restarts",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
    }


def test_torch_is_not_imported_for_it():
    program = (
        "import sys; from zeusrun.launcher.processes.command import find_torchrun; find_torchrun();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a torch of our own, made of one file."""

    def install_torch(source):
        package = tmp_path / "torch"
        (package / "distributed").mkdir(parents=True)
        if source is not None:
            (package / "distributed" / "run.py").write_bytes(source)
        spec = importlib.machinery.ModuleSpec("torch", None, is_package=True)
        spec.submodule_search_locations = [str(package)]
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda _name: spec)

    return install_torch


def test_only_declared_options_count_as_known(install):
    install(
        b'parser.add_argument(\n    "--max-restarts",\n    \'--log-dir\',\n    help="--odd",\n)'
    )
    assert find_torchrun().flags == {"--max-restarts", "--log-dir"}


def test_source_that_cannot_be_decoded_declares_nothing(install):
    install(b"\xff\xfe")
    assert find_torchrun().flags == frozenset()


def test_a_torch_without_torchrun_is_no_torch(install):
    install(None)
    with pytest.raises(LaunchError, match="extra 'train'"):
        find_torchrun()


def test_no_torch_is_said_with_the_interpreter_that_lacks_it(monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LaunchError) as caught:
        find_torchrun()
    assert sys.executable in str(caught.value)
    assert caught.value.exit_code == 5


def test_a_torch_that_does_not_say_its_version_is_launched_all_the_same(install):
    install(b'"--max-restarts",')
    assert find_torchrun().version == "unknown"
