"""Secrets are taken out of any text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.redaction import mask_values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SECRETS = st.text("abc123!'\"\\\n", min_size=6, max_size=20).filter(
    lambda text: len(text.strip()) >= 6
)


def test_a_secret_becomes_three_stars():
    mask = mask_values(["hf_abcdef"])
    assert mask.text("token=hf_abcdef; hf_abcdef!") == "token=***; ***!"


def test_a_value_of_five_characters_is_no_reason_to_shred_a_log():
    assert not mask_values(["12345", ""])
    assert mask_values(["12345"]).text("12345 steps") == "12345 steps"


def test_of_secrets_that_hold_each_other_the_longest_goes_first():
    assert mask_values(["secret", "secretsecret"]).text("secretsecret secret") == "*** ***"


def test_every_line_of_a_key_is_a_secret():
    key = "-----BEGIN KEY-----\nMIIabcdef\n-----END KEY-----\n"
    shown = mask_values([key]).text("the file holds\n  MIIabcdef\nand more")
    assert shown == "the file holds\n  ***\nand more"


@given(st.lists(SECRETS, max_size=3), TEXTS, TEXTS)
def test_no_secret_is_left_of_any_text(secrets, before, after):
    mask = mask_values(secrets)
    for secret in secrets:
        for written in (secret, repr(secret), json.dumps({"key": secret})):
            assert secret.strip() not in mask.text(f"{before}{written}{after}")


@given(SECRETS, st.integers(6, 20), TEXTS)
def test_the_beginning_of_a_secret_at_a_cut_is_masked_too(secret, length, before):
    cut = mask_values([secret]).cut_text(before + secret[:length])
    assert secret.strip()[: max(6, length)] not in cut or len(secret.strip()) < length


@given(TEXTS)
def test_a_text_without_secrets_stays_as_it_is(text):
    mask = mask_values(["no text holds this one"])
    assert mask.text(text) == mask.cut_text(text) == text


@pytest.mark.parametrize(
    ("secret", "printed"), [("p@ss/word", "://me:p%40ss%2Fword@db"), ("p%40ssword", "p@ssword")]
)
def test_a_secret_is_masked_as_a_url_has_it_and_as_the_url_means_it(secret, printed):
    assert mask_values([secret]).text(printed) in {"://me:***@db", "***"}
