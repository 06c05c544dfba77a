"""Temporary files and folders, left to Python to remove."""

import os
import tempfile

kept = tempfile.NamedTemporaryFile("w", delete=False)
kept.write("kept")
os.rename(kept.name, "kept.txt")
gone = tempfile.NamedTemporaryFile("w")
gone.write("gone")
folder = tempfile.TemporaryDirectory()
open(os.path.join(folder.name, "inside.txt"), "w").write("inside")
spooled = tempfile.SpooledTemporaryFile(max_size=2)
spooled.write(b"too long for the memory")
left = tempfile.mkdtemp()
descriptor, path = tempfile.mkstemp()
os.write(descriptor, b"left")
print(len(os.listdir(tempfile.gettempdir())))
