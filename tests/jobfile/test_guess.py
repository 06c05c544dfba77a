"""What ``zeusrun init`` makes of commands that people run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import ROOT
from zeusrun.errors import UsageError
from zeusrun.jobfile.guess.command import Launched, read_command
from zeusrun.jobfile.guess.draft import write_draft
from zeusrun.jobfile.guess.guess import Batch, build_guess
from zeusrun.jobfile.guess.script import Script
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.target import likely_mode

LOCAL, GLOBAL, MICRO = "${local_batch_size}", "${batch_size}", "${micro_batch_size}"
STEPS, RATE, EPOCHS = "${accumulation_steps}", "${learning_rate}", "${max_epochs}"

# Scripts, as far as they say something about their arguments.
TORCHVISION = """
    import torchvision, utils
    utils.init_distributed_mode(args)
    parser.add_argument("-b", "--batch-size", default=32, type=int, help="images per gpu")
    parser.add_argument("--epochs", default=90, type=int, metavar="N")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--opt", default="sgd", type=str)
    optimizer = torch.optim.AdamW(parameters) if args.opt == "adamw" else torch.optim.SGD(parameters)
"""
TIMM = """
    from timm import utils
    group.add_argument("-b", "--batch-size", type=int, default=128, metavar="N")
    group.add_argument("--grad-accum-steps", type=int, default=1)
    group.add_argument("--lr", type=float, default=None)
    group.add_argument("--lr-base", type=float, default=0.1)
    group.add_argument("--epochs", type=int, default=300)
    if not args.lr:
        batch_ratio = global_batch_size / args.lr_base_size
        args.lr = args.lr_base * batch_ratio
"""
IMAGENET = """
    from torchvision import models
    parser.add_argument('-b', '--batch-size', default=256, type=int)
    parser.add_argument('--lr', '--learning-rate', default=0.1, type=float, dest='lr')
    parser.add_argument('--epochs', default=90, type=int)
    args.batch_size = int(args.batch_size / ngpus_per_node)
"""
TRAINER = """
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    trainer = Trainer(model=model, args=training_args, compute_metrics=compute_metrics)
"""
NO_TRAINER = """
    from accelerate import Accelerator
    from transformers import AutoModel
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
"""
NANOGPT = """
    gradient_accumulation_steps = 5 * 8
    batch_size = 12
    learning_rate = 6e-4
    exec(open('configurator.py').read())
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
    optimizer = model.configure_optimizers()  # AdamW
"""
LIGHTNING = """
    from lightning.pytorch.cli import LightningCLI
    cli = LightningCLI(Model, Data)
