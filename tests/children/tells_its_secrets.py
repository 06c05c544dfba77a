"""Prints its secrets in every way Python has, and fails with one.

Told so, it lets a child print one, raises one for torchrun to print, or names a metric by it.
"""

import logging
import os
import subprocess
import sys
import warnings

import zeusrun

token, url = os.environ["HF_TOKEN"], os.environ["DB_URL"]
if token.startswith("hf_") and url.startswith("postgres://"):
    print("got the real ones")
if "by hand" in sys.argv:
    subprocess.run([sys.executable, "-c", f"print('by hand {token}')"], check=True)
    sys.exit(1)
if "for torchrun" in sys.argv:
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError(f"no access with {token}")

    main()
if "as a metric" in sys.argv:
    zeusrun.current().report(**{token: 1})
    sys.exit(0)
print("printed", token)
sys.stdout.write(f"written {url}\n")
sys.stdout.write(token[:8])
sys.stdout.write(token[8:] + " in pieces\n")
print("to stderr", token, file=sys.stderr)
logging.getLogger("script").warning("logged %s", url)
warnings.warn(f"warned {token}", stacklevel=1)
print(repr({"env": token}))
sys.stdout.write(token[:8])  # and no more of it
raise ValueError(f"no access with {token}") from KeyError(url)
