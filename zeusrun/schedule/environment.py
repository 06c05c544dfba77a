"""The environment of a scheduled run, instead of cron's minimal one. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.jobfile.secrets import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NAMES = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV"
    "|LD_LIBRARY_PATH|LD_PRELOAD|(?:https?|no|all)_proxy|(?:HTTPS?|NO|ALL)_PROXY|ZEUSD_SOCK_PATH"
    "|ZEUSD_HOST_PORT"
    "|(?:LC|XDG|CONDA|CUDA|NVIDIA|NCCL|GLOO|TORCH|PYTORCH|OMP|MKL|OPENBLAS|HF|UCX)_[A-Za-z0-9_]+"
)
_NOT = re.compile(r"XDG_(?:SESSION|SEAT|VTNR|RUNTIME)\w*|CONDA_PROMPT\w*")


def capture(environment: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the variables to keep for later runs: those of libraries, and ``names``.

    Secrets and variables of a login session are kept only if they are in ``names``.

    Args:
        environment: The current environment.
        names: Further variables to keep.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in names or (is_usual(name))
    }


def is_usual(name: str) -> bool:
    """Whether a variable is kept by default: it belongs to a library and is no secret."""
    named = _NAMES.fullmatch(name) is not None and _NOT.fullmatch(name) is None
    return named and not is_secret_name(name)
