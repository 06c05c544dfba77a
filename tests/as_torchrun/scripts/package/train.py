"""A module that is trained with ``-m package.train``."""

import pickle
import sys

from .sub.model import Model

WORD = "sibling"


class Config:
    pass


def fail():
    raise ValueError("in a module")


if __name__ == "__main__":
    print(__name__, __package__, __spec__, __file__, __cached__, __doc__, type(__loader__))
    print(sorted(dir()), sys.argv, sys.path[0], sys.modules["package"])
    print(pickle.dumps(Config), pickle.loads(pickle.dumps(Config)) is Config, Model.__module__)
    print("package.train" in sys.modules, sys.modules["__main__"].__dict__ is globals())
    if "fail" in sys.argv:
        fail()
    if "spawn" in sys.argv:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(type, [Config()]))
            pool.close()
            pool.join()
