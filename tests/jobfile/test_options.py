"""The options that a script declares, and the values that reach it by a guessed job."""

from __future__ import annotations

import argparse
import shlex
from textwrap import dedent

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.jobfile.guess.command import read_command
from zeusrun.jobfile.guess.guess import build_guess
from zeusrun.jobfile.guess.script import Script
from zeusrun.jobfile.placeholders import expand_placeholders

FLAGS = [
    ("-e", "--epochs"), ("--epochs", "-e"), ("-ep", "--n-epochs"), ("--num_epochs",), ("--nepochs",),
    ("-epochs",), ("--epochs", "--num-epochs"), ("-n", "--max-epochs"),
]  # fmt: skip


def guess_of(command, text):
    words = read_command(["python", "train.py", *shlex.split(command)])
    return build_guess(words, Script(dedent(text), words.args), gpus=0, cpus=2)


def arrived(guess):
    """Return the arguments of a run that leaves everything as it was guessed."""
    values = {"max_epochs": guess.max_epochs and str(int(guess.max_epochs.value))}
    if guess.batch is not None:
        values["local_batch_size"] = values["batch_size"] = str(guess.batch.default)
    if guess.learning_rate is not None:
        values["learning_rate"] = repr(guess.learning_rate.value)
    return [expand_placeholders(word, values) for word in guess.launched.args]


def spell(flag, how, value):
    if how == "attached" and len(flag) == 2:
        return [f"{flag}{value}"]
    if how == "abbreviated" and flag.startswith("--"):
        flag = flag[: max(5, len(flag) - 2)]
    return [f"{flag}={value}"] if how == "equals" and len(flag) > 2 else [flag, value]


@given(
    flags=st.sampled_from(FLAGS),
    spelling=st.tuples(
        st.integers(0, 1),
        st.sampled_from(["two words", "equals", "attached", "abbreviated"]),
    ),
    tool=st.sampled_from(["add_argument", "option"]),
    value=st.integers(1, 500),
    rate=st.floats(1e-6, 10),
)
def test_however_an_option_is_spelled_the_value_given_reaches_the_script(
    flags, spelling, tool, value, rate
):
    which, how = spelling
    if tool == "option" and how == "abbreviated":  # click refuses it
        how = "two words"
    flag = flags[which % len(flags)]
    words = ["-l", str(rate), *spell(flag, how, str(value)), "data"]
    named = ", ".join(map(repr, flags))
    guess = guess_of(
        shlex.join(words),
        f"""
        x.{tool}({named}, type=int, default=12)
        x.{tool}("-v", {"action='store_true'" if tool == "add_argument" else "is_flag=True"})
        x.{tool}("-l", "--lr", default=1e-3)
        """,
    )
    assert guess.max_epochs.origin == f"{guess.max_epochs.written} {value}"
    if tool == "add_argument":
        parser = argparse.ArgumentParser()
        parser.add_argument(*flags, type=int, default=12, dest="epochs")
        parser.add_argument("-v", action="store_true")
        parser.add_argument("-l", "--lr", type=float, default=1e-3)
        parser.add_argument("data")
        seen = vars(parser.parse_args(arrived(guess)))
    else:
        parameters = [
            click.Option([*flags, "epochs"], type=int, default=12),
            click.Option(["-v"], is_flag=True),
            click.Option(["-l", "--lr"], type=float, default=1e-3),
            click.Argument(["data"]),
        ]
        seen = click.Command("train", params=parameters).make_context("", arrived(guess)).params
    assert (seen["epochs"], seen["lr"], seen["data"]) == (value, rate, "data")


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ("-b 0.9", 'a.add_argument("-b", "--beta")', "-b 0.9"),  # no batch size
        ("-b 9", 'a.add_argument("-b", "--beta", type=int)', "-b 9"),
        ("-b 9", 'a.add_argument("-b", type=int)', "-b 9!"),
        ("--epochs auto", 'a.add_argument("--epochs", default=9)', "--epochs auto"),
        ("--epochs 0", 'a.add_argument("--epochs", default=9)', "--epochs 0"),
        ("", 'a.add_argument("--mini-batch-size", default=9)', "--mini-batch-size=9!"),
        ("--minibatch_size 4", "", "--minibatch_size 4!"),
        ("--nepochs=4", "", "--nepochs=4!"),
        ("", '@click.option("-b", default=9)\ndef main(b): pass', "-b 9!"),
        ("", "LR = 0.25\na.add_argument('--lr', default=LR)", "--lr=0.25!"),
        ("", "LR = 0.25\nLR = f()\na.add_argument('--lr', default=LR)", ""),
        ("", 'a.add_argument("--lr", default="0.25")', "--lr=0.25!"),
        ("", 'a.add_argument("--batch-size", default=True)', ""),
    ],
)
def test_an_option_is_found_in_the_command_or_by_its_default(words, text, expected):
    guess = guess_of(words, text)
    assert " ".join(arrived(guess)) == expected.replace("!", "")
    found = any("${" in word for word in guess.launched.args)
    assert found is ("!" in expected)


@pytest.mark.parametrize("parser", ["transformers.HfArgumentParser", "TrlParser"])
def test_the_options_of_transformers_have_the_defaults_of_its_arguments(parser):
    text = f"args = {parser}(TrainingArguments).parse()"
    assert arrived(guess_of("--learning-rate 0.1", text)) == [
        "--learning-rate", "0.1", "--per_device_train_batch_size=8", "--num_train_epochs=3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["x = " + "1 * " * 3000 + "1", "a" + ".b()" * 2000, "a" + ".b" * 2000 + "()"]
)
def test_a_script_that_is_nested_deep_is_no_error(text):
    assert Script(f"{text}\nspawn()").options == ()


@pytest.mark.parametrize("words", ["-c cfg.yaml", "--config=recipe.yml", "--train-config x.json"])
def test_no_default_replaces_what_a_file_of_settings_may_say(words):
    text = 'a.add_argument("--epochs", type=int, default=300)\na.add_argument("-c", "--config")'
    assert guess_of(words, text).max_epochs is None


def test_the_value_of_another_option_is_no_option():
    text = """
a.add_argument("--sweep")
a.add_argument("--lr", type=float, default=0.25)
a.add_argument("--name")
a.add_argument("--batch-size", type=int, default=64)
"""
    guess = guess_of("--sweep lr --name batch_size=8", text)
    assert (guess.batch.default, guess.learning_rate.value) == (64, 0.25)
