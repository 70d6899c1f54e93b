"""Masks of a request belong to their paths, whatever the order in which they were started."""

from itertools import permutations

import numpy as np
import pytest

from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.constraints.masks import MaskThreads
from tests.support.system import VOCABULARY, ascii_tokenizer

TEXT = "aaaa"
"""One token repeated: every path is also the end of longer ones."""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(ascii_tokenizer().to_json(), VOCABULARY, [0])


@pytest.mark.parametrize("order", list(permutations(range(len(TEXT) + 1), 3)))
def test_masks_begun_in_any_order_are_those_of_their_paths(
    compiler: Compiler, order: tuple[int, ...]
) -> None:
    constraint = Constraint.choice([TEXT])
    token = ascii_tokenizer().encode(TEXT[0])[0]
    threads = MaskThreads(budget_s=10.0)
    masks = threads.open(constraint, compiler.compile(constraint))
    threads.wait_for(30.0)
    for length in order:
        assert masks.made([token] * length)
    for committed in range(len(TEXT) + 1):
        for ahead in range(len(TEXT) + 1 - committed):
            mask = masks.mask([token] * ahead)
            if committed + ahead == len(TEXT):
                assert mask is None, "the text is complete"
            else:
                assert mask is not None, f"{committed} committed, {ahead} ahead"
                assert np.flatnonzero(mask).tolist() == [token]
        masks.read([token])
