"""Train a small transformer on the sentiment of texts that change from day to day.

The texts stand in order of time, and each slice of them is a training set of its own, which
overlaps with the next one: the idea of the Capriccio data set (You et al., NSDI 2023).
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import random
import sys
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

LENGTH, VOCABULARY = 24, 4096
NEGATIVE = {"0", "negative", "neg", "-1", "false"}


def read_texts(path: Path) -> list[tuple[str, int]]:
    """Read texts and labels, in order of time, from ``.jsonl`` or ``.csv``: ``text``, ``label``."""
    if not path.is_file():
        sys.exit(f"{path}: no such file; --data is a .csv or .jsonl with 'text' and 'label'")
    with path.open(encoding="utf-8", newline="") as file:
        read = map(json.loads, filter(str.strip, file)) if path.suffix == ".jsonl" else None
        rows = list(read or csv.DictReader(file))
    if not rows or not rows[0].keys() >= {"text", "label"}:
        sys.exit(f"{path}: it has no rows with 'text' and 'label'")
    return [(row["text"], int(str(row["label"]).lower() not in NEGATIVE)) for row in rows]


def make_up(first: int, count: int, step: int) -> list[tuple[str, int]]:
    """Return the texts ``first`` to ``first + count``; with every slice, new words come up."""
    texts = []
    for number in range(first, first + count):
        chance = random.Random(number)  # noqa: S311 - no secret
        age, label = number / step, chance.randrange(2)
        moods = [f"{'good' if label else 'bad'}{int(age * 4) + chance.randrange(80)}"] * 2
        moods.append(f"{chance.choice(('good', 'bad'))}{int(age * 4) + chance.randrange(80)}")
        words = moods + [f"word{int(age * 8) + chance.randrange(400)}" for _ in range(12)]
        chance.shuffle(words)
        texts.append((" ".join(words), label))
    return texts


def encode(texts: list[tuple[str, int]]) -> TensorDataset:
    """Hash words to numbers from 1 up; 0 is padding."""
    numbers = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, (text, _) in zip(numbers, texts, strict=True):
        words = text.lower().split()[:LENGTH]
        hashes = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
        row[: len(hashes)] = torch.tensor(hashes, dtype=torch.long)
    return TensorDataset(numbers, torch.tensor([label for _, label in texts]))


class Classifier(nn.Module):
    """One layer of a transformer over embedded words, and the mean of what comes out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.scores = nn.Linear(width, 2)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return scores of shape ``(n, 2)``."""
        padding = numbers == 0
        padding[:, 0] = False  # of an empty text, one word remains
        features = self.layer(self.words(numbers) + self.places, src_key_padding_mask=padding)
        kept = ~padding.unsqueeze(2)
        return self.scores((features * kept).sum(1) / kept.sum(1))


def main() -> None:
    """Train on one slice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="texts in order of time; default: made up")
    parser.add_argument("--slice", type=int, help="number of the slice; default: that of today")
    parser.add_argument("--slice-size", type=int, default=5000)
    parser.add_argument("--slice-step", type=int, default=500, help="from one to the next")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--log-dir", default="runs/sentiment", help="for TensorBoard")
    args = parser.parse_args()

    today = dt.datetime.now(tz=dt.timezone.utc).date()
    number = today.toordinal() if args.slice is None else args.slice
    size, first = args.slice_size, number * args.slice_step
    if args.data is None:
        texts = make_up(first, size, args.slice_step)
    else:
        texts = read_texts(args.data)
        first %= max(1, len(texts) - size + 1)  # after the last slice, the first one again
        texts = texts[first : first + size]
    random.Random(number).shuffle(texts)  # noqa: S311 - no secret
    held_out = len(texts) // 5
    validation, training = encode(texts[:held_out]), encode(texts[held_out:])
    print(f"slice {number}: texts {first} to {first + len(texts)}", flush=True)

    torch.manual_seed(number)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(training, args.batch_size, shuffle=True)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    writer = SummaryWriter(args.log_dir)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(inputs.to(device)).argmax(1) == labels.to(device)).sum().item()
                for inputs, labels in DataLoader(validation, 500)
            )
        writer.add_scalar("val_accuracy", right / len(validation), epoch)
        print(f"epoch {epoch}: val_accuracy {right / len(validation):.4f}", flush=True)


if __name__ == "__main__":
    main()
