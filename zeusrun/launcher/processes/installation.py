"""Which torchrun is installed, and what it understands. Torch itself is never imported here."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from zeusrun.errors import LaunchError

# "-m" would put the working directory first on sys.path: torchrun would import a random.py there.
_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from zeusrun.launcher.processes.agent import main; main()"
)


@dataclass(frozen=True)
class Torchrun:
    """An installed torchrun.

    Attributes:
        argv: How to start it.
        version: Of torch.
        flags: The long options it declares, with dashes: ``--shutdown-timeout``.
    """

    argv: tuple[str, ...]
    version: str
    flags: frozenset[str]


def find_torchrun() -> Torchrun:
    """Look at the torch of this interpreter without importing it.

    Its options are read from its source, because ``torchrun --help`` imports torch for two
    seconds. Source that cannot be read declares nothing, and only what every torchrun
    understands is passed.

    Raises:
        LaunchError: If torch is not installed.
    """
    package = importlib.util.find_spec("torch")
    locations = list(package.submodule_search_locations or ()) if package else []
    sources = [Path(location) / "distributed" / "run.py" for location in locations]
    if not any(source.exists() for source in sources):
        raise LaunchError(
            f"torchrun: torch is not installed for {sys.executable}; "
            "install it there with 'python -m pip install torch'."
        )
    try:
        text = next(source for source in sources if source.exists()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return Torchrun(
        argv=(sys.executable, "-c", _MAIN),
        version=_read_version(locations),
        flags=frozenset(re.findall(r"""^\s*["'](--[a-z][a-z-]*)["'],?\s*$""", text, re.MULTILINE)),
    )


def _read_version(locations: list[str]) -> str:
    """Return what torch says its version is; ``importlib.metadata`` takes 20 ms to load."""
    for location in locations:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (Path(location) / "version.py").read_text(encoding="utf-8")
            found = re.search(r"""^__version__ *= *["']([^"']+)["']""", text, re.MULTILINE)
            if found is not None:
                return found[1]
    return "unknown"
