"""Takes memory until the kernel kills it; it is the largest process of its control group."""

import zeusrun

zeusrun.current().report(epoch=1, accuracy=0.1)
held = []
while True:
    held.append(bytearray(b"\1") * (16 << 20))
