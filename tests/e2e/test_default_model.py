"""The default model in float32: speculation changes no token, and plain decoding equals `transformers`.

Five prompts of all sources, in different rows of every batch, run through the real engines. Slow tests use half of
the prompts: each test another half or another way of decoding.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.pools import TRAINED
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.account import load_whole
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeLimits, merge_trees
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROMPTS = Path(__file__).parents[1] / "data" / "prompts.jsonl"
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(default_model)
    turns = read_prompts(PROMPTS)[::9]
    return [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]


@pytest.fixture(scope="module")
def engine(default_model: Path) -> VerifierEngine:
    runner = load_checked(default_model, RunnerOptions(dtype="float32", kv_tokens=16384))
    return VerifierEngine(runner, limits=EngineLimits(max_step_tokens=8192))


@pytest.fixture(scope="module")
def drafters() -> list[Drafter]:
    """The default pool. With the shipped SSM more tokens are accepted per step than with layers of the target,
    so the tests are faster."""
    ssm = DrafterOptions(model=TRAINED[DEFAULT_MODEL], dtype="float32", kv_tokens=32768, proposal="point")
    return [NgramDrafter(1), make_drafter("ssm", ssm)]


@pytest.fixture(scope="module")
def plain(engine: VerifierEngine, prompts: list[list[int]]) -> list[list[int]]:
    return decode(engine, prompts, batch=1)


def decode(
    engine: VerifierEngine,
    prompts: Sequence[list[int]],
    batch: int,
    drafters: Sequence[Drafter] = (),
    width: int | None = None,
    sampling: Sampling = GREEDY,
) -> list[list[int]]:
    """Return the generated tokens by prompt; `batch` prompts are decoded together."""
    answers: list[list[int]] = []
    for start in range(0, len(prompts), batch):
        answers += decode_batch(engine, prompts[start : start + batch], drafters, width, sampling)
    return answers


def decode_batch(
    engine: VerifierEngine,
    prompts: Sequence[list[int]],
    drafters: Sequence[Drafter],
    width: int | None,
    sampling: Sampling,
) -> list[list[int]]:
    contexts = [list(prompt) for prompt in prompts]
    cached_lens = [0] * len(prompts)
    while active := [i for i, c in enumerate(contexts) if len(c) < len(prompts[i]) + NEW_TOKENS]:
        trees = draft(contexts, active, drafters, width, sampling)
        jobs = [
            VerifyJob(str(i), cached_lens[i], contexts[i][cached_lens[i] :], trees[i], sampling)
            for i in active
        ]
        for i, outcome in zip(active, engine.verify(jobs), strict=True):
            assert outcome.status is EntryStatus.OK, outcome.message
            contexts[i] += [int(trees[i].token_ids[node]) for node in outcome.accepted]
            contexts[i].append(outcome.bonus)
            cached_lens[i] = outcome.cached_len
    ids = [str(i) for i in range(len(prompts))]
    engine.release(ids)
    for drafter in drafters:
        for request_id in ids:
            drafter.release(request_id)
    return [c[len(p) : len(p) + NEW_TOKENS] for c, p in zip(contexts, prompts, strict=True)]


def draft(
    contexts: list[list[int]],
    active: list[int],
    drafters: Sequence[Drafter],
    width: int | None,
    sampling: Sampling,
) -> dict[int, TokenTree]:
    limits = TreeLimits(12, 4, width)
    jobs = [DraftJob(str(i), contexts[i], limits, sampling) for i in active]
    drafts: dict[int, list[tuple[int, TokenTree]]] = {i: [] for i in active}
    for index, drafter in enumerate(drafters):
        for i, tree in zip(active, drafter.draft(jobs), strict=True):
            assert isinstance(tree, TokenTree), tree
            drafts[i].append((index, tree))
    return {
        i: merge_trees(trees, 13) if trees else TokenTree.root_only(contexts[i][-1])
        for i, trees in drafts.items()
    }


def test_plain_decoding_is_transformers_generate(
    default_model: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    model = load_whole(default_model, "llama", torch.float32).eval()
    for prompt, ours in list(zip(prompts, plain, strict=True))[::2]:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert ours == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("mode", ["sequence", "tree"])
def test_speculation_changes_nothing(
    engine: VerifierEngine,
    drafters: list[Drafter],
    prompts: list[list[int]],
    plain: list[list[int]],
    mode: str,
    batch: int,
) -> None:
    pool, width = (drafters[1:], 1) if mode == "sequence" else (drafters, None)
    some = slice(1 if mode == "sequence" else 0, None, 2) if batch == 1 else slice(None)
    assert decode(engine, prompts[some], batch, pool, width) == plain[some]


@pytest.fixture(scope="module")
def native_engine(default_model: Path) -> Callable[[str], VerifierEngine]:
    """Function that returns the engine of the compiled kernels in bfloat16 for a format of weights."""

    @cache
    def engine(weights: str) -> VerifierEngine:
        try:
            options = RunnerOptions(dtype="bfloat16", kv_tokens=16384, executor="native", weights=weights)
            runner = load_checked(default_model, options)
        except SettingError as error:
            pytest.skip(str(error))
        return VerifierEngine(runner, limits=EngineLimits(max_step_tokens=8192))

    return engine


@pytest.mark.parametrize(
    ("batch", "sampling", "weights", "first"),
    [
        (1, GREEDY, "bf16", 0),
        (8, GREEDY, "auto", 1),
        (8, Sampling(temperature=0.8, seed=5), "bf16", 1),
    ],
)
def test_speculation_changes_nothing_in_bfloat16_either(
    native_engine: Callable[[str], VerifierEngine],
    drafters: list[Drafter],
    prompts: list[list[int]],
    batch: int,
    sampling: Sampling,
    weights: str,
    first: int,
) -> None:
    """Only the native executor guarantees this: a row is the same, bit for bit, in every pass. Sampled tokens
    depend on seed and position, not on the proposals."""
    engine, some = native_engine(weights), prompts[first::2]
    expected = decode(engine, some, 1, sampling=sampling)
    assert decode(engine, some, batch, drafters, sampling=sampling) == expected


def test_batched_plain_decoding_is_the_same(
    engine: VerifierEngine, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    assert decode(engine, prompts, batch=8) == plain


@pytest.mark.thorough
def test_eight_thousand_tokens_of_context(default_model: Path, prompts: list[list[int]]) -> None:
    """The context is read in chunks of two sizes. Then a chain scored in one pass equals single steps. The model
    has six layers, to be fast."""
    runner = load_checked(default_model, RunnerOptions(kv_tokens=2 * 8192, layers=6))
    context = [token for prompt in prompts for token in prompt] * 20
    context, chain = context[:8000], context[8000:8006]
    sequence = runner.open()
    for start, stop, chunk in ((0, 4096, 512), (4096, 8000, 1000)):
        for at in range(start, stop, chunk):
            runner.forward([Segment(sequence, context[at : min(at + chunk, stop)])])
    (at_once,) = runner.forward([Segment(sequence, (), chain, range(-1, len(chain) - 1))])
    runner.cache.commit(sequence, ())
    singly = [runner.forward([Segment(sequence, [token], want_last=True)])[0] for token in chain]
    torch.testing.assert_close(at_once, torch.cat(singly), rtol=0.05, atol=0.5)
    assert at_once.argmax(-1).tolist() == torch.cat(singly).argmax(-1).tolist()
    runner.cache.release(sequence)
    runner.cache.check()
