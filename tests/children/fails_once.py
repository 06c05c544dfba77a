"""Raises in its first life, and reaches the target in its second."""

import os

import zeusrun

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("the first life")
zeusrun.current().report(epoch=1, accuracy=1.0)
