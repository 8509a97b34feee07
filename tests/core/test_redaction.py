"""Known secrets are taken out of texts, however they are written (S3)."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from loopwright.core.redaction import MARK, Redactor, names_a_secret, with_clean_reward, without_secrets
from loopwright.serve.keys import new_key
from loopwright.types import Episode, Failed, FailureCause, Reward, Rollout, RolloutKey, Scored, Task, Timing

KEYS = ["sk-proj-0123456789abcdef", 'odd"\\key/with+signs=', "long-" * 30 + "key"]
KEYS += ['pass wörd, "it\'s" ~~~???', "it's a\\wörd~~~"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "write",
    [
        str,
        lambda key: f"Bearer {key}",
        json.dumps,
        lambda key: json.dumps(key, ensure_ascii=False),
        lambda key: repr(f"{key} "),
        lambda key: repr(f'"{key}" '),
        lambda key: repr(f"{key} ".encode()),
        lambda key: repr(json.dumps({"key": key}).encode()),
        lambda key: f"https://judge.example/?key={quote(key, safe='')}&more=1",
        lambda key: f"key={quote_plus(key)}",
        lambda key: f"Basic {base64.b64encode(key.encode()).decode()}",
        lambda key: f"Basic {base64.b64encode(f'me:{key}'.encode()).decode()}",
        lambda key: f"Basic {base64.b64encode(f'user:{key}'.encode()).decode()}",
        lambda key: f"Basic {base64.urlsafe_b64encode(f'u:{key}?'.encode()).decode()}",
        lambda key: f"wrong key {key[:-4]}... (look at it)",
        lambda key: f"wrong key {key[:-4]}… (look at it)",
        lambda key: f"wrong key {key[:12]}",
    ],
)
def test_a_secret_is_found_in_every_spelling(key: str, write: Any) -> None:
    text = f"before {write(key)}"
    shown = Redactor(["another-secret", key])(text)
    assert MARK in shown
    assert shown.startswith("before ")
    inside = [key, json.dumps(key)[1:-1], quote(key, safe=""), key[:12]]
    inside += [base64.b64encode(b"x" * n + key.encode()).decode()[4:-4] for n in range(3)]
    assert not any(form in shown for form in inside)


def test_ordinary_text_is_left_alone() -> None:
    redact = Redactor(["secret-key-of-the-judge", "abc", "1234567"])
    for text in ("secret-key is a word", "secret-key-of-the-judges is not it, but secret-k", "abc 1234567 lwk_ lwk_x"):
        expected = text.replace("secret-key-of-the-judge", MARK)
        assert redact(text) == (expected if not text.endswith("secret-k") else expected[:-8] + MARK)
    text = "nothing of the sort"
    assert redact(text) is text


def test_a_secret_that_begins_with_another_is_removed_to_its_end() -> None:
    assert Redactor(["secret-key", "secret-key-of-the-judge"])("it is secret-key-of-the-judge") == f"it is {MARK}"


def test_our_own_keys_are_known_by_their_form() -> None:
    key = new_key()
    assert Redactor()(f"Bearer {key}, and {key[:20]}...") == f"Bearer {MARK}, and {MARK}..."


def test_values_are_redacted_all_the_way_down() -> None:
    redact = Redactor(["secret-key"])
    value = {"a": ["x", {"b": "my secret-key"}], "c": ("secret-key", 1), "d": None}
    assert redact.value(value) == {"a": ["x", {"b": f"my {MARK}"}], "c": (MARK, 1), "d": None}
    assert redact.value({"the secret-key": 1, "content": 2}) == {f"the {MARK}": 1, "content": 2}
    same = ({"role": "user", "content": ["hi", 1.5], "tool_calls": []},)
    assert redact.value(same) is same


@pytest.mark.parametrize(
    ("reward", "shown"),
    [
        (Scored(1.0, {"part": 0.5}, "it is secret-key"), Scored(1.0, {"part": 0.5}, f"it is {MARK}")),
        (Scored(1.0, evidence="for secret-key"), Scored(1.0, evidence=f"for {MARK}")),
        (Scored(1.0, evidence="é" * 3000), Scored(1.0, evidence="é" * 2046 + "…")),
        # Where it is cut, no beginning of a secret is left.
        (Scored(1.0, evidence="x" * 4090 + "secret-key"), Scored(1.0, evidence="x" * 4090 + MARK[:3] + "…")),
        (
            Failed(FailureCause.JUDGE, "Error of secret-key", "secret-key is wrong"),
            Failed(FailureCause.JUDGE, f"Error of {MARK}", f"{MARK} is wrong"),
        ),
    ],
)
def test_no_text_of_a_rollout_holds_a_secret(reward: Reward, shown: Reward) -> None:
    redact = Redactor(["secret-key"])
    said = Episode(({"role": "tool", "content": "secret-key"},), (), tools=({"description": "needs secret-key"},))
    made = Rollout(RolloutKey("a", 0, 0), Task.ask("t", "Hi"), said, reward, Timing(started=0.0))
    clean = without_secrets(made, redact)
    assert clean.episode == Episode(({"role": "tool", "content": MARK},), (), tools=({"description": f"needs {MARK}"},))
    assert clean.reward == with_clean_reward(made, redact).reward == shown
    assert without_secrets(clean, redact) is clean, "production redacts every rollout, and few hold a secret"


@pytest.mark.parametrize(
    ("name", "secret"),
    [("OPENAI_API_KEY", True), ("hf_token", True), ("TOKENIZERS_PARALLELISM", False), ("PATH", False)],
)
def test_names_of_variables_tell_secrets(name: str, secret: bool) -> None:
    assert names_a_secret(name) == secret


def test_a_text_that_is_cut_in_many_places_takes_no_longer() -> None:
    """Each place copied the whole text, and how keys begin is known: a page of 1 MB took half a minute."""
    redact, begin = Redactor(["sk-proj-0123456789abcdef"]), time.perf_counter()
    assert redact("sk-proj-01... " * 60_000 + "sk-proj-0123") == f"{MARK}... " * 60_000 + MARK
    assert time.perf_counter() - begin < 1
