"""Finds the installed torchrun and its options without importing torch."""

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
_SOURCE = Path("distributed", "run.py")
_OPTION = re.compile(r"""^\s*["'](--[a-z][a-z-]*)["'],?\s*$""", re.MULTILINE)
_VERSION = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Torchrun:
    """An installed torchrun: how to start it, torch's version, and its ``--long`` options."""

    argv: tuple[str, ...]
    version: str
    flags: frozenset[str]


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
            f"torchrun: torch is not installed for {sys.executable}; "
            "install it there with 'python -m pip install torch'."
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
