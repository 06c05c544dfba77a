"""A script that runs other scripts."""

import runpy
import sys

how = sys.argv[1]
if how == "path":
    print(sorted(runpy.run_path("other.py", run_name="__main__")))
elif how == "module":
    print(sorted(runpy.run_module("other", run_name="__main__", alter_sys=True)))
elif how == "exec":
    exec(open("other.py").read())
elif how == "import":
    import other
print(__name__, __file__, sys.argv)
