"""Each script of ``examples/`` without zeusrun, on a small file in the format of the real data."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.factories import ROOT
from tests.runs import check_that_it_imports

EXAMPLES = ROOT / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments, cwd):
    """Run a script with one epoch; in a process of its own, for libraries that load slowly."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "train.py"), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Train one epoch with a script of torch alone, in this process; return what it prints."""

    def start(module, *arguments):
        write = module.SummaryWriter
        monkeypatch.setattr(module, "SummaryWriter", lambda *of: writers.enter_context(write(*of)))
        options = [*arguments, "--epochs", "1", "--log-dir", str(tmp_path / "logs")]
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, options)])
        module.main()
        assert list((tmp_path / "logs").iterdir())
        return capsys.readouterr().out

    with contextlib.ExitStack() as writers:
        yield start


def says(call, *parts):
    with pytest.raises(SystemExit) as end:
        call()
    (line,) = str(end.value).splitlines()
    assert all(part in line for part in parts), line


def write_idx(path, array):
    shape = np.array(array.shape, ">i4").tobytes()
    raw = bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def test_mnist(tmp_path, train):
    mnist = load("mnist")
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28))
    for part, packed in (("train", ""), ("t10k", ".gz")):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{packed}", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{packed}", np.arange(40) % 10)
    for data in mnist.load_data(tmp_path):
        assert data.tensors[0].shape == (40, 1, 28, 28)
        assert (data.tensors[0] * 255).round().int().squeeze(1).numpy().tolist() == images.tolist()
        assert data.tensors[1].tolist() == [n % 10 for n in range(40)]
    assert "epoch 1: test accuracy" in train(mnist, "--data", tmp_path)
    says(lambda: mnist.load_data(tmp_path / "none"), "train-images-idx3-ubyte", "--data")


def test_cifar100(tmp_path, train):
    cifar100 = load("cifar100")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
    labels = [n % 100 for n in range(40)]
    for part in ("train", "test"):
        batch = {b"data": pixels, b"fine_labels": labels, b"coarse_labels": [0] * 40}
        (tmp_path / part).write_bytes(pickle.dumps(batch, protocol=2))
    data = cifar100.read_batch(tmp_path / "train")
    restored = ((data.tensors[0] + 1) * 127.5).round().int().numpy()
    assert (restored == pixels.reshape(40, 3, 32, 32)).all()  # red, green, blue; row by row
    assert data.tensors[1].tolist() == labels
    printed = train(cifar100, "--data", tmp_path, "--depth", 8, "--batch-size", 20)
    assert "epoch 1: test accuracy" in printed
    says(lambda: cifar100.read_batch(tmp_path / "none"), "none", "--data")


@pytest.fixture
def adaptive(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "adaptive")
    yield load("adaptive")
    sys.modules.pop("cifar10")


@pytest.mark.long  # tests/adapt/rank trains with the same loader
def test_adaptive(tmp_path, adaptive, monkeypatch, capsys):
    cifar10 = adaptive.cifar10
    records = np.random.default_rng(0).integers(0, 256, (42, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(42) % 10
    for number in range(5):
        records[8 * number : 8 * number + 8].tofile(tmp_path / f"data_batch_{number + 1}.bin")
    records[40:].tofile(tmp_path / "test_batch.bin")
    for data, own in zip(cifar10.load(tmp_path), (records[:40], records[40:]), strict=True):
        restored = ((data.tensors[0] + 1) * 127.5).round().int().numpy()
        assert (restored == own[:, 1:].reshape(-1, 3, 32, 32)).all()  # red, green, blue
        assert data.tensors[1].tolist() == own[:, 0].tolist()
    for options in (["cifar10", "--folder", str(tmp_path)], ["digits"]):
        monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1", "--data", *options])
        adaptive.main()
        assert "epoch 1: accuracy" in capsys.readouterr().out
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(3000))
    says(lambda: cifar10.load(tmp_path), "data_batch_3.bin", "3000 bytes", "again")
    (tmp_path / "data_batch_2.bin").unlink()
    says(lambda: cifar10.load(tmp_path), "data_batch_2.bin", "--folder")


def test_the_made_up_images_are_read_back_and_are_the_same_each_time(
    tmp_path, adaptive, monkeypatch
):
    monkeypatch.setattr(adaptive.cifar10, "MADE_UP", {"train": 50, "test": 20})
    adaptive.cifar10.write(tmp_path / "data")
    pairs = zip(adaptive.cifar10.load(tmp_path / "data"), adaptive.cifar10.load(None), strict=True)
    for written, made_up in pairs:
        for before, after in zip(written.tensors, made_up.tensors, strict=True):
            assert before.equal(after)
        assert set(made_up.tensors[1].tolist()) <= set(range(10))


def test_sentiment(tmp_path, train):
    sentiment = load("sentiment")
    texts = [(f"I liked day {n}, naïvely" if n % 2 else f"bad day {n}", n % 2) for n in range(60)]
    rows = [json.dumps({"text": text, "label": label}) for text, label in texts]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows) + "\n\n", encoding="utf-8")
    names = ("negative", "positive")
    lines = [f'2024-05-01,"{text}",{names[label]}' for text, label in texts]
    (tmp_path / "texts.csv").write_text("\n".join(["date,text,label", *lines]), encoding="utf-8")
    for name in ("texts.jsonl", "texts.csv"):
        assert sentiment.read_texts(tmp_path / name) == texts
    sizes = ("--slice-size", 40, "--slice-step", 10)
    printed = train(sentiment, "--data", tmp_path / "texts.csv", *sizes, "--slice", 2)
    assert "slice 2: texts 20 to 60\nepoch 1: val_accuracy" in printed
    printed = train(sentiment, "--data", tmp_path / "texts.csv", *sizes, "--slice", 3)
    assert "slice 3: texts 9 to 49" in printed
    says(lambda: sentiment.read_texts(tmp_path / "none.csv"), "none.csv", "--data")
    (tmp_path / "other.csv").write_text("words,mood\na,b\n")
    says(lambda: sentiment.read_texts(tmp_path / "other.csv"), "other.csv", "'text' and 'label'")


