"""An exception in the verifier's code ends only the entry that causes it, and does not affect its batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specinfer.verification.engine
import specinfer.verification.target
import specinfer.verification.tree_verifier
from specinfer.errors import UnavailableError
from specinfer.model.cache.feature_store import FeatureStore
from specinfer.model.offload import stream
from specinfer.model.offload.stores import DiskStore
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.acceptance import Acceptance
from specinfer.verification.adjustments import RequestAdjustment
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.services import raising
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPTS = [[5, 17, 3, 88], [41, 9], [60, 2, 71, 33, 34], [23] * 20]
POISON = 96
"""The token that marks the request for which a part raises."""


class Requests:
    """Requests that are decoded step by step in one batch, with small trees."""

    def __init__(self, engine: VerifierEngine, poisoned: int | None) -> None:
        self._engine = engine
        self.tokens = [list(prompt) for prompt in PROMPTS]
        if poisoned is not None:
            self.tokens[poisoned][0] = POISON
        self._prompts = [len(tokens) for tokens in self.tokens]
        self.cached_lens = [0] * len(PROMPTS)
        self.ended: dict[int, str] = {}

    def step(self) -> list[EntryStatus]:
        """Run a step of all unfinished requests; return their statuses."""
        running = [i for i in range(len(PROMPTS)) if i not in self.ended]
        outcomes = self._engine.verify([self._job(i) for i in running])
        for index, outcome in zip(running, outcomes, strict=True):
            self._take(index, outcome)
        return [outcome.status for outcome in outcomes]

    def _job(self, index: int) -> VerifyJob:
        tokens, cached_len = self.tokens[index], self.cached_lens[index]
        builder = TreeBuilder(tokens[-1])
        children = builder.propose_points(0, [(tokens[-1] + i) % 90 for i in range(3)], [0.3] * 3)
        builder.propose_points(children[1], [7], [0.5])
        # every second request samples; all have penalties, which count generated tokens
        temperature, bias = float(index % 2), {(5 + index): 2.0}
        sampling = Sampling(
            temperature=temperature, seed=index, frequency_penalty=0.5, logit_bias=tuple(bias.items())
        )
        return VerifyJob(
            f"r{index}",
            cached_len,
            tokens[cached_len:],
            builder.build(),
            sampling,
            logprobs=True,
            features_from=0,
            prompt_len=self._prompts[index],
        )

    def _take(self, index: int, outcome: Verdict) -> None:
        if outcome.status is EntryStatus.OK:
            tree: TokenTree | None = self._job(index).tree
            assert tree is not None
            self.tokens[index] += [int(tree.token_ids[node]) for node in outcome.accepted]
            self.cached_lens[index] = len(self.tokens[index])
            self.tokens[index].append(outcome.bonus)
        elif outcome.status is EntryStatus.RESYNC:
            self.cached_lens[index] = 0
        elif outcome.status is EntryStatus.ERROR:
            self.ended[index] = outcome.message


def make(**options: Any) -> VerifierEngine:
    engine = VerifierEngine(runner_of(tiny_transformers("llama"), **options))
    engine.runner.keep_features([1])
    return engine


def hits(original: Callable[..., Any], is_poison: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if is_poison(*arguments):
            raise IndexError("a fault of ours")
        return original(*arguments, **named)

    return wrapped


def inject(monkeypatch: pytest.MonkeyPatch, engine: VerifierEngine, where: str, poisoned: int) -> None:
    """Make one part of the verifier raise for the poisoned request."""
    name = f"r{poisoned}"

    def its_sequence(sequence: Any) -> bool:
        cached = engine._cached.get(name)
        return cached is not None and cached.sequence is sequence

    def its_adjustment(adjustment: Any) -> bool:
        cached = engine._cached.get(name)
        return cached is not None and cached.adjustment is adjustment

    owner: Any
    owner, attribute, is_poison = {
        "check": (specinfer.verification.engine, "check_job", lambda job, *_: job.request_id == name),
        "acceptance": (engine._trees, "_rule", lambda sampling: sampling.seed == poisoned),
        "logprobs": (
            specinfer.verification.tree_verifier,
            "logprobs_of",
            lambda tree, *_: its_root(tree, engine, name),
        ),
        "features": (
            specinfer.verification.engine,
            "features_of",
            lambda _s, _c, sequence, *_: its_sequence(sequence),
        ),
        "reading": (RequestAdjustment, "read", lambda adjustment, *_: its_adjustment(adjustment)),
        "changing": (RequestAdjustment, "change", lambda adjustment, *_: its_adjustment(adjustment)),
        "pass": (engine.runner, "run", lambda segments: any(its_sequence(s.sequence) for s in segments)),
    }[where]
    monkeypatch.setattr(owner, attribute, hits(getattr(owner, attribute), is_poison))


def its_root(tree: TokenTree, engine: VerifierEngine, name: str) -> bool:
    cached = engine._cached.get(name)
    return (
        cached is not None
        and tree.root_token_id == cached.sequence.tokens[-1]
        and POISON in cached.sequence.tokens
    )


PLACES = ["check", "acceptance", "logprobs", "features", "reading", "changing", "pass"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("poisoned", range(len(PROMPTS)))
def test_an_exception_ends_only_the_entry_that_causes_it(
    monkeypatch: pytest.MonkeyPatch, where: str, poisoned: int
) -> None:
    undisturbed, engine = Requests(make(), poisoned), make()
    hit = Requests(engine, poisoned)
    for _ in range(2):
        assert hit.step() == undisturbed.step()
    inject(monkeypatch, engine, where, poisoned)
    statuses = hit.step()
    assert statuses.count(EntryStatus.OK) == len(PROMPTS) - 1
    assert statuses[poisoned] is EntryStatus.ERROR
    assert "IndexError" in hit.ended[poisoned]
    undisturbed.step()
    for _ in range(4):
        assert set(hit.step()) == {EntryStatus.OK}, "no further error, and no resynchronisation"
        undisturbed.step()
    others = [i for i in range(len(PROMPTS)) if i != poisoned]
    assert [hit.tokens[i] for i in others] == [undisturbed.tokens[i] for i in others]
    engine.settle()
    engine.runner.cache.check()
    assert engine.cached_requests == len(others)
    assert engine.faults


def test_an_exception_in_choosing_for_all_ends_only_the_entry_that_causes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device chooses tokens for all entries at once; after an error they are chosen one by one."""
    engine = make()
    requests = Requests(engine, 2)
    requests.step()
    original = specinfer.verification.target._target_here
    broken = hits(original, lambda job, *_: job.request_id == "r2")
    monkeypatch.setattr(specinfer.verification.target, "_target_here", broken)
    ok, error = EntryStatus.OK, EntryStatus.ERROR
    assert requests.step() == [ok, ok, error, ok]
    assert requests.step() == [ok] * 3


