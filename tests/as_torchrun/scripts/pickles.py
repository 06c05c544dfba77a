"""Classes and functions of the script, as pickle and inspect see them."""

import atexit
import dataclasses
import enum
import inspect
import pickle
import sys
import typing


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    parent: "typing.Optional[Config]" = None


class Kind(enum.Enum):
    A = 1


Point = typing.NamedTuple("Point", [("x", int)])


def function(x: "Config") -> "Kind":
    return Kind.A


def look():
    for thing in (Config, Kind, Point, function):
        print(pickle.dumps(thing))
        print(pickle.loads(pickle.dumps(thing)) is thing, thing.__module__)
        print(inspect.getmodule(thing), inspect.getsourcefile(function))
    print(pickle.loads(pickle.dumps(Config(0.2, Config()))))
    print(typing.get_type_hints(function), typing.get_type_hints(Config))
    print(inspect.getsource(Config))
    print(inspect.getfile(Config), inspect.getmodule(inspect.currentframe()))


look()
atexit.register(look)
sys.stdout.flush()
