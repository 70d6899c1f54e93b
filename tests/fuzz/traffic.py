"""Random requests, and their right answers."""

from dataclasses import dataclass
from random import Random

from specinfer.request.sampling import GREEDY, Sampling
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from tests.fuzz.table_target import TableTarget
from tests.support.system import VOCABULARY


@dataclass(slots=True)
class Expectation:
    """Running request and its expected answer."""

    state: RequestState
    right: list[int] | None
    """All tokens of its answer; None if it depends on draws, adjustments or a lossy rule."""
    tainted: bool = False
    """True if the verifier's answer to it was mutated; then only invariants are checked."""

    def check(self) -> None:
        """Check what must hold after every step."""
        state, request = self.state, self.state.request
        new, name = state.tokens[len(request.prompt) :], request.request_id
        assert state.tokens[: len(request.prompt)] == list(request.prompt), f"{name}: the prompt changed"
        assert len(new) <= request.max_new_tokens, (
            f"{name}: {len(new)} tokens instead of {request.max_new_tokens}"
        )
        assert all(0 <= token < VOCABULARY for token in new), f"{name}: tokens that do not exist: {new}"
        if state.finish is None:
            cached_len, total = state.verifier_len, len(state.tokens)
            assert 0 <= cached_len < total, (
                f"{name}: the verifier is believed to hold {cached_len} of {total} tokens"
            )
        if self.tainted:
            return
        assert not state.error, f"{name}: {state.error}"
        if self.right is not None:
            assert new == self.right[: len(new)], f"{name}: {new} instead of {self.right}"
        if state.finish is not None and self.right is not None:
            assert new == self.right, f"{name}: ended with {new} instead of {self.right}"


def new_request(name: str, rng: Random) -> GenerationRequest:
    greedy = rng.random() < 0.5
    stops = rng.sample(range(VOCABULARY), 3) if rng.random() < 0.3 else []
    alphabet = rng.sample(range(VOCABULARY), 4)
    top_k, top_p = rng.choice(((0, 1.0), (0, 1.0), (5, 1.0), (0, 0.9)))
    return GenerationRequest(
        request_id=name,
        prompt=tuple(rng.choices(alphabet, k=rng.choice((1, 2, 5, 12, 30)))),
        max_new_tokens=rng.choice((1, 2, 6, 12, 20)),
        sampling=GREEDY
        if greedy
        else Sampling(rng.choice((0.5, 1)), top_k, top_p, seed=rng.randrange(2**63)),
        stop_token_ids=frozenset(stops),
        priority=rng.choice((0, 0, 0, 1, -1)),
        speculation=rng.choice((Speculation.TREE, Speculation.TREE, Speculation.SEQUENCE, Speculation.OFF)),
        logprobs=rng.random() < 0.2,
    )


def expectation(state: RequestState, target: TableTarget) -> Expectation:
    """Return the expected answer of a request that was just submitted."""
    if state.drawn_for or not state.sampling.lossless or state.sampling.adjusts:
        return Expectation(state, None)
    right = target.continued(state.request.prompt, state.sampling, state.request.max_new_tokens)
    stops = [i for i, token in enumerate(right) if token in state.request.stop_token_ids]
    return Expectation(state, right[: stops[0] + 1] if stops else right)