def test_an_exception_in_a_commit_loses_one_cached_context(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, engine = Requests(make(), None), make()
    hit = Requests(engine, None)
    hit.step()
    undisturbed.step()
    broken = engine._cached["r1"].sequence
    commit = hits(engine.runner.cache.commit, lambda sequence, _: sequence is broken)
    monkeypatch.setattr(engine.runner.cache, "commit", commit)
    assert [status.name for status in hit.step()] == ["OK", "RESYNC", "OK", "OK"]
    for _ in range(4):
        hit.step()
        undisturbed.step()
    assert [tokens[: len(undisturbed.tokens[i])] for i, tokens in enumerate(hit.tokens) if i != 1] == [
        tokens for i, tokens in enumerate(undisturbed.tokens) if i != 1
    ]
    undisturbed.step()
    assert hit.tokens[1] == undisturbed.tokens[1][: len(hit.tokens[1])]
    engine.settle()
    engine.runner.cache.check()


def test_an_exception_in_storing_hidden_states_leaves_all_sequences_consistent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make()
    undisturbed, hit = Requests(make(), None), Requests(engine, None)
    monkeypatch.setattr(FeatureStore, "write", raising(FeatureStore.write, IndexError("a fault of ours")))
    assert set(hit.step()) == {EntryStatus.OK}, "in passes of their own"
    undisturbed.step()
    assert hit.tokens == undisturbed.tokens


@pytest.mark.parametrize("failures", [1, 2, 9])
def test_a_layer_that_cannot_be_read_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failures: int
) -> None:
    """If retries fail, the next step tries again."""
    monkeypatch.setattr(stream, "RETRIES_S", (0.0, 0.0))
    undisturbed = Requests(make(), None)
    engine = make(offload="disk", offload_directory=str(tmp_path))
    hit = Requests(engine, None)
    hit.step()
    undisturbed.step()
    fetch, left = DiskStore.fetch, [failures]

    def fails(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise UnavailableError("offload: layer 1 not read")
        return fetch(*arguments)

    monkeypatch.setattr(DiskStore, "fetch", fails)
    statuses = set()
    for _ in range(12):
        statuses.update(hit.step())
        assert not hit.ended
    for _ in range(12):
        undisturbed.step()
    assert left == [0]
    assert (EntryStatus.EXHAUSTED in statuses) == (failures == 9)
    for got, expected in zip(hit.tokens, undisturbed.tokens, strict=True):
        assert got == expected[: len(got)]
        assert len(got) > 8
    engine.settle()
    engine.runner.cache.check()


def _raises(tree: TokenTree, *_: object) -> Acceptance:
    raise ValueError("secret", tree)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (lambda tree, *_: Acceptance((len(tree) + 5,), 3), "it returned node 10 of a tree with 5 nodes"),
        (lambda *_: Acceptance((-1,), 3), "it returned node -1 of a tree with 5 nodes"),
        (lambda *_: Acceptance((0,), 3), "it returned node 0 of a tree with 5 nodes"),
        (lambda *_: Acceptance((2, 1), 3), "it returned node 1, which is no child of node 2"),
        (lambda *_: Acceptance((3,), 3), "it returned node 3, which is no child of node 0"),
        (lambda *_: Acceptance((), 97), "it returned a bonus token outside the vocabulary of 97 tokens"),
        (lambda *_: Acceptance((), -1), "it returned a bonus token outside the vocabulary of 97 tokens"),
        (lambda *_: None, "it returned NoneType, not an Acceptance"),
        (_raises, "failed: ValueError at test_faults.py:"),
    ],
)
def test_a_wrong_rule_ends_its_request_with_a_sentence(
    rule: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other requests go on, and no log line shows tokens or a request's state."""
    engine = VerifierEngine(runner_of(tiny_transformers("llama", head_dim=16)))
    monkeypatch.setattr(engine._trees, "_stochastic", rule)
    requests = Requests(engine, None)
    statuses = requests.step()
    assert statuses == [EntryStatus.OK, EntryStatus.ERROR] * 2
    assert reason in requests.ended[1]
    assert "the acceptance rule traversal" in requests.ended[1]
    assert requests.step() == [EntryStatus.OK] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{requests.ended[number]}; its request is forgotten" for number in (1, 3)
    ]
    assert not any(record.exc_info for record in caplog.records)
    assert engine.faults == 2
