"""What a command starts: the script or module, its arguments, and on how many processes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.jobfile.secrets import make_file, mask_words
from zeusrun.jobfile.torchrun_options import OWNED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_GIVE = "give a command that begins with torchrun, accelerate launch, python or a Python script"
SECRET_FILE = re.compile(r"\{secret_file: [\w~./-]+\}")
"""How a command, and then its job file, names the file of a secret."""

_OF_SHELL = {"&&", "||", "|", "|&", ";", ">", ">>", "2>&1", "<", "&"}
# Options of torchrun and accelerate without a value, besides those that begin with use_.
_FLAGS = {
    "standalone", "module", "no_python", "run_path", "virtual_local_rank", "cpu", "debug",
    "downcast_bf16", "enable_cpu_affinity", "ipex", "multi_gpu", "quiet", "q", "same_network",
    "tpu", "dynamo_use_dynamic", "dynamo_use_fullgraph",
}  # fmt: skip
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
# Options of torchrun that a job file has keys for, or that change nothing.
_AS_HERE = {
    *("nnodes", "nproc_per_node", "max_restarts", "module", "standalone"),
    *(("rdzv_backend", "c10d"), ("rdzv_endpoint", "localhost:0")),
}
# The environment variables by which accelerate passes options to its processes.
_VARIABLES = {
    "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
    "gpu_ids": "CUDA_VISIBLE_DEVICES",
    "cpu": "ACCELERATE_USE_CPU",
}
_NAME_HOSTS = (
    "the command trains on {} machines; name them all in the job file, for example run_on: "
    "{{hosts: [a, b]}}, or write run_on: slurm; else the job runs on this one alone"
)
_NO_LOSS = {
    *_VARIABLES, "num_processes", "num_machines", "main_process_ip", "main_process_port",
    "machine_rank", "module", "multi_gpu", "same_network", "debug", "quiet", "q",
}  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """What a command starts; one of ``script`` and ``module`` is not ``None``."""

    script: str | None = None  # its path
    module: str | None = None  # its name
    args: tuple[str, ...] = ()  # of the script
    nproc_per_node: int | str | None = 1  # as for torchrun; ``None`` if the command lacks it
    distributed: bool = True  # whether the script gets torchrun's variables
    nnodes: int = 1
    max_restarts: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    torchrun: Mapping[str, str] = field(default_factory=dict)  # its other options; "": a switch
    warnings: tuple[str, ...] = ()  # what has no effect under zeusrun, a sentence each


def read_command(words: Sequence[str], known: Collection[str] = ()) -> Launched:
    """Read a command; raises ``UsageError`` if zeusrun cannot run what it starts.

    ``known`` are the ``--long`` options of torchrun; empty if they are not known.
    """
    rest, env = list(words), {}
    if rest[:1] == ["env"]:
        del rest[0]
    while rest and (assignment := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
        del rest[0]
        env[assignment[1]] = assignment[2]
    if not rest:
        raise UsageError(f"there is no command; {_GIVE}")
    quoted = re.match(r"(\S*/)?(torchrun|accelerate|python[\d.]*)\s", rest[0])
    if quoted or not _OF_SHELL.isdisjoint([*rest, *rest[0].split()]):
        raise UsageError(
            "the command must be as you type it, without quotes around the whole, and without what "
            "only a shell understands (&&, |, >, ;); for example: zeusrun init -- torchrun train.py"
        )
    launched = _read_program(*rest)
    _refuse_secrets(words, env)
    passed, warnings = {}, list(launched.warnings)
    for name, text in launched.torchrun.items():
        if name in _AS_HERE or (name, text) in _AS_HERE:
            continue
        if known and f"--{name.replace('_', '-')}" not in known:
            warnings.append(f"the installed torchrun has no option --{name}, so it is left out")
        elif name in OWNED:
            warnings.append(f"torchrun's --{name} has no effect under zeusrun: {OWNED[name]}")
        else:
            passed[name] = text
    env |= launched.env
    return replace(launched, env=env, torchrun=passed, warnings=tuple(warnings))


def _refuse_secrets(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if a word contains a secret instead of the name of its file."""
    masked, named = mask_words(words), {f"{name}={value}": value for name, value in env.items()}
    for word, shown in zip(words, masked, strict=True):
        if word != shown and not SECRET_FILE.fullmatch(named.get(word, word)):
            name = "~/.secrets/NAME"
            raise UsageError(
                f"a job file must not contain the secrets of `{shlex.join(masked)}` (***). Write "
                f"each into a file with `{make_file(name)}`, and put '{{secret_file: {name}}}' in "
                "its place, as a word of its own or as the value of a variable (docs/job-file.md)"
            )


