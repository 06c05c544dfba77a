"""multiprocessing by fork: a pool, a queue, and processes that run when the script ends."""

import multiprocessing
import time

mp = multiprocessing.get_context("fork")


def double(n):
    return 2 * n


def put(queue):
    queue.put(multiprocessing.current_process().name)


def late():
    time.sleep(0.1)
    with open("late.txt", "w") as file:
        file.write("late process")


with mp.Pool(2) as pool:
    print(pool.map(double, range(5)), multiprocessing.get_start_method(allow_none=True))
queue = mp.Queue()
writer = mp.Process(target=put, args=[queue])
writer.start()
print(queue.get())
writer.join()
mp.Process(target=late).start()
mp.Process(target=time.sleep, args=[600], daemon=True).start()
left = mp.Pool(1)
daemons = [child for child in mp.active_children() if child.daemon]  # the late one may have ended
print(left.apply(double, [4]), multiprocessing.current_process().name, len(daemons))
