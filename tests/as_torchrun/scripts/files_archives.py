"""Archives, left open: a zip file gets its directory when it is closed."""

import io
import tarfile
import zipfile

archive = zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED)
archive.writestr("one.txt", "1" * 1000)
tape = tarfile.open("b.tar", "w")
entry = tarfile.TarInfo("one.txt")
entry.size = 3
tape.addfile(entry, io.BytesIO(b"one"))
