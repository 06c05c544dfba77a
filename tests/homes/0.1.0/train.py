import os, time
import zeusrun

run = zeusrun.current()
mode, size = os.environ["MODE"], run.local_batch_size(default=32)
run.learning_rate(default=0.1)
for epoch in range(1, 4):
    time.sleep({"slow": 30, "long": 1.5}.get(mode, 0.05))
    if mode == "fail":
        raise ValueError("the data set is empty")
    run.report(epoch=epoch, accuracy=0.2 if mode == "miss" else min(0.9, 0.3 * epoch))
