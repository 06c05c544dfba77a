"""The parts that change or watch a training while it runs: the one table of their names.

A part is a package with the module ``section``: its key of the job file, and what follows from it
(``PartSection`` in ``jobfile/plugged.py``). If the part acts beside the supervisor, it also has
the module ``control`` with a function ``open_agent``. If it acts within a rank, it also has the
module ``rank.agent`` with a function ``join``.
``section`` is imported when a job file has the key, ``control`` when the ranks start, and
``rank.agent`` in each rank whose plan has values for the part.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Part(NamedTuple):
    """Where the code of a part is."""

    package: str
    acts: bool = False  # beside the supervisor


PARTS: dict[str, Part] = {
    "watch": Part("zeusrun.gradients"),
    "adapt": Part("zeusrun.adapt"),
    "elastic": Part("zeusrun.elastic", acts=True),
    "sync": Part("zeusrun.sync"),
    "loader": Part("zeusrun.loader", acts=True),
}
"""By the key of the job file. A part may exclude those before it."""


def load_part(name: str, module: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of a part."""
    return importlib.import_module(f"{PARTS[name].package}.{module}")
