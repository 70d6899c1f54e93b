"""`specinfer bench`: modes alternate, and their times become figures with errors."""

import math
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from specinfer.cli.bench import BenchPlan, Turn, parts, run_bench, summarise
from specinfer.client import Answer
from specinfer.request.answer import Item, Piece
from specinfer.request.fields import RequestFields
from specinfer.request.stream import AsyncStream, Generator


class Gateway:
    """Records the requests in order; every answer repeats token 7."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def ask(self, prompt: str, request: RequestFields) -> AsyncStream:
        assert not request.chat
        self.asked.append((prompt, request.speculation, request.max_new_tokens))

        async def items() -> AsyncGenerator[Item, None]:
            yield Piece(0, (7,) * request.max_new_tokens, "")

        return AsyncStream("", items())


OFF, SEQUENCE, TREE = "off", "sequence", "tree"


async def test_modes_take_turns_prompt_by_prompt_over_prompts_that_were_read() -> None:
    gateway = Gateway()
    labels: list[str] = []
    plan = BenchPlan(("a", "b", "c"), ("tree", "sequence", "incremental"), (1,), 5, 0.0, chat=False)
    runs = await run_bench(cast(Generator, gateway), plan, labels.append)
    warm_up, *asked = gateway.asked
    assert warm_up == ("a", TREE, 5)
    orders = [(OFF, SEQUENCE, TREE), (TREE, SEQUENCE, OFF), (OFF, SEQUENCE, TREE)]
    assert asked == [
        question
        for prompt, order in zip("abc", orders, strict=True)
        for question in [(prompt, OFF, 1), *((prompt, mode, 5) for mode in order)]
    ]
    assert [(run.mode, run.turns, run.prompts, run.new_tokens) for run in runs] == [
        (mode, 3, 3, 15) for mode in ("incremental", "sequence", "tree")
    ]
    assert len(labels) == 9, "one per measured prompt"


@pytest.mark.parametrize(
    ("prompts", "batch", "sizes"),
    [
        (4, 1, [1, 1, 1, 1]),
        (80, 4, [12, 12, 12, 12, 12, 12, 8]),
        (80, 16, [16] * 5),
        (10, 4, [4, 6]),
        (3, 8, [3]),
    ],
)
def test_a_turn_keeps_a_batch_full(prompts: int, batch: int, sizes: list[int]) -> None:
    texts = [str(number) for number in range(prompts)]
    batches = parts(texts, batch)
    assert [len(part) for part in batches] == sizes
    assert [text for part in batches for text in part] == texts


def turn(tokens: list[int], seconds: float) -> Turn:
    return Turn([Answer(token_ids=tokens)], seconds)


def test_speed_comes_with_its_error_and_is_compared_turn_by_turn() -> None:
    """The machine is twice as slow in the second turn: rates differ much, speedups little."""
    plain = [turn([1] * 10, 1.0), turn([1] * 10, 2.0)]
    fast = [turn([1] * 10, 0.5), turn([1] * 9 + [2], 0.8)]
    run = summarise("tree", 1, fast, plain)
    assert run.tokens_per_second == pytest.approx(20 / 1.3)
    assert run.tokens_per_second_error == pytest.approx((20 - 12.5) / math.sqrt(2) / math.sqrt(2))
    assert run.speedup == pytest.approx(3.0 / 1.3)
    assert run.speedup_error == pytest.approx(0.5 / math.sqrt(2) / math.sqrt(2))
    assert (run.identical_to_incremental, run.identical_token_share) == (False, 0.95)
    one = summarise("tree", 1, fast[:1], None)
    assert (one.speedup, one.speedup_error, one.tokens_per_second_error) == (None, None, None)
