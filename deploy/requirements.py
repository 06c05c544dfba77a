"""Prints what a server needs, for pip: the dependencies without torch, and those of extras."""

from __future__ import annotations

import sys
from pathlib import Path

import tomllib

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
needed = [each for each in project["dependencies"] if not each.startswith("torch>")]
for extra in sys.argv[1:]:
    needed += project["optional-dependencies"][extra]
print("\n".join(needed))  # noqa: T201
