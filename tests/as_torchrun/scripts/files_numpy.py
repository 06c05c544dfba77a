"""Arrays in files that nobody flushes."""

import mmap
import numpy as np

losses = np.memmap("losses.dat", dtype="float32", mode="w+", shape=(100,))
losses[:] = np.arange(100)
weights = np.lib.format.open_memmap("weights.npy", mode="w+", dtype="int64", shape=(3, 4))
weights[1] = 7
with open("mapped.bin", "wb") as file:
    file.write(bytes(4096))
file = open("mapped.bin", "r+b")
mapped = mmap.mmap(file.fileno(), 0)
mapped[10:14] = b"here"
saved = open("saved.npz", "wb")
np.savez(saved, a=np.ones(3))
