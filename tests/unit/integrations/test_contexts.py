"""Rows of a batch are matched with their requests by content, in any order of the rows."""

import numpy as np
import pytest

from specinfer.integrations.vllm.contexts import BatchRow, Context, ContextTable


def row(*tokens: int, new: int = 1) -> BatchRow:
    return BatchRow(np.array(tokens, np.int32), new)


def step(contexts: ContextTable, *rows: BatchRow) -> list[Context]:
    """Match the rows and extend their contexts, as the proposer does."""
    matches = contexts.match(rows)
    for context, match in zip(matches, rows, strict=True):
        context.grow(match.tokens)
    return matches


def test_rows_that_move_keep_their_requests() -> None:
    contexts = ContextTable(patience=2)
    a, b = step(contexts, row(1, 2), row(1, 3))
    assert step(contexts, row(1, 3, 9, 8, new=2), row(1, 2, 7)) == [b, a]
    c, again_a, again_b = step(contexts, row(4, 5), row(1, 2, 7, 7), row(1, 3, 9, 8, 0))
    assert (again_a, again_b) == (a, b)
    assert len({id(a), id(b), id(c)}) == 3


def test_a_request_with_the_prefix_of_another_keeps_its_context() -> None:
    """The context of the shorter request is a prefix of the longer request's row."""
    contexts = ContextTable(patience=2)
    longer, shorter = step(contexts, row(1, 2, 3, 4), row(1, 2))
    assert step(contexts, row(1, 2, 9), row(1, 2, 3, 4, 5)) == [shorter, longer]


def test_new_tokens_of_a_step_distinguish_requests() -> None:
    """The shorter request gained the token that the longer one already had."""
    contexts = ContextTable(patience=2)
    longer, shorter = step(contexts, row(1, 2, 3), row(1, 2))
    assert step(contexts, row(1, 2, 3, 4, new=2), row(1, 2, 3, 5)) == [shorter, longer]


def test_rows_of_the_same_tokens_get_a_request_each() -> None:
    contexts = ContextTable(patience=2)
    both = step(contexts, row(1, 2), row(1, 2))
    assert both[0] is not both[1]
    after = step(contexts, row(1, 2, 5), row(1, 2, 6))
    assert {id(context) for context in after} == {id(context) for context in both}


def test_a_row_that_was_absent_for_steps_is_found_by_its_prefix() -> None:
    contexts = ContextTable(patience=4)
    _, a = step(contexts, row(1, 2), row(1, 2, 3))
    step(contexts, row(6, 6))
    (again,) = step(contexts, row(1, 2, 3, 4, 5, 6, new=1))
    assert again is a


def test_requests_that_do_not_come_back_have_ended() -> None:
    contexts = ContextTable(patience=1)
    a, b = step(contexts, row(1, 2), row(3, 4))
    assert contexts.ended() == []
    step(contexts, row(3, 4, 5))
    assert contexts.ended() == []
    step(contexts, row(3, 4, 5, 6))
    assert contexts.ended() == [a.request_id]
    assert len(contexts) == 1
    assert step(contexts, row(1, 2, 7))[0] is not a
    assert step(contexts, row(3, 4, 5, 6, 7))[0] is b


@pytest.mark.parametrize("seed", range(5))
def test_a_random_batch_is_matched_without_a_mistake(seed: int) -> None:
    """Prompts share prefixes, grow by 1 to 5 tokens per step, and are shuffled; requests end and start."""
    rng = np.random.default_rng(seed)
    contexts, alive, known = ContextTable(patience=0), dict[int, list[int]](), dict[int, Context]()
    for number in range(300):
        for name in list(alive):
            if rng.random() < 0.05:
                del alive[name], known[name]
        if len(alive) < 8:
            alive[number] = [0] * int(rng.integers(1, 12)) + rng.integers(0, 50, 3).tolist()
        names = rng.permutation(list(alive)).tolist()
        grown = {name: rng.integers(0, 50, rng.integers(1, 6)).tolist() for name in names}
        for name in names:
            alive[name] = alive[name] + grown[name]
        matches = step(contexts, *(row(*alive[name], new=len(grown[name])) for name in names))
        for name, context in zip(names, matches, strict=True):
            assert known.setdefault(name, context) is context
        contexts.ended()
        assert len(contexts) == len(alive)
