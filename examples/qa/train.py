"""Train a small BERT to find answers in texts: an ordinary ``transformers.Trainer`` script."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)


class Example(NamedTuple):
    """A question about a text; the answer begins at a character of the text."""

    question: str
    context: str
    answer: str
    start: int


def read_squad(path: Path) -> list[Example]:
    """Read a file in SQuAD's format, 1.1 or 2.0; questions without an answer are left out."""
    if not path.is_file():
        sys.exit(f"{path}: no such file; --data is a folder with train.json and dev.json of SQuAD")
    return [
        Example(item["question"], paragraph["context"], answer["text"], answer["answer_start"])
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
        for answer in item["answers"][:1]
    ]


def make_up(count: int, seed: int) -> list[Example]:
    """Return questions about somebody's colour or city, both named in the text."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    things = {kind: [f"{kind[:2]}{n}" for n in range(30)] for kind in ("colour", "city")}
    examples = []
    for _ in range(count):
        chosen = {kind: chance.choice(names) for kind, names in things.items()}
        words = [*chosen.values(), *(f"word{chance.randrange(50)}" for _ in range(6))]
        chance.shuffle(words)
        context, kind = " ".join(words), chance.choice(list(chosen))
        start = f" {context} ".index(f" {chosen[kind]} ")
        examples.append(Example(f"which {kind} is it", context, chosen[kind], start))
    return examples


def build_tokenizer(examples: list[Example]) -> PreTrainedTokenizerFast:
    """Learn the words of the training set; nothing is downloaded."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - a word
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=8000, special_tokens=special, show_progress=False
    )
    texts = (text for example in examples for text in (example.question, example.context))
    tokenizer.train_from_iterator(texts, trainer)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def encode(
    examples: list[Example], tokenizer: PreTrainedTokenizerFast, length: int
) -> list[dict[str, Any]]:
    """Return what the model takes, with the first and the last token of each answer."""
    texts = tokenizer(
        [example.question for example in examples],
        [example.context for example in examples],
        truncation="only_second",
        max_length=length,
        padding="max_length",
        return_token_type_ids=True,
    )
    rows = []
    for row, example in enumerate(examples):
        ends = example.start, example.start + len(example.answer) - 1
        found = (texts.char_to_token(row, end, sequence_index=1) for end in ends)
        start, end = (token or 0 for token in found)  # 0: the answer was cut off
        inputs = {name: values[row] for name, values in texts.items()}
        rows.append({**inputs, "start_positions": start, "end_positions": end})
    return rows


def exact_match(predicted: EvalPrediction) -> dict[str, float]:
    """Return the share of answers of which both ends are right."""
    right = [
        scores.argmax(-1) == labels
        for scores, labels in zip(predicted.predictions, predicted.label_ids, strict=True)
    ]
    return {"exact_match": float(np.mean(right[0] & right[1]))}


def main() -> None:
    """Train; every option of ``TrainingArguments`` is one of the script, such as --max_steps."""
    parser = HfArgumentParser(TrainingArguments, description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of train.json and dev.json (SQuAD)")
    parser.add_argument("--max_length", type=int, default=32)
    parser.set_defaults(
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),  # else each rank would train by itself there
    )
    arguments, options = parser.parse_args_into_dataclasses()
    if options.data is None:
        training, evaluation = make_up(4000, seed=0), make_up(300, seed=1)
    else:
        training = read_squad(options.data / "train.json")
        evaluation = read_squad(options.data / "dev.json")
    tokenizer = build_tokenizer(training)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=options.max_length,
    )
    trainer = Trainer(
        BertForQuestionAnswering(config),
        arguments,
        train_dataset=encode(training, tokenizer, options.max_length),
        eval_dataset=encode(evaluation, tokenizer, options.max_length),
        compute_metrics=exact_match,
    )
    trainer.train()


if __name__ == "__main__":
    main()
