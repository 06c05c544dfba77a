"""multiprocessing by spawn or forkserver, with functions and classes of this file."""

import multiprocessing
import sys


class Config:
    def __init__(self, rate):
        self.rate = rate


def double(config):
    return __name__, Config.__module__, config.rate * 2, sys.argv


def main(how):
    mp = multiprocessing.get_context(how)
    with mp.Pool(1) as pool:
        print(pool.map(double, [Config(1), Config(2)]))
    process = mp.Process(target=print, args=["a process"])
    process.start()
    process.join()
    print(process.exitcode)
    if how == "forkserver":
        with mp.Manager() as manager:
            print(manager.list([1, 2])[1])


if __name__ == "__main__":
    main(sys.argv[1])
