"""Large libraries of test modules, imported at their first use.

Every worker of pytest imports every test module to collect its tests, and torch takes 1.7 s of CPU.
"""

from __future__ import annotations

import gc
import importlib
import sys

import pytest

import tests.children.lean_torch  # noqa: F401 - for its effect

LARGE = {"lightning", "mlflow", "pytorch_lightning", "sklearn", "torch", "transformers"}
IMPORTED = pytest.StashKey[set[str]]()  # those that collecting the tests has imported


class Lazily:
    """Stands for a module in a test module whose tests may never run in this process."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("_"):  # pytest looks for some in every object of a test module
            raise AttributeError(attribute)
        is_new = self._name not in sys.modules
        gc.disable()
        try:
            module = importlib.import_module(self._name)
        finally:
            gc.enable()
        if is_new:  # a collection that looks at all of torch takes 0.7 s
            gc.freeze()
        return getattr(module, attribute)
