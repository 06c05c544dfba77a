"""The process as the script finds it."""

import locale
import os
import resource
import sys

print(os.getcwd(), oct(os.umask(0o22)), os.nice(0), os.times().children_user)
print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())
print([resource.getrlimit(n) for n in range(16)])
print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding())
print(os.sched_getaffinity(0) == os.sched_getaffinity(os.getppid()), os.sched_getscheduler(0))
print(open("/proc/self/comm").read(), open("/proc/self/oom_score_adj").read())
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering)
    print(stream.isatty(), stream.write_through, type(stream), type(stream.buffer), stream.newlines)
    print(
        stream is getattr(sys, f"__{stream.name.strip('<>')}__"),
        os.get_inheritable(stream.fileno()),
    )
print(repr(sys.stdin.read()))
try:
    input("a question ")
except EOFError as error:
    print(repr(error))
