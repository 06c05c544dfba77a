"""Prints what the server needs of other packages, from pyproject.toml, without torch."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib


def list_requirements() -> list[str]:
    """Return the requirements of the package and of its extras for the server and its databases."""
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for extra in ("server", "postgresql", "report"):
        wanted += extras[extra]
    return [each for each in wanted if re.match(r"[\w-]+", each)[0] not in {"torch", "zeusrun"}]


if __name__ == "__main__":
    print("\n".join(list_requirements()))
