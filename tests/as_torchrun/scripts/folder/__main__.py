import inspect
import pickle
import pkgutil
import sys

import helper


class Config:
    pass


print(__name__, __file__, __package__, __spec__ and __spec__.name, type(__loader__))
print(sys.argv, sys.path[0], helper.WORD, sorted(dir()))
print(inspect.getsource(helper.work), pickle.loads(pickle.dumps(Config)) is Config)
print(pkgutil.get_data("helper", "words.txt"))
if "spawn" in sys.argv and __name__ == "__main__":
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(helper.work, [1]))
helper.work("a" if "fail" in sys.argv else 1)
