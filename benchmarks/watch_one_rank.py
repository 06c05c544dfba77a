"""What the statistics of gradients cost on one rank: a small transformer, by interval.

Blocks of watched and plain steps alternate inside one process, because whole runs drift too much.
The process has one thread, so its CPU time is what a step takes on a core of its own.
``python benchmarks/watch_one_rank.py [--pairs 9] [--step-ms 30 100]``
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from timing import describe_machine, show
from torch import nn

from zeusrun.gradients.rank.gradients import Gradients
from zeusrun.gradients.rank.noise import Measuring

LENGTH, WIDTH, VOCABULARY = 64, 128, 512
MICRO_BATCHES = 4


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> Any:  # noqa: ANN401, D102 - torch's own
        return self.head(self.norm(self.blocks(self.embed(tokens))))


class Training:
    """Steps of about a chosen length, by the size of the batch."""

    def __init__(self, step_ms: float) -> None:
        self.model = Transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.samples, self.size, self.received = 0, MICRO_BATCHES, 0
        self.train(3, 1)
        ms = self.train(5, 1) * 1000
        self.size = max(1, round(step_ms / ms)) * MICRO_BATCHES

    def train(self, steps: int, parts: int, watch: Any = None) -> float:  # noqa: ANN401
        """Return the CPU seconds of a step."""
        tokens = torch.randint(0, VOCABULARY, (self.size, LENGTH))
        started = time.process_time()
        for _ in range(steps):
            for part in tokens.chunk(parts):
                self.samples += len(part)
                logits = self.model(part).flatten(0, 1)
                (nn.functional.cross_entropy(logits, part.flatten()) / parts).backward()
            self.optimizer.step()
            if watch is not None:
                watch.after_step()
            self.optimizer.zero_grad()
            self.samples = 0
        return (time.process_time() - started) / steps

    def watch(self, interval: int) -> Gradients:
        """Begin to measure."""
        samples, fail = (lambda: self.samples), raise_problem  # they grow with each micro-batch
        how = Measuring(interval, samples, lambda: 1.0, self.receive, fail, fail)
        return Gradients(self.model.parameters(), how)

    def receive(self, *_: object) -> None:
        """Count what was measured."""
        self.received += 1


def raise_problem(problem: str) -> None:
    raise SystemExit(problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[30, 100])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine(), f"torch {torch.__version__}")
    for step_ms in options.step_ms:
        training = Training(step_ms)
        steps = max(8, round(options.block_s * 1000 / step_ms))
        count = sum(parameter.numel() for parameter in training.model.parameters())
        print(f"{count:,} parameters, {training.size} samples a step, blocks of {steps} steps")
        ratios: dict[str, list[float]] = {}
        plain_s = []
        for pair in range(options.pairs):
            for interval in (1, 8):
                received, seconds = training.received, {}
                for watched in (True, False) if pair % 2 else (False, True):
                    watch = training.watch(interval) if watched else None
                    training.train(2, MICRO_BATCHES, watch)
                    seconds[watched] = training.train(steps, MICRO_BATCHES, watch)
                    if watch is not None:
                        watch.close()
                if training.received == received:
                    raise SystemExit("nothing was measured")
                ratio = seconds[True] / seconds[False]
                ratios.setdefault(f"interval {interval}", []).append(ratio)
                plain_s.append(seconds[False])
        print(f"plain: {statistics.median(plain_s) * 1000:.1f} ms a step; {options.pairs} pairs")
        show(ratios, "time of a step, watched / plain")


if __name__ == "__main__":
    main()
