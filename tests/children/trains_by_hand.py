"""Trains without an optimizer of torch, and prints: ``torch``, or ``plain`` without torch."""

import sys
import time

begun_t = time.monotonic()
if sys.argv[1] == "torch":
    import lean_torch  # noqa: F401
    import torch

    weight = torch.ones(4, requires_grad=True)

for epoch in (1, 2, 3):
    for _ in range(20):
        if sys.argv[1] == "torch":
            (weight.square().sum() * 0.1).backward()
            weight.data -= 0.1 * weight.grad
            weight.grad = None
    time.sleep(0.05)  # a file's time may be 10 ms old
    print(f"accuracy: {0.2 * epoch:g}", flush=True)
print(f"took {time.monotonic() - begun_t}")
