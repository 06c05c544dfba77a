"""Compressed files, left open: gzip writes its end only when it is closed."""

import bz2
import gzip
import lzma

packed = gzip.open("a.gz", "wt")
packed.write("epoch 1\n" * 1000)
bytes_ = gzip.GzipFile("b.gz", "wb")
bytes_.write(b"epoch 1\n" * 1000)
other = bz2.open("c.bz2", "wt")
other.write("epoch 1\n" * 1000)
third = lzma.open("d.xz", "wb")
third.write(b"epoch 1\n" * 1000)
