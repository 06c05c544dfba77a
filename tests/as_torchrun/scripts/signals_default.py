"""What each signal would do, as Python and as the kernel see it."""

import signal
import sys

for number in sorted(signal.valid_signals()):
    handler = signal.getsignal(number)
    print(number, getattr(handler, "__name__", handler))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
for line in open("/proc/self/status"):
    if line.startswith("Sig") and "SigQ" not in line:
        print(line.strip())
