"""A ``transformers.Trainer``. It knows nothing of zeusrun."""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Words(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(2, 50, (count, 8), generator=generator)
        self.labels = (self.words.sum(1) > 8 * 25.5).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


class Prints(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **_):
        if state.is_world_process_zero:
            print("epoch", round(state.epoch), metrics["eval_accuracy"])


def accuracy(predicted):
    right = predicted.predictions.argmax(-1) == predicted.label_ids
    return {"accuracy": float(right.mean())}


config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    "out",
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    logging_steps=2,
    disable_tqdm=True,
    num_train_epochs=3,
    learning_rate=0.25,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=32,
    gradient_accumulation_steps=2,
)
trainer = Trainer(
    BertForSequenceClassification(config),
    arguments,
    train_dataset=Words(128, 0),
    eval_dataset=Words(64, 1),
    compute_metrics=accuracy,
    callbacks=[Prints()],
)
trainer.train()
print("steps", trainer.state.global_step)
