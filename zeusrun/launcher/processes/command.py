"""The torchrun command of a trial, and the torchrun that is installed; torch is not imported."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zeusrun
from zeusrun.errors import LaunchError
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.jobfile.plugged import Chosen
from zeusrun.jobfile.sections import split_batch
from zeusrun.plugins import how_to_add
from zeusrun.sidecar.orders import AGENT_TOKEN, PREFIX_COLUMNS
from zeusrun.sidecar.plan import RankPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial

WORKER = Path(zeusrun.__file__).parent / "worker" / "process" / "__main__.py"

# "-m" would put the working directory first on sys.path: torchrun would import a random.py there.
_AGENT = "zeusrun.launcher.processes.agent"
_MAIN = f"import sys; sys.path[:] = filter(None, sys.path); from {_AGENT} import main; main()"
_SOURCE = Path("distributed", "run.py")
_OPTION = re.compile(r"""^\s*["'](--[a-z][a-z-]*)["'],?\s*$""", re.MULTILINE)
_VERSION = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)

# Otherwise restarted ranks share torchrun's store with the ranks before them and find their
# addresses: with gloo, 8 of 12 restarts failed (torch 2.13; pytorch issue 135712).
_RESTARTABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

_MONITOR_INTERVAL_S = 0.05  # torchrun checks its ranks so often; 0.4 % of a core

DEFAULTS = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *_RESTARTABLE)
"""What zeusrun sets unless the environment of a host, or the job, has it."""

# What torchrun gives a rank; without it, a script is alone.
_OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
)


@dataclass(frozen=True)
class Torchrun:
    """An installed torchrun: how to start it, torch's version, and its ``--long`` options.

    ``more`` are options that a job asks for.
    """

    argv: tuple[str, ...]
    version: str
    flags: frozenset[str]
    more: tuple[str, ...] = ()


def find_torchrun() -> Torchrun:
    """Return the torchrun of this interpreter.

    Its options come from its source, because ``torchrun --help`` imports torch for two seconds.
    If the source cannot be read, only options that every torchrun has are used. Raises
    ``LaunchError`` if torch is not installed.
    """
    package = importlib.util.find_spec("torch")
    folders = map(Path, (package.submodule_search_locations or ()) if package else ())
    folder = next((each for each in folders if (each / _SOURCE).exists()), None)
    if folder is None:
        raise LaunchError(
            f"torchrun: torch is not installed for {sys.executable}; install your build of it "
            f"there, or {how_to_add('train')}"
        )
    # importlib.metadata would take 20 ms to load.
    version = _VERSION.search(_read(folder / "version.py"))
    return Torchrun(
        argv=(sys.executable, "-c", _MAIN),
        version="unknown" if version is None else version[1],
        flags=frozenset(_OPTION.findall(_read(folder / _SOURCE))),
    )


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


@dataclass(frozen=True)
class Place:
    """Where the ranks of one torchrun are: all on this host, or its part of several.

    ``endpoint`` is where host 0 serves the rendezvous; port 0 is any free one, so that jobs do not
    clash. ``nic`` and ``address`` are those of the host itself. If a part starts
    programs in place of torchrun, ``token`` proves that they belong to the run, and ``heartbeat_s``
    is how long one of them may be silent.
    """

    ranks: int
    number: int = 0
    hosts: int = 1
    endpoint: str = "localhost:0"
    nic: str = ""
    address: str = ""
    token: str = field(default="", repr=False)
    heartbeat_s: float = 60.0

    def flags(self, rdzv_id: str) -> list[str]:
        """Return torchrun's options."""
        flags = [
            f"--nnodes={self.hosts}",
            f"--nproc-per-node={self.ranks}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={rdzv_id}",
        ]
        if self.hosts == 1:
            return flags
        # torch 2.13 compares the endpoint with the addresses of the host's name, which is often
        # the loopback: then nobody would serve it. It gives out the ranks in the order of these
        # addresses as texts, and uses only that of rank 0. So rank 0 is on host 0.
        address = self.address if self.number == 0 else f"node{self.number:04}.{self.address}"
        is_host = int(self.number == 0)
        return [*flags, f"--rdzv-conf=is_host={is_host}", f"--local-addr={address}"]

    def describe_others(self) -> dict[str, object]:
        """Return how a program of a part finds those on the other hosts; empty with one host."""
        if self.hosts == 1:
            return {}
        here = {"number": self.number, "hosts": self.hosts, "own_ranks": self.ranks}
        reached = {"endpoint": self.endpoint, "address": self.address}
        return {**here, **reached, "silent_s": self.heartbeat_s}

    def env(self) -> dict[str, str]:
        """Return the variables by which the ranks find the others."""
        if not self.nic:
            return {}
        # For NCCL, "=" means this interface, and not all whose names begin so.
        return {"GLOO_SOCKET_IFNAME": self.nic, "NCCL_SOCKET_IFNAME": f"={self.nic}"}


