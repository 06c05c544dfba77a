"""``python -m zeusrun``: the same as ``zeusrun``."""

from zeusrun.cli import main

main()
