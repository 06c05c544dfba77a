"""Destructors of global objects, which use names of the module and import."""

import os
import sys

NAME = "a global name"


class Saver:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        import json

        with open(f"{self.name}.json", "w") as file:
            json.dump([self.name, NAME, os.path.sep], file)
        print("deleted", self.name, NAME)


first, _private, last = Saver("first"), Saver("private"), Saver("last")
container = {"deep": [Saver("deep")]}
cycle = Saver("cycle")
cycle.me = cycle
sys.modules["held"] = Saver("in sys.modules")


class Static:
    saver = Saver("of a class")


def function(saver=Saver("of a default")):
    pass


if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