@dataclass(frozen=True)
class Command:
    """What to start: argument vector, whole environment, working directory.

    ``ranks``: of this host; a single one keeps the terminal. ``secrets``: names within ``env``.
    """

    argv: tuple[str, ...] = field(repr=False)  # these two may contain secrets
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    ranks: int | None = None
    script: Path | None = None
    secrets: tuple[str, ...] = ()


def without_own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what an outer zeusrun has set for its ranks."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("ZEUSRUN_") or name == "ZEUSRUN_HOME"
    }


def placeholder_values(spec: JobSpec, trial: Trial, paths: RunPaths) -> dict[str, str]:
    """Return the values of the ``${…}`` placeholders of the job file in this trial."""
    local_batch_size = trial.global_batch_size // trial.world_size
    micro, steps = split_batch(local_batch_size, spec.batch_size.per_device_max)
    return {
        "job": trial.job,
        "trial": trial.trial,
        "recurrence": str(trial.recurrence),
        "attempt": str(trial.attempt),
        "batch_size": str(trial.global_batch_size),
        "local_batch_size": str(local_batch_size),
        "micro_batch_size": str(micro),
        "accumulation_steps": str(steps),
        "total_accumulation_steps": str(steps * trial.world_size),
        "learning_rate": "" if trial.learning_rate is None else repr(trial.learning_rate),
        "max_epochs": str(spec.objective.max_epochs),
        "metric": spec.objective.metric,
        "target": repr(spec.objective.target),
        "world_size": str(trial.world_size),
        "run_dir": str(paths.run_dir),
        "checkpoint_dir": str(paths.checkpoints),
        "sidecar": str(paths.sidecar),
    }


