"""Biases and penalties on hand-computed cases, and the tokens that they count."""

from collections import Counter

import numpy as np
import pytest

from specinfer.errors import InvalidInputError
from specinfer.request.sampling import MAX_BIASES, Sampling
from specinfer.tree import TokenTree
from specinfer.verification.adjustments import Float32, RequestAdjustment, adjustment_of
from specinfer.verification.jobs import VerifyJob

V = 6


def adjustment(prompt_len: int = 2, **sampling: object) -> RequestAdjustment:
    job = VerifyJob("r", 0, [1], None, Sampling(**sampling), prompt_len=prompt_len)  # type: ignore[arg-type]
    adjustment = adjustment_of(job, V)
    assert adjustment is not None
    return adjustment


def added(change: RequestAdjustment, *path: int) -> list[float]:
    row: Float32 = np.zeros(V, np.float32)
    change.change(row, path)
    return row.tolist()


def test_penalties_count_generated_tokens_and_those_of_the_path() -> None:
    change = adjustment(logit_bias=((0, -100.0), (3, 2.5)), presence_penalty=0.5, frequency_penalty=0.25)
    change.read(0, [5, 4])  # the prompt
    assert added(change) == [-100, 0, 0, 2.5, 0, 0]
    change.read(2, [3, 4, 3])
    assert added(change) == [-100, 0, 0, 2.5 - 0.5 - 2 * 0.25, -0.75, 0]
    assert added(change, 3, 1) == [-100, -0.75, 0, 2.5 - 0.5 - 3 * 0.25, -0.75, 0]
    assert added(change) == [-100, 0, 0, 2.5 - 0.5 - 2 * 0.25, -0.75, 0], "a path is not committed"


def test_the_repetition_penalty_reads_prompt_answer_and_path() -> None:
    change = adjustment(repetition_penalty=2.0, presence_penalty=1.0)
    change.read(0, [5, 4])  # the prompt
    change.read(2, [3])
    row: Float32 = np.array([4, -4, 4, 4, -4, 4], np.float32)
    for path, expected in (
        ([2], [4, -4, 1, 1, -8, 2]),
        ([], [4, -4, 4, 1, -8, 2]),
        ([3, 4], [4, -4, 4, 1, -9, 2]),
    ):
        changed = row.copy()
        change.change(changed, path)
        assert changed.tolist() == expected, path


@pytest.mark.parametrize("chunks", [[7], [2, 5], [1, 1, 3, 2], [3, 4]])
def test_only_tokens_after_the_prompt_are_counted_for_any_chunks(chunks: list[int]) -> None:
    """After a RESYNC, prompt and generated tokens are read together, in chunks that may span both."""
    tokens, change, at = [5, 5, 5, 5, 1, 5, 1], adjustment(4, frequency_penalty=1.0), 0
    for size in chunks:
        change.read(at, tokens[at : at + size])
        at += size
    counts = Counter(tokens[4:])
    assert added(change) == [-counts[token] for token in range(V)]


def test_a_committed_token_and_one_of_a_path_change_a_logit_by_the_same_bits() -> None:
    penalties: dict[str, object] = {
        "presence_penalty": 0.1,
        "frequency_penalty": 0.7,
        "logit_bias": ((2, 0.3),),
    }
    penalties["repetition_penalty"] = 1.3
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = rng.integers(0, V, 12).tolist()
        cut = int(rng.integers(0, 12))
        whole, part = adjustment(0, **penalties), adjustment(0, **penalties)
        whole.read(0, tokens)
        part.read(0, tokens[:cut])
        rows = rng.normal(size=V).astype(np.float32)
        a, b = rows.copy(), rows.copy()
        whole.change(a, [])
        part.change(b, tokens[cut:])
        assert a.tobytes() == b.tobytes()


def test_requests_without_penalties_have_no_adjustment() -> None:
    job = VerifyJob("r", 0, [1], TokenTree.root_only(1), Sampling(), prompt_len=1)
    assert adjustment_of(job, V) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty = 2.1: must be in [-2, 2]"),
        ({"min_p": 1.1}, "min_p = 1.1: must be in [0, 1]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: must be in [0.01, 100]"),
        ({"repetition_penalty": 1e-39}, "repetition_penalty = 1e-39: must be in [0.01, 100]"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty = nan: must be in [0.01, 100]"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty = nan: must be in [-2, 2]"),
        ({"logit_bias": ((1, -100.5),)}, "logit_bias = -100.5: must be in [-100, 100]"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias = nan: must be in [-100, 100]"),
        (
            {"logit_bias": tuple((t, 1.0) for t in range(MAX_BIASES + 1))},
            "logit_bias = 1025 tokens: at most 1024",
        ),
        ({"logit_bias": ((V, 1.0),)}, "logit_bias = '6': must be a token id from 0 to 5"),
    ],
)
def test_every_bound_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        adjustment(**fields)
    assert str(caught.value) == message
