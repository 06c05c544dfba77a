"""What a command starts: the script or module, its arguments, and on how many processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.jobfile.secrets import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GIVE = "give a command that begins with torchrun, accelerate launch, python or a Python script"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_TORCHRUN_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_ACCELERATE_MODULES = {"accelerate.commands.launch"}
_SHORT = {"m": "module", "r": "redirects", "t": "tee", "q": "quiet"}

_TORCHRUN_FLAGS = {"standalone", "module", "no_python", "run_path", "use_env", "virtual_local_rank"}
_TORCHRUN_VALUES = {
    "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf",
    "max_restarts", "monitor_interval", "start_method", "event_log_handler", "role", "log_dir",
    "redirects", "tee", "local_ranks_filter", "duplicate_stdout_filters",
    "duplicate_stderr_filters", "node_rank", "master_addr", "master_port", "local_addr",
    "logs_specs", "numa_binding", "signals_to_handle", "shutdown_timeout",
}  # fmt: skip
_ACCELERATE_FLAGS = {
    "cpu", "debug", "downcast_bf16", "dynamo_use_dynamic", "dynamo_use_fullgraph",
    "dynamo_use_regional_compilation", "enable_cpu_affinity", "fp8_use_autocast_during_eval",
    "ipex", "module", "multi_gpu", "no_python", "no_tpu_cluster", "quiet", "same_network", "tpu",
    "tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm",
    "use_mps_device", "use_parallelism_config", "use_xpu",
}  # fmt: skip
# How accelerate tells its choice to the processes that it starts.
_ACCELERATE_VARIABLES = {
    "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
    "gpu_ids": "CUDA_VISIBLE_DEVICES",
}
_OTHER_LAUNCHERS = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config", "tpu")
_PLACEMENT = {"main_process_ip", "main_process_port", "machine_rank", "num_machines", "quiet"}


@dataclass(frozen=True)
class Launched:
    """What a command starts.

    Attributes:
        script: Path of the script; ``None`` if it is a module.
        module: Name of the module; ``None`` if it is a script.
        args: Of the script.
        nproc_per_node: As for torchrun; ``None`` if the command does not say it.
        max_restarts: Of the processes.
        env: Variables that the command sets.
        warnings: What of the command has no effect under zeusrun, a sentence each.
    """

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    nproc_per_node: int | str | None = 1
    max_restarts: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_command(words: Sequence[str]) -> Launched:
    """Read a command.

    Raises:
        UsageError: If zeusrun cannot run what it starts.
    """
    rest = list(words)
    if rest and rest[0] == "env":
        del rest[0]
    env = {}
    while rest and (assignment := _ASSIGNMENT.fullmatch(rest[0])):
        env[assignment[1]] = assignment[2]
        del rest[0]
    launched = _read_program(rest)
    secrets = sorted(filter(is_secret_name, env))
    warnings = [f"{name} is secret, so it is left out; export it instead" for name in secrets]
    plain = {name: value for name, value in env.items() if name not in secrets}
    return replace(
        launched,
        env={**plain, **launched.env},
        warnings=(*warnings, *launched.warnings),
    )


def _read_program(words: list[str]) -> Launched:
    if not words:
        raise UsageError(f"there is no command; {_GIVE}")
    program, *rest = words
    name = program.rpartition("/")[2]
    if name == "torchrun":
        return _read_torchrun(rest)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _read_accelerate(rest[1:])
    if _PYTHON.fullmatch(program):
        return _read_python(rest)
    if name.endswith(".py") or program.startswith(("./", "../")):
        return Launched(script=program, args=tuple(rest))
    raise UsageError(f"{program!r} is no launcher that zeusrun knows; {_GIVE}")


def _read_python(words: list[str]) -> Launched:
    while words and re.fullmatch(r"-[A-Zbdiqsuvx]+", words[0]):
        takes_value = words[0] in {"-W", "-X"}
        del words[: 2 if takes_value else 1]
    if not words or (words[0].startswith("-") and words[0] != "-m") or words == ["-m"]:
        raise UsageError(f"the command starts no script: `python {' '.join(words)}`; {_GIVE}")
    if words[0] != "-m":
        return Launched(script=words[0], args=tuple(words[1:]))
    _, module, *rest = words
    if module in _TORCHRUN_MODULES:
        launched = _read_torchrun(rest)
        old = "torch.distributed.launch gives the script --local-rank; torchrun does not"
        text = f"{old}: the script must read the variable LOCAL_RANK"
        return replace(launched, warnings=(text,)) if module.endswith("launch") else launched
    if module in _ACCELERATE_MODULES:
        return _read_accelerate(rest)
    if module == "accelerate" and rest[:1] == ["launch"]:
        return _read_accelerate(rest[1:])
    return Launched(module=module, args=tuple(rest))


def _read_torchrun(words: list[str]) -> Launched:
    options = _take_options("torchrun", words, _TORCHRUN_FLAGS, _TORCHRUN_VALUES)
    _check_one_node(options.get("nnodes", "1"), "--nnodes 1")
    return replace(
        _target("torchrun", words, options),
        nproc_per_node=_processes(options.get("nproc_per_node", "1")),
        max_restarts=_whole("--max-restarts", options.get("max_restarts", "0")),
    )


def _read_accelerate(words: list[str]) -> Launched:
    options = _take_options("accelerate", words, _ACCELERATE_FLAGS, None)
    _check_one_node(options.get("num_machines", "1"), "--num_machines 1")
    for name in _OTHER_LAUNCHERS:
        if name in options:
            raise UsageError(
                f"accelerate's --{name} needs accelerate's own launcher, and zeusrun starts "
                "torchrun; give a command without it"
            )
    env = {
        variable: options[name]
        for name, variable in _ACCELERATE_VARIABLES.items()
        if options.get(name) not in (None, "no", "all")
    }
    if "dynamo_backend" in options:
        env["ACCELERATE_DYNAMO_BACKEND"] = options["dynamo_backend"].upper()
    if "cpu" in options:
        env["ACCELERATE_USE_CPU"] = "true"
    nproc = _processes(options["num_processes"]) if "num_processes" in options else None
    if nproc is None and "cpu" in options:
        nproc = 1
    if nproc is None and "multi_gpu" in options:
        nproc = "gpu"
    known = {*_ACCELERATE_VARIABLES, *_PLACEMENT, "num_processes", "dynamo_backend", "cpu"}
    lost = sorted(options.keys() - known - {"module", "multi_gpu", "same_network", "debug"})
    warnings = tuple(f"accelerate's --{name} has no effect under zeusrun" for name in lost)
    launched = _target("accelerate", words, options)
    return replace(launched, nproc_per_node=nproc, env=env, warnings=warnings)


def _take_options(
    launcher: str, words: list[str], flags: set[str], values: set[str] | None
) -> dict[str, str]:
    """Remove a launcher's options from the beginning; ``values`` of ``None`` is any other name."""
    options = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = _SHORT.get(name, name)
        if name in flags and not equals:
            options[name] = ""
        elif values is not None and name not in values:
            raise UsageError(f"{launcher}'s option {word} is not known; leave it out")
        elif equals or words:
            options[name] = value if equals else words.pop(0)
        else:
            raise UsageError(f"{launcher}'s option {word} has no value")
    return options


def _target(launcher: str, words: list[str], options: Mapping[str, str]) -> Launched:
    if "no_python" in options:
        raise UsageError("zeusrun runs Python scripts and modules alone; --no-python starts others")
    if not words:
        raise UsageError(f"the {launcher} command names no script")
    target, *args = words
    if "module" in options:
        return Launched(module=target, args=tuple(args))
    return Launched(script=target, args=tuple(args))


def _check_one_node(count: str, instead: str) -> None:
    if set(count.split(":")) != {"1"}:
        raise UsageError(
            f"the command trains on {count} nodes, but zeusrun runs a job on one machine; give "
            f"the command for one: {instead}"
        )


def _processes(text: str) -> int | str:
    return text if text in {"gpu", "cpu", "auto"} else max(1, _whole("--nproc-per-node", text))


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise UsageError(f"{option} must be a whole number here, not {text!r}")
    return int(text)