def build_command(
    spec: JobSpec,
    trial: Trial,
    paths: RunPaths,
    torchrun: Torchrun,
    environment: Mapping[str, str],
    *,
    chosen: Chosen | None = None,
    place: Place | None = None,
) -> Command:
    """Return the torchrun command of a trial, in the given environment less an outer zeusrun's.

    ``chosen``: for the parts; ``None``: the trial alone is known.
    ``place``: ``None`` for all ranks on this host. Raises ``JobFileError`` if a placeholder has no
    value in this trial.
    """
    values = placeholder_values(spec, trial, paths)
    grace_s = math.ceil(spec.launch.grace_period_s)  # torchrun takes no fractions
    place = place or Place(trial.world_size)
    flags = [*place.flags(trial.trial), f"--max-restarts={spec.launch.max_restarts}"]
    newer = {"--shutdown-timeout": grace_s, "--monitor-interval": _MONITOR_INTERVAL_S}
    flags += [f"{name}={value}" for name, value in newer.items() if name in torchrun.flags]
    flags += torchrun.more
    # By its path: "-m" would put the working directory before the standard library.
    worker = [str(WORKER), *([] if spec.instrument else ["--plain"])]
    env = {name: expand_placeholders(text, values) for name, text in spec.env.items()}
    if not spec.launch.distributed:
        flags.append("--no-python")
        unset = (word for name in _OF_RANKS if name not in env for word in ("-u", name))
        passed = (f"{name}={env[name]}" for name in _OF_RANKS if name in env)  # as python passes on
        worker = ["env", *unset, *passed, sys.executable, "-u", *worker]
    script = spec.script_path(values)
    target = ("-m", str(spec.module)) if script is None else (str(script),)
    args = [expand_placeholders(text, values) for text in spec.args]
    argv = (*torchrun.argv, *flags, "--")
    # torchrun replaces ${local_rank} and $$ in each word of the script's command.
    script_command = [word.replace("$", "$$") for word in (*worker, *target, *args)]
    parts = spec.parts.values()
    others = place.describe_others()
    starters = (each.starter(trial, spec.launch.max_restarts, others) for each in parts)
    for starter in filter(None, starters):
        start = _MAIN.replace(_AGENT, starter[0])
        argv = (sys.executable, "-c", start, starter[1], sys.executable, "-u")
        env |= {AGENT_TOKEN: place.token} if place.token else {}
        script_command = [*worker, *target, *args]
    most = spec.most_ranks or place.ranks
    secrets = sorted({name for section, name in spec.secrets if section == "env"})
    inherited = without_own_variables(environment)
    if (columns := inherited.get("COLUMNS", "")).isdecimal():
        inherited["COLUMNS"] = str(max(1, int(columns) - PREFIX_COLUMNS))
    return Command(
        # After "--", argparse does not look for torchrun's options among those of the script.
        argv=(*argv, *script_command),
        env={
            **(_RESTARTABLE if spec.launch.max_restarts else {}),
            # As torchrun would, which also prints four lines of warning.
            **({"OMP_NUM_THREADS": "1"} if most > 1 else {}),
            **place.env(),
            **inherited,
            **env,
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(grace_s),
            **plan_ranks(
                spec, trial, paths, chosen=chosen, node=place.number, secrets=secrets
            ).variables(),
        },
        cwd=spec.workdir_path(values),
        ranks=None if place.number else place.ranks,
        script=script,
        secrets=tuple(secrets),
    )


def plan_ranks(
    spec: JobSpec,
    trial: Trial,
    paths: RunPaths,
    *,
    chosen: Chosen | None = None,
    node: int = 0,
    secrets: Sequence[str] = (),
) -> RankPlan:
    """Return the plan for the ranks of a trial on a host; see ``build_command``."""
    files = paths.of_node(node) if node else paths
    objective, sizes, rate = spec.objective, spec.batch_size, spec.learning_rate
    micro, steps = split_batch(trial.global_batch_size // trial.world_size, sizes.per_device_max)
    told: dict[str, Mapping[str, Any]] = {}
    for part in reversed(spec.parts.values()):  # a part's own values win over those of another part
        told |= part.tell(chosen or Chosen(sizes, trial, None))
    return RankPlan(
        job=trial.job,
        trial=trial.trial,
        attempt=trial.attempt,
        run_dir=str(files.run_dir),
        sidecar=str(files.sidecar),
        checkpoint_dir=str(paths.checkpoints),
        batch_size=trial.global_batch_size,
        micro_batch_size=micro,
        accumulation_steps=steps,
        learning_rate=trial.learning_rate,
        max_epochs=objective.max_epochs,
        metric=objective.metric,
        target=objective.target,
        mode=objective.mode,
        on_target=objective.on_target,
        secrets=",".join(secrets) or None,
        given_batch_size=sizes.default if sizes.apply == "dataloader" else None,
        given_learning_rate=rate.base if rate is not None and rate.apply == "optimizer" else None,
        ranks=None if spec.most_ranks is None else trial.world_size,
        parts=told,
    )
