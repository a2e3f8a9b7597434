"""Credentials are found in text and in JSON, by kind, and ordinary text is left alone."""

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import credentials
from ledger.credentials import find_credential, locate_credential


def sample(prefix, alphabet, length):
    letters = random.Random(prefix).choices(alphabet.decode(), k=length)
    return prefix.decode() + "".join(letters)


TOKENS = credentials._TOKENS + credentials._DOTTED
SAMPLES = [sample(prefix, alphabet, length) for prefix, alphabet, length, _, _ in TOKENS]
KEYS = [
    f"-----BEGIN {label}-----\nAAAA\n-----END {label}-----"
    for label in (
        "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY",
        "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK",
    )
] + ["PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nAAAA"]  # fmt: skip


@pytest.mark.parametrize("secret", SAMPLES + KEYS, ids=lambda secret: secret[:24])
@pytest.mark.parametrize(
    "around", ["{}", "export K={}\n", "line\n{}\nline", "https://{}@host/x", "'{}',", "é{}é"]
)
def test_every_known_form_is_found_in_text_and_in_json(secret, around):
    text = around.format(secret)
    assert find_credential(text.encode())
    assert find_credential(json.dumps({"a": [text]}).encode())
    assert find_credential(json.dumps({"a": "\x01" + secret}).encode())


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_a_token_one_character_short_is_none(number):
    prefix, _, _, _, kind = TOKENS[number]
    found = find_credential(SAMPLES[number][:-1].encode())
    assert found != kind or any(
        other[0] != prefix and prefix.startswith(other[0]) for other in credentials._TOKENS
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "sk-", "ghp_", "task-" + "a" * 40, "ask-" + "b" * 48, "risk-assessment-of-everything-in-the-world-today-and-later",
        "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t", "AKIA" + "A" * 17, "AIza" + "a" * 36, "xAKIA" + "A" * 16,
        "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "-----BEGIN OPENSSH PUBLIC KEY-----", "about PRIVATE KEY handling",
        "ghp_ tokens have 36 characters", "a" * 64, "sk-skeleton", "npm_config_registry=https://example.invalid/a/long/path/to/something",
        "hf_hub_download(repo_id='a/b', filename='config.json')", "dapi" + "g" * 32, "SG.1", "github_pat_ is the prefix",
    ],
)  # fmt: skip
def test_ordinary_text_is_no_credential(text):
    assert find_credential(text.encode()) is None


@given(st.binary(max_size=3000))
def test_base64_of_anything_is_no_credential(raw):
    assert find_credential(base64.b64encode(raw)) is None


@given(st.binary(max_size=200))
def test_any_bytes_can_be_asked(raw):
    find_credential(raw)


def test_the_place_is_named_and_the_value_is_not():
    secret = SAMPLES[0]
    place, kind = locate_credential({"a": [1, {"b": "x", "c": f"my {secret}"}]})
    assert (place, kind) == ("$.a[1].c", "GitHub token")
    place, kind = locate_credential({"a": {secret: 1}})
    assert (place, kind) == ("a key of $.a", "GitHub token")
    assert locate_credential({"a": ["ok", None, 1.5, True]}) is None


def test_a_credential_below_a_credential_key_does_not_print_the_key():
    place, _ = locate_credential({SAMPLES[0]: {"x": SAMPLES[1]}})
    assert SAMPLES[0] not in place


def test_no_regular_expressions_are_loaded():
    import subprocess
    import sys

    code = "import sys, ledger.credentials as c; c.find_credential(b'sk-' + b'a' * 48); sys.exit('re' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-S", "-c", code], cwd="/".join(__file__.split("/")[:-3])).returncode
        == 0
    )