"""
YOLO = """
    from torch.utils.data import DistributedSampler
    parser.add_argument("--batch-size", type=int, default=16)
    loader = create_dataloader(train_path, imgsz, batch_size // WORLD_SIZE)
"""
MAE = """
    parser.add_argument('--batch_size', default=64, type=int)
    parser.add_argument('--accum_iter', default=1, type=int)
    parser.add_argument('--blr', type=float, default=1e-3)
    eff_batch_size = args.batch_size * args.accum_iter * misc.get_world_size()
    args.lr = args.blr * eff_batch_size / 256
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    sampler = torch.utils.data.DistributedSampler(data)
"""
MNIST = """
    import torch
    from torchvision import datasets
    parser.add_argument('--batch-size', type=int, default=64, metavar='N')
    parser.add_argument('--test-batch-size', type=int, default=1000, metavar='N')
    parser.add_argument('--epochs', type=int, default=14, metavar='N')
    parser.add_argument('--lr', type=float, default=1.0, metavar='LR')
"""
CALLS = """
    import zeusrun
    run = zeusrun.current()
    loader = DataLoader(data, batch_size=run.local_batch_size(default=32))
    optimizer = SGD(model.parameters(), lr=run.learning_rate(default=0.02))
    for epoch in run.epochs(40):
        run.report(epoch=epoch, val_loss=loss, val_accuracy=accuracy)
"""

# id: command, text, processes, default, per_device_max, words that must be there, rate, epochs
COMMANDS = {
    "torchrun": (
        "torchrun --nproc-per-node 4 train.py --batch-size 128 --lr 0.1 --epochs 5",
        None, 4, 512, None, [LOCAL, RATE, EPOCHS], (0.1, "linear"), 5,
    ),
    "torchrun with all options": (
        ("torchrun --standalone --nnodes=1 --nproc_per_node=2 --max-restarts=3 --rdzv-id=7 "
        "-r 1:3 --log-dir logs train.py -b 8"),
        None, 2, 16, None, ["-b", LOCAL], None, None,
    ),
    "torchrun -m": (
        "torchrun --nproc-per-node=2 -m package.train --batch_size=32",
        None, 2, 64, None, [f"--batch_size={LOCAL}"], None, None,
    ),
    "a training batch and a test batch": (
        "python train.py --train-batch 32 --test-batch 100",
        None, 1, 32, None, ["--train-batch", LOCAL, "--test-batch", "100"], None, None,
    ),
    "torch.distributed.run": (
        "python3 -m torch.distributed.run --nproc_per_node 2 train.py --bs 16",
        None, 2, 32, None, ["--bs", LOCAL], None, None,
    ),
    "torchvision classification": (
        "torchrun --nproc_per_node=8 train.py --model resnet50",
        TORCHVISION, 8, 256, None,
        [f"--batch-size={LOCAL}", f"--lr={RATE}", f"--epochs={EPOCHS}"], (0.1, "linear"), 90,
    ),
    "torchvision mobilenet": (
        ("torchrun --nproc_per_node=8 train.py --model mobilenet_v2 --epochs 300 --lr 0.045 "
        "--wd 0.00004 --lr-step-size 1 --lr-gamma 0.98"),
        TORCHVISION, 8, 256, None, ["--lr-step-size", "1", "--epochs", EPOCHS],
        (0.045, "linear"), 300,
    ),
    "timm without --lr": (
        "torchrun --nproc_per_node=4 train.py --data-dir /data --model resnet50 -b 64 --sched cosine",
        TIMM, 4, 256, None, ["-b", LOCAL, f"--epochs={EPOCHS}"], None, 300,
    ),
    "timm with --lr": (
        ("torchrun --nproc_per_node=4 train.py /imagenet --model seresnet34 --sched cosine "
        "--epochs 150 --warmup-epochs 5 --lr 0.4 --reprob 0.5 -b 256 --amp -j 4"),
        TIMM, 4, 1024, None, ["--lr", RATE, "--warmup-epochs", "5"], (0.4, "linear"), 150,
    ),
    "pytorch examples imagenet": (
        "torchrun --nproc-per-node 2 main.py -a resnet50 -b 256 /data",
        IMAGENET, 2, 256, None, ["-b", GLOBAL], (0.1, "linear"), 90,
    ),
    "pytorch examples mnist": (
        "python main.py",
        MNIST, 1, 64, None, [f"--batch-size={LOCAL}"], (1.0, "linear"), 14,
    ),
    "defaults of other names": (
        "python train.py", 'parser.add_argument("--batch_size_train", default=16)',
        1, 16, None, [f"--batch_size_train={LOCAL}"], None, None,
    ),
    "transformers run_glue": (
        ("python run_glue.py --model_name_or_path bert-base-cased --task_name mrpc --do_train "
        "--do_eval --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3.0"),
        TRAINER, 1, 32, None, ["--per_device_train_batch_size", LOCAL, EPOCHS], (2e-5, "sqrt"), 3,
    ),
    "transformers on defaults": (
        "torchrun --nproc_per_node 2 run_qa.py --dataset_name squad --do_train",
        TRAINER, 2, 16, None,
        [f"--per_device_train_batch_size={LOCAL}", f"--learning_rate={RATE}"], (5e-5, "sqrt"), 3,
    ),
    "transformers from a file": (
        "python run_glue.py args.json",
        TRAINER, 1, None, None, ["args.json"], None, None,
    ),
    "transformers with accumulation": (
        ("torchrun --nproc_per_node 2 run_clm.py --per_device_train_batch_size 4 "
        "--per_device_eval_batch_size 8 --gradient_accumulation_steps 8"),
        TRAINER, 2, 64, 4,
        [MICRO, "--gradient_accumulation_steps", STEPS, "8"], (5e-5, "sqrt"), 3,
    ),
    "accelerate": (
        ("accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 "
        "run_glue_no_trainer.py --task_name mrpc --max_length 128"),
        NO_TRAINER, 2, 16, None, [f"--per_device_train_batch_size={LOCAL}"], (5e-5, "sqrt"), 3,
    ),
    "accelerate on the cpu": (
        "accelerate launch --cpu nlp_example.py --learning_rate=1e-4",
        NO_TRAINER, 1, 8, None, [f"--learning_rate={RATE}"], (1e-4, "sqrt"), 3,
    ),
    "accelerate without a number": (
        "accelerate launch nlp_example.py", NO_TRAINER, "gpu", 32, None, [f"--per_device_train_batch_size={LOCAL}"], (5e-5, "sqrt"), 3,
    ),
    "accelerate -m": (
        "accelerate launch --num_processes=1 -m package.train --batch_size 32",
        None, 1, 32, None, ["--batch_size", LOCAL], None, None,
    ),
    "nanoGPT on one GPU": (
        ("python train.py config/train_shakespeare_char.py --batch_size=12 "
        "--gradient_accumulation_steps=1 --max_iters=2000"),
        NANOGPT, 1, 12, 12,
        [f"--batch_size={MICRO}", "--gradient_accumulation_steps=${total_accumulation_steps}"],
        (6e-4, "sqrt"), None,
    ),
    "nanoGPT on eight": (
        "torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py",
        NANOGPT, 8, 480, 12,
        [f"--batch_size={MICRO}", "--gradient_accumulation_steps=${total_accumulation_steps}"],
        (6e-4, "sqrt"), None,
    ),
    "lightning cli": (
        ("python main.py fit --data.batch_size 64 --trainer.max_epochs=10 --optimizer.lr 0.02 "
        "--trainer.devices 2"),
        LIGHTNING, 2, 128, None,
        ["--data.batch_size", LOCAL, f"--trainer.max_epochs={EPOCHS}", "--optimizer.lr", RATE],
        (0.02, "linear"), 10,
    ),
    "lightning cli with accumulation": (
        "python main.py fit --data.batch_size 16 --trainer.accumulate_grad_batches 4",
        LIGHTNING, 1, 64, 16, [MICRO, "--trainer.accumulate_grad_batches", STEPS], None, None,
    ),
    "hydra": (
        "python train.py data.batch_size=64 trainer.max_epochs=20 ++model.optimizer.lr=0.002",
        LIGHTNING, 1, 64, None,
        [f"data.batch_size={LOCAL}", f"++model.optimizer.lr={RATE}"], (0.002, "linear"), 20,
    ),
    "torchtitan": (
        ("torchrun --nproc_per_node=8 -m torchtitan.train --training.local_batch_size 8 "
        "--training.global_batch_size=256"),
        None, 8, 256, None, ["8", f"--training.global_batch_size={GLOBAL}"], None, None,
    ),
    "yolo": (
        "python -m torch.distributed.run --nproc_per_node 4 train.py --batch-size 64 --data coco.yaml",
        YOLO, 4, 64, None, ["--batch-size", GLOBAL, "coco.yaml"], None, None,
    ),
    "mae": (
        "torchrun --nproc_per_node=8 main_pretrain.py --batch_size 64 --blr 1.5e-4",
        MAE, 8, 512, None, ["--batch_size", LOCAL, "--blr", RATE], (1.5e-4, "none"), None,
    ),
    "a script that asks zeusrun": (
        "torchrun --nproc-per-node 2 train.py", CALLS, 2, 64, None, [], (0.02, "linear"), 40,
    ),
    "a script with a shebang": (
        "./train.py --batch-size 8", None, 1, 8, None, ["--batch-size", LOCAL], None, None,
    ),
    "nothing to find": ("python -u train.py 5", "print(1)", 1, None, None, ["5"], None, None),
}  # fmt: skip


def guess_of(command, text=None, gpus=4):
    script = Script(dedent(text or ""))
    return build_guess(read_command(shlex.split(command)), script, gpus=gpus, cpus=2)


def draft_of(command, guess, **more):
    return write_draft(guess, shlex.split(command), Path("job.yaml"), **more)


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_become_jobs(case, tmp_path):
    command, text, processes, default, most, words, rate, epochs = COMMANDS[case]
    guess = guess_of(command, text)
    assert guess.launched.nproc_per_node == processes
    assert (guess.batch and guess.batch.default) == default
    assert (guess.batch and guess.batch.per_device_max) == most
    assert [word for word in words if word not in guess.launched.args] == []
    assert (guess.learning_rate and (guess.learning_rate.value, guess.scale)) == rate
    assert (guess.max_epochs and guess.max_epochs.value) == epochs
    comments = [line for line in draft_of(command, guess).splitlines()[2:] if "# " in line]
    assert [line for line in comments if len(line) > 80 and "batch_size: {" not in line] == []
    # The file is a job file as soon as the objective is there.
    path = tmp_path / "job.yaml"
    path.write_text(draft_of(command, guess, objective=("acc1", "max", 0.76, "somebody said so")))
    for name in ("train", "main", "nlp_example", "run_glue", "run_qa", "run_clm", "main_pretrain"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "run_glue_no_trainer.py").touch()
    spec = load_spec(path, [] if default else ["batch_size.candidates=[64]"])
    assert spec.args == guess.launched.args
    assert spec.launch.nproc_per_node == processes
    if default:
        assert spec.batch_size.default == default
        assert len(spec.batch_size.candidates) > 2
        assert "guessed from" in path.read_text()


def test_a_draft_without_an_objective_says_what_is_missing(tmp_path):
    (tmp_path / "train.py").touch()
    path = tmp_path / "job.yaml"
    path.write_text(draft_of("python train.py", guess_of("python train.py", TIMM)))
    assert read_job_file(path, ()).problems == []
    with pytest.raises(Exception, match="'metric' is missing under 'objective'") as caught:
        load_spec(path)
    assert "'target' is missing under 'objective'" in str(caught.value)
    assert "# metric: eval_top1" in path.read_text()


def test_where_there_is_no_batch_size_the_file_says_what_to_do():
    text = draft_of("python train.py", guess_of("python train.py", "print(1)"))
    assert "# The script seems to have no option for its batch size." in text
    assert "apply: dataloader" in text


@pytest.mark.parametrize(
    ("command", "text", "warning"),
    [
        ("python train.py -b 8", TIMM, "zeusrun leaves the learning rate alone"),
        ("python train.py", MAE, "multiply its learning rate by the batch size"),
        ("python t.py --lr 1", "lr = args.lr * hvd_world_size", "by the number of processes"),
        ("accelerate launch --config_file x.yaml t.py", None, "config_file has no effect"),
        ("python t.py --do_eval", TRAINER, "--eval_strategy epoch"),
    ],
)
def test_what_may_go_wrong_is_told(command, text, warning):
    guess = guess_of(command, text)
    assert any(warning in each for each in guess.warnings)
    text = re.sub("\n# ", " ", draft_of(command, guess))
    assert f" Warning: {guess.warnings[0]}." in text


def test_a_trainer_that_evaluates_every_epoch_is_no_warning():
    assert guess_of("python t.py --do_eval --eval_strategy epoch", TRAINER).warnings == ()


def test_a_rate_that_timm_is_given_is_not_scaled_by_it():
    assert guess_of("python train.py --lr 0.4", TIMM).warnings == ()


@pytest.mark.parametrize(
    "command",
    [
        "env HF_TOKEN=sekret1 torchrun train.py",
        "torchrun train.py --api-key=sekret2",
        "torchrun train.py --wandb-token 'sekret3$x' --run_name of-sekret3$x",
        "torchrun train.py --db postgres://me:sekret5@host/y",
        "torchrun train.py wandb.api_key=sekret6",
        "torchrun train.py 'api_key={secret_file: file}'",
        "torchrun train.py --password=-sekret7",
        f"torchrun train.py hf_sekret{'a1' * 12}=",
    ],
)
def test_a_command_with_a_secret_is_refused(command):
    with pytest.raises(UsageError, match=r"secrets of `.*\*\*\*.*'\{secret_file: ~/") as refused:
        read_command(shlex.split(command))
    assert "sekret" not in str(refused.value)


def test_a_command_names_the_files_of_its_secrets():
    command = (
        "HF_TOKEN='{secret_file: ~/.secrets/hf}' OMP_NUM_THREADS=4 torchrun train.py --batch-size 8 "
        "--api-key '{secret_file: ~/.secrets/api}' --max-tokens 500"
    )
    job = yaml.safe_load(draft_of(command, guess_of(command)))
    assert job["env"] == {
        "HF_TOKEN": {"secret_file": "~/.secrets/hf"},
        "OMP_NUM_THREADS": "4",
    }
    assert job["args"] == [
        *("--batch-size", LOCAL, "--api-key", {"secret_file": "~/.secrets/api"}),
        *("--max-tokens", "500"),
    ]


def test_no_error_of_a_command_quotes_a_secret():
    with pytest.raises(UsageError, match="starts no script") as refused:
        read_command(["python", "-c", "1", "--api-key", "sekret"])
    assert "sekret" not in str(refused.value)


def test_what_accelerate_tells_its_processes_goes_into_the_environment():
    command = "accelerate launch --cpu --mixed_precision=bf16 --gpu_ids all t.py"
    assert guess_of(command).launched.env == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_CPU": "true",
    }


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("", "there is no command"),
        ("torchrun --nnodes two train.py", "--nnodes must be a whole number here, not 'two'"),
        ("torchrun --nnodes 1:4 train.py", "trains on 1:4 machines.*: --nnodes 1$"),
        ("accelerate launch --use_deepspeed t.py", "--use_deepspeed needs accelerate's own"),
        ("torchrun --no-python train.sh", "only Python scripts and modules"),
        ("torchrun --frobnicate train.py", "names no script"),
        ("python -m torch.distributed.launch t.py", "LOCAL_RANK"),
        ("torchrun --nproc-per-node two train.py", "whole number here, not 'two'"),
        ("torchrun --nproc-per-node", "has no value"),
        ("torchrun --standalone", "names no script"),
        ("accelerate config", "'accelerate' is not a launcher"),
        ("deepspeed train.py", "'deepspeed' is not a launcher"),
        ("python -c pass", "starts no script"),
        ("python", "starts no script"),
        ("'torchrun --standalone train.py'", "without quotes around the whole"),
        ("'cd x && torchrun train.py'", "what only a shell understands"),
        ("python train.py '|' tee log", "what only a shell understands"),
    ],
)
def test_what_zeusrun_cannot_run_is_refused_in_one_sentence(command, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        read_command(shlex.split(command))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes=2 --node-rank 0 --nproc-per-node 4 t.py --per_device_train_batch_size 8",
        "torchrun --nnodes=2:2 --nproc-per-node 4 t.py --per_device_train_batch_size 8",
        "accelerate launch --num_machines 2 --num_processes 8 t.py --per_device_train_batch_size 8",
    ],
)
def test_a_command_for_several_machines_gives_their_batch_size_and_asks_for_their_names(command):
    guess = guess_of(command)
    assert guess.launched.nproc_per_node == 4
    assert guess.batch.default == 64
    assert "trains on 2 machines; name them all" in guess.warnings[0]
    draft = draft_of(command, guess)
    assert "for 8 processes" in draft
    assert "run_on: {hosts: [a, b]}" in draft.replace("\n# ", " ")


def test_candidates_are_around_the_default_and_divide_among_the_processes():
    assert Batch(64, "").candidates(1) == [16, 32, 64, 128, 256]
    assert Batch(6, "").candidates(2) == [6, 12, 24]
    assert Batch(12, "", per_device_max=4).candidates(1) == [3, 6, 12, 24, 48]
    assert Batch(14, "", per_device_max=4).candidates(1) == [14, 28, 56]  # not 7: it does not split


def test_a_batch_size_that_the_processes_cannot_share_is_rounded_up():
    batch = guess_of("torchrun --nproc-per-node 8 train.py --batch-size 100", YOLO).batch
    assert batch.default == 104
    assert batch.why.startswith("--batch-size 100, rounded up to a multiple of 8: the script")
    assert all(size % 8 == 0 for size in batch.candidates(8))


def test_the_metric_is_usual_for_the_library():
    assert guess_of("python t.py", TRAINER).metric == "eval_loss"
    assert guess_of("python t.py", TORCHVISION).metric == "acc1"
    assert guess_of("python t.py").metric == "val_accuracy"


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("eval_loss", "min"), ("val/wer", "min"), ("perplexity", "min"), ("test_error", "min"),
        ("eval_accuracy", "max"), ("acc1", "max"), ("f1", "max"), ("BLEU", "max"), ("mIoU", "max"),
        *((name, "min") for name in (
            "val_SMAPE", "eer", "FID", "lpips", "val_bpc", "bits_per_dim", "elbo", "kl", "bce",
            "cross_entropy", "huber", "chamfer", "epe", "ECE", "brier_score", "crps", "mpjpe", "cost",
            "regret", "valLoss", "MeanSquaredError", "negative_log_likelihood",
        )),
        ("log_likelihood", "max"), ("r2", "max"), ("mAP@50", "max"), ("psnr", "max"),
        ("foo", None), ("val_q", None), ("temperature", None),
    ],
)  # fmt: skip
def test_the_mode_follows_from_the_name(metric, mode):
    assert likely_mode(metric) == mode


@pytest.mark.parametrize(
    ("text", "monitor"),
    [
        ("EarlyStopping(monitor='val_loss')", ("val_loss", "min")),
        ("ModelCheckpoint(monitor='val/f1', mode='max')", ("val/f1", "max")),
        ("keras.EarlyStopping(monitor='val_q', mode='auto')", ("val_q", None)),
        ("TrainingArguments(metric_for_best_model='f1')", ("eval_f1", "max")),
        ("TrainingArguments(metric_for_best_model='eval_loss')", ("eval_loss", "min")),
        ("T(metric_for_best_model='cost', greater_is_better=False)", ("eval_cost", "min")),
        ("EarlyStopping(monitor=args.monitor)", ("", None)),
        ("T(metric_for_best_model='accuracy', greater_is_better=None)", ("eval_accuracy", None)),
    ],
)
def test_what_the_script_monitors_is_read_with_its_mode(text, monitor):
    assert Script(text).monitor == monitor


def test_a_draft_names_what_the_script_monitors():
    guess = guess_of("python t.py", "EarlyStopping(monitor='val_q')")
    assert (guess.metric, guess.monitor) == ("val_q", ("val_q", "min"))


@pytest.mark.parametrize(
    ("words", "scale"), [("", "linear"), ("--opt=adamw", "sqrt"), ("--opt AdamW", "sqrt")]
)
def test_where_the_optimizer_is_an_option_its_value_counts(words, scale):
    assert guess_of(f"python train.py {words}", TORCHVISION).scale == scale


def facts(script):
    text = script.library, script.divides, script.scales_by, script.uses_adam
    return (*text, script.options, script.late_save)


def test_a_script_of_another_python_is_no_error():
    assert facts(Script("print 'hello'")) == facts(Script())


@pytest.mark.parametrize(
    "text",
    ["\n" * 10**6, "batch_size" + " " * 10**6, f"x = '{'ab01' * 250_000}'", "a." * 500_000],
    ids=["newlines", "spaces", "data", "dots"],
)
def test_a_script_that_is_full_of_data_is_read_at_once(text):
    """Patterns that try every letter of a long line would take hours."""
    assert facts(Script(text)) == facts(Script())


def test_a_script_that_is_nested_too_deep_for_python_is_no_error():
    assert facts(Script("-" * 100_000 + "1")) == facts(Script())


printable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(args=st.lists(printable, max_size=4), value=printable)
def test_every_argument_arrives_as_it_was(args, value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft")
    launched = Launched(script="train.py", args=tuple(args), env={"VALUE": value})
    guess = build_guess(launched, Script(), gpus=0, cpus=1)
    path = folder / "job.yaml"
    path.write_text(write_draft(guess, ["train.py", *args], Path("job.yaml")), encoding="utf-8")
    document = read_job_file(path, ())
    assert document.problems == []
    assert tuple(document.data.get("args", ())) == guess.launched.args
    assert document.data["env"]["VALUE"] == value.replace("$", "$$")


def test_the_commands_of_the_docs_are_read():
    page = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ zeusrun init --try -- (.*)$", page, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:
        assert guess_of(line).launched.script is not None


def test_processes_that_lightning_would_start_itself_are_zeusruns():
    words = ["python", "train.py", "--trainer.devices", "2"]
    guess = build_guess(read_command(words), Script("import lightning as L"), gpus=0, cpus=2)
    assert (guess.launched.nproc_per_node, guess.ranks) == (2, 2)
    assert "distributed: false" not in write_draft(guess, ["python", "train.py"], Path("job.yaml"))


def test_processes_that_lightning_would_start_by_its_text_are_zeusruns():
    text = "import lightning as L\nL.Trainer(accelerator='cpu', devices=2)"
    guess = build_guess(read_command(["python", "train.py"]), Script(text), gpus=0, cpus=2)
    assert (guess.launched.nproc_per_node, guess.ranks) == (2, 2)
    assert "distributed: false" not in write_draft(guess, ["python", "train.py"], Path("job.yaml"))
