"""The key ``launch.torchrun`` of a job file: options of torchrun that have no key of their own.

Which options there are depends on the torchrun that is installed where the job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.errors import JobFileError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_HOSTS = "rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone"
_HOSTS += " node_rank master_addr master_port local_addr"
_OUTPUT = "tee redirects local_ranks_filter logs_specs"
_OUTPUT += " duplicate_stdout_filters duplicate_stderr_filters"
_WHY = {
    "nnodes nproc_per_node max_restarts": "it is a key of launch itself",
    "shutdown_timeout": "it follows launch.grace_period_s",
    "module no_python run_path": "write script or module; zeusrun starts only Python programs",
    "monitor_interval signals_to_handle": "zeusrun watches and ends the ranks itself",
    _HOSTS: "zeusrun connects the ranks itself; run_on has the hosts, nic and port_range",
    _OUTPUT: "zeusrun reads what a rank prints, and writes it to logs/rankN.log of the run "
    "directory, so torchrun sees none of it",
}
OWNED = {name: why for names, why in _WHY.items() for name in names.split()}
"""The options that zeusrun sets, or that have no effect under it, and why."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if an option must not be passed on, or has no plain value."""
    for name, value in options.items():
        if why := OWNED.get(name.replace("-", "_")):
            raise ValueError(f"must not contain {name!r}: {why}")
        if value is None or isinstance(value, (list, dict)):
            raise ValueError(f"must have text, a number or true for {name!r}")


def option_words(
    options: Mapping[str, Any], known: Collection[str], source: Path
) -> tuple[str, ...]:
    """Return options as words of a command; ``known``: those of torchrun, or empty.

    Raises ``JobFileError`` if torchrun has no such option; ``source`` is the job file.
    """
    given = {key.replace("_", "-"): value for key, value in options.items()}
    names = sorted(each[2:] for each in known if each[2:].replace("-", "_") not in OWNED)
    for name in given:
        if names and name not in names:
            raise JobFileError(
                f"{source}: 'launch.torchrun' has {name!r}, and the installed torchrun has no "
                f"such option{did_you_mean(name, names)}"
            )
    words = {f"--{name}": value for name, value in given.items() if value is not False}
    return tuple(name if each is True else f"{name}={each}" for name, each in words.items())
