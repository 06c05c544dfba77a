"""What the statistics of gradients cost on one rank: a small transformer, each way, by interval.

Blocks of watched and plain steps alternate inside one process, because whole runs drift too much.
The process has one thread, so its CPU time is what a step takes on a core of its own.
``python benchmarks/watch_one_rank.py [--pairs 9] [--step-ms 30 100]``, or ``--track 0`` for how
well the noise scale of the LayerNorm layers tracks that of the whole model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from timing import describe_machine, show
from torch import nn

from zeusrun.gradients.rank.examples import Examples, find_layers
from zeusrun.gradients.rank.gradients import Gradients
from zeusrun.gradients.rank.noise import Measuring

LENGTH, WIDTH, VOCABULARY = 64, 128, 512
TRACKED = (0, 30, 100, 200, 300, 400, 600)  # optimizer steps
EXAMPLES = 256
MICRO_BATCHES = 4


class Transformer(nn.Module):
    """A small language model with LayerNorm."""

    def __init__(self, layers: int, width: int = WIDTH, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> Any:  # noqa: ANN401, D102 - torch's own
        return self.head(self.norm(self.blocks(self.embed(tokens))))


class Training:
    """Steps of about a chosen length, by the size of the batch."""

    def __init__(self, step_ms: float) -> None:
        self.model = Transformer(layers=2)
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

    def watch(self, way: str, interval: int) -> Any:  # noqa: ANN401 - one of two
        """Begin to measure."""
        samples, fail = (lambda: self.samples), raise_problem  # they grow with each micro-batch
        how = Measuring(interval, samples, lambda: 1.0, self.receive, fail, fail)
        if way == "examples":
            return Examples(self.model, find_layers(self.model), how)
        return Gradients(self.model.parameters(), how)

    def receive(self, *_: object) -> None:
        """Count what was measured."""
        self.received += 1


def track(seed: int, vocabulary: int = 32, length: int = 16) -> None:
    """Print the true noise scales of the layer norms and of all parameters, as a model learns.

    The data are a Markov chain; each noise scale is from the gradients of 256 single examples.
    """
    torch.manual_seed(seed)
    model = Transformer(layers=2, width=32, vocabulary=vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    chances = torch.softmax(2 * torch.randn(vocabulary, vocabulary), 1)

    def loss(examples: int) -> torch.Tensor:
        columns = [torch.randint(0, vocabulary, (examples,))]
        for _ in range(length):
            columns.append(torch.multinomial(chances[columns[-1]], 1)[:, 0])
        tokens = torch.stack(columns, 1)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    def noise_scale(each: torch.Tensor) -> float:
        trace = each.var(0).sum()
        return float(trace / (each.mean(0).square().sum() - trace / len(each)))

    layers = find_layers(model)
    for step in range(TRACKED[-1] + 1):
        if step in TRACKED:
            everything, norms = [], []
            for _ in range(EXAMPLES):
                optimizer.zero_grad()
                loss(1).backward()
                everything.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
                own = [p.grad.flatten() for layer in layers for p in layer.parameters()]
                norms.append(torch.cat(own))
            whole, part = noise_scale(torch.stack(everything)), noise_scale(torch.stack(norms))
            print(f"step {step}: all {whole:.1f}, layer norms {part:.1f}, ratio {part / whole:.2f}")
        optimizer.zero_grad()
        loss(32).backward()
        optimizer.step()


def raise_problem(problem: str) -> None:
    raise SystemExit(problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[30, 100])
    parser.add_argument("--track", type=int, metavar="SEED", help="how well layer norms track")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.track is not None:
        track(options.track)
        return
    print(describe_machine(), f"torch {torch.__version__}")
    for step_ms in options.step_ms:
        training = Training(step_ms)
        steps = max(8, round(options.block_s * 1000 / step_ms))
        count = sum(parameter.numel() for parameter in training.model.parameters())
        print(f"{count:,} parameters, {training.size} samples a step, blocks of {steps} steps")
        ratios: dict[str, list[float]] = {}
        plain_s = []
        for pair in range(options.pairs):
            for way in ("examples", "micro_batches"):
                parts = MICRO_BATCHES if way == "micro_batches" else 1
                for interval in (1, 8):
                    received, seconds = training.received, {}
                    for watched in (True, False) if pair % 2 else (False, True):
                        watch = training.watch(way, interval) if watched else None
                        training.train(2, parts, watch)  # settles the way
                        seconds[watched] = training.train(steps, parts, watch)
                        if watch is not None:
                            watch.close()
                    if training.received == received:
                        raise SystemExit(f"{way} measured nothing")
                    ratios.setdefault(f"{way}, interval {interval}", []).append(
                        seconds[True] / seconds[False]
                    )
                    plain_s += [seconds[False]] if parts == 1 else []
        print(f"plain: {statistics.median(plain_s) * 1000:.1f} ms a step; {options.pairs} pairs")
        show(ratios, "time of a step, watched / plain")


if __name__ == "__main__":
    main()
