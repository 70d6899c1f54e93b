"""The verifier on a real device: greedy texts with trees equal plain decoding, with and without captured graphs."""

import pytest

from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import TokenTree
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.oracle import chain
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE

pytestmark = pytest.mark.gpu

PROMPTS = ([5, 17, 3, 88], [4, 61, 7, 9, 9, 30], [90, 2])
LENGTH = 24


def texts(sampling: Sampling, known: list[list[int]] | None = None) -> list[list[int]]:
    """Return the tokens generated for each prompt in one batch; trees propose `known`, then wrong tokens."""
    engine = VerifierEngine(
        runner_of(tiny_transformers("llama"), executor="gpu", device=DEVICE, kv_tokens=2048)
    )
    texts: list[list[int]] = [[] for _ in PROMPTS]
    cached_lens, deltas = [0] * len(PROMPTS), [list(prompt) for prompt in PROMPTS]
    while min(map(len, texts)) < LENGTH:
        trees = [TokenTree.root_only(delta[-1]) for delta in deltas]
        if known is not None:
            nexts = [k[len(t) : len(t) + 4] for k, t in zip(known, texts, strict=True)]
            nexts = [[*tokens[:2], *((token + 1) % 97 for token in tokens[2:])] for tokens in nexts]
            trees = [chain(delta[-1], tokens) for delta, tokens in zip(deltas, nexts, strict=True)]
        jobs = [VerifyJob(str(i), cached_lens[i], deltas[i], trees[i], sampling) for i in range(len(PROMPTS))]
        for i, outcome in enumerate(engine.verify(jobs)):
            accepted = [int(trees[i].token_ids[node]) for node in outcome.accepted]
            texts[i] += [*accepted, outcome.bonus]
            cached_lens[i], deltas[i] = outcome.cached_len, [outcome.bonus]
    return [tokens[:LENGTH] for tokens in texts]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_p=0.9, seed=6)])
def test_a_text_does_not_depend_on_what_is_proposed(sampling: Sampling) -> None:
    plain = texts(sampling)
    assert len({tuple(text) for text in plain}) == len(PROMPTS)
    assert texts(sampling, plain) == plain
