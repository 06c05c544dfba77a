"""A ``transformers.Trainer`` whose batch size on a device is an argument; no accumulation."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=9,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=8,
)
rows = [{"input_ids": torch.full((4,), row % 9), "labels": row % 2} for row in range(256)]
model = BertForSequenceClassification(config)
for size in map(int, sys.argv[1:]):
    arguments = TrainingArguments(
        "out",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        num_train_epochs=1,
        per_device_train_batch_size=size,
    )
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    sizes = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    print("trained", *sizes, trainer.state.global_step)