def _read_program(program: str, *words: str) -> Launched:
    name = program.rpartition("/")[2]
    if re.fullmatch(r"python[\d.]*", name):
        return _read_python(list(words))
    if name == "torchrun":
        return _read_torchrun(list(words))
    if name == "accelerate" and words[:1] == ("launch",):
        return _read_accelerate(list(words[1:]))
    if name.endswith(".py") or program.startswith(("./", "../")):
        return Launched(script=program, args=words, distributed=False)
    raise UsageError(f"{program!r} is not a launcher that zeusrun knows; {_GIVE}")


def _read_python(words: list[str]) -> Launched:
    while words and re.fullmatch(r"-[A-Zbdiqsuvx]+", words[0]):
        del words[: 2 if words[0] in {"-W", "-X"} else 1]
    if words and not words[0].startswith("-"):
        return Launched(script=words[0], args=tuple(words[1:]), distributed=False)
    if len(words) < 2 or words[0] != "-m":
        shown = " ".join(mask_words(words))
        raise UsageError(f"the command starts no script: `python {shown}`; {_GIVE}")
    _, module, *args = words
    if module == "torch.distributed.launch":
        raise UsageError(
            "torch.distributed.launch gives the script --local-rank, and zeusrun does not; let the "
            "script read the variable LOCAL_RANK, and give a torchrun command"
        )
    if module == "torch.distributed.run":
        return _read_torchrun(args)
    if module in {"accelerate", "accelerate.commands.launch"}:
        return _read_accelerate(args[args[:1] == ["launch"] :])
    return Launched(module=module, args=tuple(args), distributed=False)


def _read_torchrun(words: list[str]) -> Launched:
    options = _take_options(words)
    return replace(
        _target(words, options, "nnodes"),
        nproc_per_node=_processes(options.get("nproc_per_node", "1")),
        max_restarts=_whole("--max-restarts", options.get("max_restarts", "0")),
        torchrun=options,
    )


def _read_accelerate(words: list[str]) -> Launched:
    options = _take_options(words)
    launched = _target(words, options, "num_machines")
    for name in options:
        if name.startswith("use_") or name == "tpu":
            raise UsageError(
                f"accelerate's --{name} needs accelerate's own launcher, and zeusrun starts "
                "torchrun; give a command without it"
            )
    values = {_VARIABLES[name]: value for name, value in options.items() if name in _VARIABLES}
    count = options.get("num_processes", "1" if "cpu" in options else None)
    nproc = None if count is None else _processes(count)
    if isinstance(nproc, int):  # accelerate counts those of all machines
        nproc = max(1, nproc // launched.nnodes)
    lost = sorted(options.keys() - _NO_LOSS)
    return replace(
        launched,
        nproc_per_node=nproc,
        env={name: value or "true" for name, value in values.items() if value not in {"no", "all"}},
        warnings=(
            *launched.warnings,
            *(f"accelerate's --{name} has no effect under zeusrun" for name in lost),
        ),
    )


def _take_options(words: list[str]) -> dict[str, str]:
    """Remove a launcher's options from the beginning."""
    options = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = _SHORT.get(name, name.replace("-", "_"))
        if not equals and name not in _FLAGS and not name.startswith("use_"):
            if not words:
                raise UsageError(f"the launcher's option {word} has no value")
            value = words.pop(0)
        options[name] = value
    return options


def _target(words: list[str], options: Mapping[str, str], nodes: str) -> Launched:
    first, *last = options.get(nodes, "1").split(":")  # torchrun's MIN:MAX
    nnodes = max(1, _whole(f"--{nodes}", first))
    if last not in ([], [first]):
        raise UsageError(
            f"the command trains on {options[nodes]} machines, and zeusrun does not change their "
            f"number during a run; give one number: --{nodes} {first}"
        )
    if "no_python" in options:
        raise UsageError("zeusrun runs only Python scripts and modules; remove --no-python")
    if not words:
        raise UsageError("the command names no script after the options of the launcher")
    target, *args = words
    of_python = "module" in options
    return Launched(
        script=None if of_python else target,
        module=target if of_python else None,
        args=tuple(args),
        nnodes=nnodes,
        warnings=(_NAME_HOSTS.format(nnodes),) if nnodes > 1 else (),
    )


def _processes(text: str) -> int | str:
    return text if text in {"gpu", "cpu", "auto"} else max(1, _whole("--nproc-per-node", text))


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise UsageError(f"{option} must be a whole number here, not {text!r}")
    return int(text)
