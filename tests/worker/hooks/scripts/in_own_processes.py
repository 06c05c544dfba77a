"""Starts two ranks by itself: ``in_own_processes.py HOW SCRIPT [ARG ...]``.

``HOW`` is a start method of multiprocessing.
"""

import multiprocessing
import os
import runpy
import socket
import sys


def environment(number, port):
    places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_PORT": port}
    names = {name: str(value) for name, value in places.items()}
    return {**names, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def run_rank(number, port, arguments):
    os.environ.update(environment(number, port))
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    how, *arguments = sys.argv[1:]
    context = multiprocessing.get_context(how)
    ranks = [context.Process(target=run_rank, args=(number, port, arguments)) for number in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(rank.exitcode for rank in ranks))
