"""Modules beside the script with the names of other modules: the script's own come first."""

import importlib
import sys

for name in sys.argv[1:]:
    try:
        print(name, getattr(importlib.import_module(name), "NAME", "not the user's"))
    except Exception as error:
        print(name, repr(error))
