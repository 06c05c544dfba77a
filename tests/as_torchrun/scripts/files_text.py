"""Files of text and bytes, left open in every place where people leave them."""

import codecs
import csv
import gc
import io
import json
import pickle
from pathlib import Path

gc.set_threshold(
    0
)  # a collection in the middle, which comes by chance, may lose what is in a cycle
table = open("table.csv", "w", newline="")
csv.writer(table).writerows([["epoch", "loss"], [1, 0.5]])
lines = Path("lines.jsonl").open("a")
lines.write(json.dumps({"epoch": 1}))
raw = open("raw.bin", "wb")
raw.write(bytes(range(256)) * 40)
both = open("both.bin", "w+b")
both.write(b"0123456789")
both.seek(3)
both.write(b"abc")
layers = io.TextIOWrapper(io.BufferedWriter(io.FileIO("layers.txt", "w")), encoding="utf-16")
layers.write("Größe")
coded = codecs.open("coded.txt", "w", "latin-1")
coded.write("Größe")
pickle.dump({"a": 1}, kept := open("state.pkl", "wb"))


class Logger:
    def __init__(self, name):
        self.file = open(name, "w")
        self.me = self  # a cycle

    def __call__(self, text):
        self.file.write(text)


Logger("cycle.txt")("written by a cycle")
holder = [Logger("held.txt")]
holder[0]("written by a global")


def main():
    log = Logger("local.txt")
    log("written by a local")
    yield log


suspended = main()
next(suspended)
