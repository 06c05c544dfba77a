"""Every kind of handler that holds records back, and logging at the very end."""

import atexit
import logging
import logging.handlers
import queue

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s:%(lineno)d %(message)s")
log = logging.getLogger("train")
to_file = logging.FileHandler("train.log", delay=True)
held = logging.handlers.MemoryHandler(100, target=to_file)
log.addHandler(held)
listener = logging.handlers.QueueListener(queue.Queue(), logging.FileHandler("queue.log"))
log.addHandler(logging.handlers.QueueHandler(listener.queue))
listener.start()
atexit.register(listener.stop)
atexit.register(log.warning, "at exit")


class Model:
    def __del__(self):
        log.info("deleted")


model = Model()
log.info("in the script")
logging.lastResort.handle(logging.makeLogRecord({"msg": "last", "levelno": 40}))
