"""Children inherit output, folder, environment, input and signals."""

import os
import subprocess
import sys
import traceback

SEE = "import os, signal, sys; print(os.getcwd(), sys.stdin.read() == '', os.environ.get('MINE'), signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT).__name__, flush=True); sys.stderr.write('to stderr\\n')"
os.environ["MINE"] = "1"
subprocess.run([sys.executable, "-c", SEE], check=True)
print(subprocess.run(["cat"], input=b"piped", capture_output=True).stdout)
print(subprocess.getoutput("echo $0; exit 3"), os.system("exit 3"), flush=True)
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; sys.stdin.read(); print('left alone')"],
    stdin=subprocess.PIPE,
)
print(sorted(os.listdir("/proc/self/fd"))[:3])
child.communicate()
try:
    subprocess.Popen(["./nowhere"])
except FileNotFoundError as error:
    print("frames", len(traceback.extract_tb(error.__traceback__)), error)
