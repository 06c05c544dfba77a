"""An HDF5 file, left open: it is unreadable if its end is not written."""

import h5py
import numpy as np

file = h5py.File("runs.h5", "w")
file["loss"] = np.arange(10.0)
group = file.create_group("run")
group.attrs["epochs"] = 3


def main():
    local = h5py.File("local.h5", "w")
    local.create_dataset("loss", data=np.zeros(1000), compression="gzip")
    globals()["cycle"] = [local]
    cycle.append(cycle)


main()
del cycle
