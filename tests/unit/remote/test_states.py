"""Stored hidden states of a request behave like one array, with costs proportional to the new ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.request.hidden_states import States


def rows(start: int, count: int) -> Any:
    return np.arange(start, start + count, dtype=np.int16).reshape(-1, 1, 1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "drop", "read"]), st.integers(0, 12), st.integers(0, 5)), max_size=30
)


@given(STEPS, st.integers(0, 3))
def test_it_behaves_like_one_array(steps: list[tuple[str, int, int]], first: int) -> None:
    kept, start, stop = States(5, rows(5, first)), 5, 5 + first
    for what, number, max_count in steps:
        if what == "append":
            kept.append(rows(stop, number))
            stop += number
        elif what == "drop":
            kept.drop(start + number)
            start = min(stop, start + number)
        else:
            begin = min(stop, start + number)
            assert kept.read(begin, max_count).ravel().tolist() == list(range(begin, stop))[:max_count]
        assert (kept.start, kept.stop, kept.nbytes) == (start, stop, 2 * (stop - start))
    assert kept.read(start).shape == (stop - start, 1, 1)


def test_the_cost_of_a_step_depends_only_on_new_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also applies while the service reads no states and they accumulate."""
    copied, concatenate = 0, np.concatenate

    def counted(arrays: Any) -> Any:
        nonlocal copied
        copied += sum(len(array) for array in arrays)
        return concatenate(arrays)

    monkeypatch.setattr(np, "concatenate", counted)
    kept = States(0, rows(0, 1))
    for step in range(1, 1000):
        kept.append(rows(3 * step, 3))
        kept.read(kept.stop - 5)
    assert copied <= 1000 * 6
