"""A hook into a library ``scores`` that has a function ``tell``."""

from __future__ import annotations

from zeusrun.worker.hooks.imports import wrap


def install(module, hooks):
    wrap(module, "tell", lambda **metrics: hooks.reporter.log("scores", metrics))
