"""Trains nothing and knows no zeusrun: prints or writes its accuracy after each of its epochs."""

import sys
import time

kind = sys.argv[1]
if kind == "csv":
    with open("log.csv", "w") as file:
        file.write("epoch,val\n")
for epoch in range(3):
    busy_until_s = time.process_time() + 0.05  # or no energy could be estimated
    while time.process_time() < busy_until_s:
        pass
    time.sleep(0.15)
    if kind == "csv":
        with open("log.csv", "a") as file:
            file.write(f"{epoch},{0.25 * (epoch + 1)}\n")
    else:
        print(f"Epoch: [{epoch}] Total time: 0:00:01")
        print(f"Test:  Acc@1 {25.0 * (epoch + 1):.3f} Acc@5 90.000")
