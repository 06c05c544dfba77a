"""A pool of processes, whose work goes on after the script."""

import concurrent.futures
import multiprocessing
import time


def work(name):
    time.sleep(0.05)
    with open(f"{name}.txt", "w") as file:
        file.write(name)
    return name


pool = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
print(sorted(pool.map(work, "ab")))
pool.submit(work, "late")
