"""The reference decoder of most tests equals `transformers.generate`."""

import torch

from tests.support.oracle import default_target, greedy


def test_the_oracle_is_transformers_generate() -> None:
    for prompt, count in (([5, 17, 3, 88, 41], 250), ([33], 100), ([7] * 60, 100), (list(range(3, 95)), 100)):
        out = default_target().generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert greedy(prompt, count) == out[0, len(prompt) :].tolist()


def test_a_context_that_diverges_from_a_known_one_is_read_again() -> None:
    prompt = [5, 17, 3, 88, 41]
    text = [*prompt, *greedy(prompt, 12)]
    for end in (1, 4, 9):
        other = [*text[:-end], 50, 51]
        out = default_target()(torch.tensor([other])).logits[0, -1]
        assert greedy(other, 1) == [int(out.argmax())]
