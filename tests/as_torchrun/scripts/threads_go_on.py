"""Threads, pools and timers that have work when the script ends."""

import atexit
import threading
import time
from concurrent.futures import ThreadPoolExecutor

file = open("work.txt", "w")
order = threading.Lock()
atexit.register(lambda: print("exit hook: pool shut down", pool._shutdown))


def work(name, seconds):
    time.sleep(seconds)
    with order:
        file.write(name + "\n")


threading.Thread(target=work, args=["thread", 0.05]).start()
threading.Timer(0.1, work, ["timer", 0]).start()
pool = ThreadPoolExecutor(2)
pool.submit(work, "first", 0.15)
pool.submit(work, "second", 0.2)
print("script ends", threading.active_count(), threading.main_thread().name)
