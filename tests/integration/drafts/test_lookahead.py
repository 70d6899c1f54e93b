"""Lookahead decoding in a whole system: passes compute the window, and return its predictions."""

from specinfer.drafters import DrafterDescription
from specinfer.drafters.lookahead import LookaheadDrafter, LookaheadShape
from tests.support.exactness.markov import markov, serving
from tests.support.system import VOCABULARY


def lookahead(window: int = 5, ngram: int = 3) -> LookaheadDrafter:
    description = DrafterDescription(vocab_size=VOCABULARY, target_top_k=1)
    return LookaheadDrafter(description, LookaheadShape(window, ngram, 4))


async def test_the_window_predicts_a_target_that_depends_on_one_token(redis_url: str) -> None:
    """A few iterations find every n-gram of a greedy chain; then each step commits N tokens."""
    async with serving(redis_url, {"lookahead": lookahead(4, 3)}, markov(1), 24) as system:
        replies = await system.generate([1], max_new_tokens=40)
        tokens = [t for reply in replies for t in reply.token_ids]
        assert tokens == await system.tokens([1], max_new_tokens=40, speculation=3)
    assert replies[-1].summary.stats.steps <= 20
