"""Standard streams that the script replaces, closes, or writes to past Python."""

import io
import os
import sys

how = sys.argv[1]


class Tee:
    def __init__(self, *streams):
        self.streams = streams

    def write(self, text):
        for stream in self.streams:
            stream.write(text)

    def flush(self):
        print("flushed", file=self.streams[0])


print("begins")
if how == "tee":
    sys.stdout = sys.stderr = Tee(sys.stdout, open("tee.txt", "w"))
    print("to both")
    1 / 0
elif how == "closed":
    sys.stdout.close()
    sys.exit(7)
elif how == "closed_stderr":
    sys.stderr.close()
    1 / 0
elif how == "detached":
    raw = sys.stdout.detach()
    raw.write(b"raw\n")
elif how == "none":
    sys.stdout = None
    print("into nothing")
elif how == "no_stderr":
    sys.stderr = None
    1 / 0
elif how == "deleted":
    del sys.stdout
elif how == "open_line":
    print("no end of line", end="")
elif how == "order":
    for n in range(3):
        print("out", n, end=" ")
        sys.stdout.buffer.write(b"bytes\n")
        print("err", n, file=sys.stderr)
        os.write(1, b"descriptor\n")
        sys.__stdout__.write("original\n")
elif how == "surrogates":
    sys.stderr.write("lone \udcff\n")
    print("lone \udcff")
elif how == "broken":
    os.close(1)
    print("into the void")
elif how == "full":
    sys.stdout = open("/dev/full", "w")
    print("no room")
elif how == "buffered":
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))
    print("flushed at the end")
elif how == "both_closed":
    os.close(1)
    os.close(2)
    sys.exit(4)
elif how == "redirected":
    with open("all.txt", "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print("into the file")
    1 / 0