def test_the_words_of_the_made_up_texts_drift():
    sentiment = load("sentiment")
    words = [
        {word for text, _ in sentiment.make_up(500 * day, 2000, 500) for word in text.split()}
        for day in (0, 1, 100)
    ]
    assert len(words[0] & words[1]) > 0.9 * len(words[0])
    assert not words[0] & words[2]
    assert sentiment.make_up(500, 10, 500) == sentiment.make_up(0, 510, 500)[500:]


@pytest.mark.long  # its library takes seconds to load, on two ranks
def test_diloco(tmp_path):
    """Under plain torchrun; the ranks have one model, so they print the same."""
    check_that_it_imports("torchft")
    script = (str(EXAMPLES / "diloco" / "train.py"), "--epochs", "2")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            *script,
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^epoch (\d): val_accuracy (0\.\d+)$", done.stdout, re.MULTILINE)
    assert [epoch for epoch, _ in printed] == ["1", "1", "2", "2"]
    assert len(set(printed)) == 2


@pytest.mark.long  # its library takes seconds to load
def test_lightning(tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    rows = np.random.default_rng(0).integers(0, 300, (200, 55))
    rows[:, -1] = 1 + np.arange(200) % 7
    with gzip.open(tmp_path / "covtype.data.gz", "wt") as file:
        np.savetxt(file, rows, delimiter=",", fmt="%d")
    code, printed, errors = run(
        "lightning", "--data", tmp_path / "covtype.data.gz", "--epochs", 1, cwd=tmp_path
    )
    assert code == 0, errors
    assert re.search(r"^val_acc 0\.\d+ in epoch 1$", printed, re.MULTILINE)


@pytest.mark.long  # its library takes seconds to load
def test_qa(tmp_path):
    pytest.importorskip("tokenizers", reason="transformers is not installed")
    context = "Zeus lives on Mount Olympus. Rhea is his mother."
    asked = [
        {"id": "1", "question": "Who is his mother?", "answers": [{"text": "Rhea"}]},
        {"id": "2", "question": "Where is he?", "answers": [{"text": "Mount Olympus"}] * 2},
        {"id": "3", "question": "What is his age?", "answers": [], "is_impossible": True},
    ]
    for item in asked:
        for answer in item["answers"]:
            answer["answer_start"] = context.index(answer["text"])
    articles = [{"title": "Zeus", "paragraphs": [{"context": context, "qas": asked}] * 8}]
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(json.dumps({"version": "v2.0", "data": articles}))
    options = ("--output_dir", tmp_path / "out", "--num_train_epochs", "1")
    code, printed, errors = run("qa", "--data", tmp_path, *options, cwd=tmp_path)
    assert code == 0, errors
    assert "eval_exact_match" in printed
    assert "'epoch': '1'" in printed


@pytest.mark.long  # each loads its library once more
@pytest.mark.parametrize(
    ("name", "data", "named"),
    [("lightning", "none.data", "covtype.data.gz"), ("qa", "none", "train.json")],
)
def test_data_that_are_not_there(tmp_path, name, data, named):
    options = ("--output_dir", "out") if name == "qa" else ()
    code, _, errors = run(name, "--data", data, *options, cwd=tmp_path)
    assert code == 1
    assert f"{data}" in errors
    assert named in errors.splitlines()[-1]
    assert "Traceback" not in errors


@pytest.mark.long
def test_an_answer_is_found_again_in_the_tokens():
    qa = load("qa")
    examples = qa.make_up(50, seed=0)
    tokenizer = qa.build_tokenizer(examples)
    for row, example in zip(qa.encode(examples, tokenizer, 32), examples, strict=True):
        span = row["input_ids"][row["start_positions"] : row["end_positions"] + 1]
        assert tokenizer.decode(span) == example.answer


@pytest.mark.long
@pytest.mark.parametrize("name", ["imagenet", "timm"])
def test_images(tmp_path, name):
    """Trains where the import works; says so in one sentence where it does not."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part in ("train", "val"):
        for label in ("ant", "bee", "cat", "dog", "eel"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(2):
                pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
                image.fromarray(pixels).save(tmp_path / part / label / f"{number}.jpg")
    small = {
        "imagenet": ("--arch", "resnet18", "--image-size", 32),
        "timm": ("--model", "resnet10t", "--img-size", 32),
    }
    options = (*small[name], "--workers", 0, "--batch-size", 5, "--epochs", 1)
    code, printed, errors = run(
        name, "--data", tmp_path, *options, "--log-dir", "logs", cwd=tmp_path
    )
    if code == 1 and "this example needs" in errors:
        (line,) = errors.splitlines()
        pytest.skip(line)
    assert code == 0, errors
    assert re.search(r"^epoch 0: top-1 \d+\.\d\d %", printed, re.MULTILINE)
    code, _, errors = run(name, "--data", tmp_path / "none", *options, cwd=tmp_path)
    assert code == 1
    assert re.search(r"none/train: no such folder; --data is .*$", errors.splitlines()[-1])
