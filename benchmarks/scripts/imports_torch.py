"""Imports torch: its end takes the interpreter longer than that of an empty script."""

import torch  # noqa: F401
