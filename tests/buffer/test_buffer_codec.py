"""What is decoded equals what was encoded, and damage never passes unnoticed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.buffer import codec
from loopwright.buffer.transcripts import decode_transcript, encode_transcript
from loopwright.errors import ChainError, DataError, RunError
from loopwright.types import (
    ChainStart,
    Episode,
    EpisodeDrift,
    Failed,
    FailureCause,
    ProgramOutput,
    Scored,
    Task,
    TokenChain,
    TokenDiff,
    Unscored,
)
from loopwright.types.spans import joined_spans

INT32 = st.integers(0, 2**31 - 1)
LOGPROB = st.floats(-65536.0, 0.0, width=32)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(st.text(), JSON, max_size=3)


@st.composite
def token_chains(draw: st.DrawFn) -> TokenChain:
    tokens = draw(st.lists(st.tuples(INT32, st.booleans(), LOGPROB, INT32), max_size=20))
    return TokenChain(
        np.array([token for token, _, _, _ in tokens], dtype=np.int32),
        np.array([sampled for _, sampled, _, _ in tokens], dtype=np.bool_),
        np.array([logprob if sampled else 0.0 for _, sampled, logprob, _ in tokens], dtype=np.float32),
        np.array([version if sampled else -1 for _, sampled, _, version in tokens], dtype=np.int32),
        draw(st.sampled_from(ChainStart)),
        draw(st.booleans()),
        joined_spans((place, place + 1) for place, token in enumerate(tokens) if token[1] and draw(st.booleans())),
    )


def assert_same(left: TokenChain, right: TokenChain) -> None:
    for name in ("ids", "mask", "logprobs", "versions"):
        ours, theirs = getattr(left, name), getattr(right, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert (left.start, left.trained, left.constrained) == (right.start, right.trained, right.constrained)


@given(st.lists(token_chains(), max_size=4))
def test_chains_survive_the_round_trip(chains: list[TokenChain]) -> None:
    decoded = codec.decode_chains(codec.encode_chains(chains))
    assert len(decoded) == len(chains)
    for before, after in zip(chains, decoded, strict=True):
        assert_same(before, after)


@given(st.lists(token_chains(), max_size=2), st.data())
def test_any_changed_byte_is_a_chain_error(chains: list[TokenChain], data: st.DataObject) -> None:
    blob = bytearray(codec.encode_chains(chains))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ChainError):
        codec.decode_chains(bytes(blob))


@given(st.lists(token_chains(), max_size=2), st.data())
def test_a_truncated_blob_is_a_chain_error(chains: list[TokenChain], data: st.DataObject) -> None:
    blob = codec.encode_chains(chains)
    with pytest.raises(ChainError):
        codec.decode_chains(blob[: data.draw(st.integers(0, len(blob) - 1))])


@given(st.binary(max_size=64))
def test_bytes_with_a_right_checksum_are_still_not_trusted(body: bytes) -> None:
    body = bytes([codec.FORMAT]) + body
    try:
        chains = codec.decode_chains(body + zlib.crc32(body).to_bytes(4, "little"))
    except ChainError:
        return
    for before, after in zip(chains, codec.decode_chains(codec.encode_chains(chains)), strict=True):
        assert_same(before, after)


@pytest.mark.parametrize(
    ("vocabulary", "sampled", "bytes_per_token"), [(49152, 1, 6.2), (151936, 1, 8.2), (49152, 0, 2.2)]
)
def test_a_chain_takes_few_bytes_per_token(vocabulary: int, sampled: int, bytes_per_token: float) -> None:
    size = 1000
    mask = np.full(size, sampled, dtype=np.bool_)
    chain = TokenChain(
        np.full(size, vocabulary - 1, dtype=np.int32),
        mask,
        np.zeros(size, np.float32),
        np.where(mask, 7, -1),
    )
    assert len(codec.encode_chains([chain])) < bytes_per_token * size


TASKS = st.builds(
    Task, st.text(), st.lists(OBJECT, max_size=3).map(tuple), JSON, st.lists(OBJECT, max_size=2).map(tuple), OBJECT
)


@given(TASKS)
def test_tasks_survive_the_round_trip(task: Task) -> None:
    assert codec.decode_task(codec.encode_task(task)) == task


PIECES = st.lists(st.text(), max_size=2).map(tuple)
DRIFTS = st.builds(
    EpisodeDrift,
    INT32,
    INT32,
    INT32,
    st.none() | st.builds(TokenDiff, INT32, PIECES, PIECES, PIECES),
)


OUTPUTS = st.builds(ProgramOutput, st.text(), st.text(), st.none() | st.integers(-64, 255), st.text())


@given(st.lists(OBJECT, max_size=3), st.lists(OBJECT, max_size=2), st.none() | DRIFTS, st.none() | OUTPUTS)
def test_transcripts_survive_the_round_trip(
    messages: list[dict[str, object]],
    tools: list[dict[str, object]],
    drift: EpisodeDrift | None,
    output: ProgramOutput | None,
) -> None:
    episode = Episode(tuple(messages), (), tools=tuple(tools), drift=drift, output=output)
    assert decode_transcript(encode_transcript(episode)) == (tuple(messages), tuple(tools), drift, output)


def test_a_transcript_that_an_earlier_version_wrote_is_read() -> None:
    """Which is also what is written as long as there is nothing else to say."""
    old = '[{"role":"user","content":"hi"}]'
    assert decode_transcript(old) == (({"role": "user", "content": "hi"},), (), None, None)
    assert encode_transcript(Episode(({"role": "user", "content": "hi"},), ())) == old
    with pytest.raises(RunError, match="transcript"):
        decode_transcript("7")


@pytest.mark.parametrize(
    "reward",
    [
        Scored(0.1 + 0.2, {"format": 1.0}),
        Scored(0.0),
        Failed(FailureCause.JUDGE, "ValueError", "judge.py, line 3: \ud800"),
        Unscored(),
    ],
)
def test_rewards_survive_the_round_trip(reward: Scored | Failed | Unscored) -> None:
    assert codec.decode_reward(codec.encode_reward(reward)) == reward


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(DataError, match=r"task '3\+4' holds a value that cannot be stored as JSON: .* set "):
        codec.encode_task(Task.ask("3+4", "?", truth={1, 2}))
    with pytest.raises(DataError, match="a reward"):
        codec.encode_reward(Scored(1.0, {"part": float("nan")}))


@pytest.mark.parametrize("text", ["{", '{"kind": "guessed"}', "[]"])
def test_a_damaged_reward_is_a_run_error(text: str) -> None:
    with pytest.raises(RunError, match="stored reward"):
        codec.decode_reward(text)
