"""For requests with any options, trees and chains give the tokens of plain decoding.

Modes x temperature x penalties x biases x constraints x stops x limits (including the end of the context), in
float32, so that only a defect can cause a difference. Drafters copy the text of plain decoding and add errors, so
that paths of all lengths are accepted and rejected; sampled requests choose by the same noise in all modes.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.ssm import SsmDrafter
from specinfer.llm import LLM, CompletionOutput, SamplingParams
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from tests.support.effort import effort
from tests.support.local import tiny_llm
from tests.support.models.families import random_model
from tests.support.system import VOCABULARY, ScriptedDrafter
from tests.support.tiny_models import MIXTURES, runner_of, tiny_transformers

CONTEXT = 48
"""Positions of the target: few, so that many requests reach the end of the context."""


class Oracle:
    """Drafts the text of plain decoding with a wrong sibling at each node, and after some depth only wrong tokens."""

    def __init__(self) -> None:
        self.answers: list[Sequence[int]] = []
        """Whole contexts that plain decoding produced."""

    def tree(self, job: DraftJob) -> TokenTree:
        draw = random.Random(len(job.context) * 7919 + int(job.context[-1]))
        builder, parent = TreeBuilder(job.context[-1]), 0
        for depth in range(min(job.limits.depth, draw.randrange(1, 6))):
            if len(builder) > job.limits.nodes - 2:
                break
            truth = self._next(job.context, depth)
            wrong = draw.randrange(3, VOCABULARY)
            tokens = [truth, wrong] if truth is not None and draw.random() < 0.8 else [wrong]
            width = 1 if job.limits.width == 1 else len(tokens)
            distinct = list(dict.fromkeys(tokens))[:width]
            parent = builder.propose_points(parent, distinct, [0.9, 0.05][: len(distinct)])[0]
        return builder.build()

    def _next(self, context: Sequence[int], depth: int) -> int | None:
        for whole in self.answers:
            if list(whole[: len(context)]) == list(context) and len(whole) > len(context) + depth:
                return whole[len(context) + depth]
        return None


@cache
def system(family: str, executor: str) -> tuple[LLM, Oracle]:
    """Return one `LLM` for all examples, whose two drafters' trees are merged, and its oracle."""
    oracle = Oracle()
    changes = {"max_position_embeddings": CONTEXT, "eos_token_id": 0}
    drafters = {name: ScriptedDrafter(oracle.tree) for name in ("first", "second")}
    if family == "llama":
        return tiny_llm(drafters, tiny_transformers(family, **changes), kv_tokens=1024), oracle
    model = (
        tiny_transformers(family, head_dim=16, **changes)
        if family in MIXTURES
        else random_model(family, **changes)
    )
    if executor == "native":
        runner = runner_of(model, executor=executor, kv_tokens=1024)
    else:
        runner = ModelRunner.wrap(model, model.config, RunnerOptions(dtype="float32", kv_tokens=1024))
    return tiny_llm(drafters, runner, kv_tokens=1024), oracle


CONSTRAINTS = [
    None,
    None,
    Constraint(ConstraintKind.REGEX, "[a-f]{3,9}"),
    Constraint(
        ConstraintKind.JSON_SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    ),
    Constraint.choice(["yes", "no", "perhaps"]),
]
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 0, 7]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32),
    max_tokens=st.integers(1, CONTEXT),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5]),
    logit_bias=st.sampled_from([{}, {}, {5: 3.0, 40: -100.0}]),
    stop=st.lists(st.sampled_from(["a", "Qz", " ", 'e"', "99"]), max_size=2),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0, 3]),
    constraint=st.sampled_from(CONSTRAINTS),
)
REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=CONTEXT - 2), PARAMS),
    min_size=1,
    max_size=4,
)


def within_context(prompt: Sequence[int], params: SamplingParams, fill: bool) -> SamplingParams:
    """Limit `max_tokens` to the room in the context; `fill`: use all of the room."""
    room = CONTEXT - len(prompt)
    return replace(params, max_tokens=room if fill else min(params.max_tokens, room))


def essence(output: CompletionOutput) -> dict[str, Any]:
    """Return the parts of an output that must be equal in all modes."""
    return {"tokens": output.token_ids, "text": output.text, "why": output.finish_reason}


def logprobs(output: CompletionOutput) -> list[float]:
    """Return the log-probabilities of the generated tokens, empty if not requested."""
    rows = output.logprobs or ()
    return [row[token].logprob for row, token in zip(rows, output.token_ids, strict=False)]


@pytest.mark.parametrize(
    ("family", "executor"),
    [
        ("llama", "torch"),
        ("qwen3_5_text", "generic"),
        pytest.param("qwen3_5_text", "native", marks=pytest.mark.native),
        pytest.param("qwen3_5_moe_text", "native", marks=pytest.mark.native),
        pytest.param("qwen2_moe", "native", marks=pytest.mark.native),
    ],
)
@given(requests=REQUESTS, fill=st.booleans())
@settings(max_examples=effort(8, 60))
def test_trees_and_chains_give_the_tokens_of_plain_decoding(
    family: str, executor: str, requests: list[tuple[list[int], SamplingParams]], fill: bool
) -> None:
    llm, oracle = system(family, executor)
    prompts = [prompt for prompt, _ in requests]
    params = [within_context(prompt, tokens, fill) for prompt, tokens in requests]
    actual, chosen = {}, {}
    for mode in ("off", "tree", "sequence"):
        outputs = llm.generate(
            prompts, [replace(tokens, speculation=mode) for tokens in params], use_tqdm=False
        )
        actual[mode] = [essence(output.outputs[0]) for output in outputs]
        chosen[mode] = [logprob for output in outputs for logprob in logprobs(output.outputs[0])]
        if mode == "off":
            oracle.answers = [[*o.prompt_token_ids, *o.outputs[0].token_ids] for o in outputs]
    assert actual["tree"] == actual["off"]
    assert actual["sequence"] == actual["off"]
    assert chosen["tree"] == pytest.approx(chosen["off"], abs=1e-3)
    assert chosen["sequence"] == pytest.approx(chosen["off"], abs=1e-3)
    for prompt, tokens, plain in zip(prompts, params, actual["off"], strict=True):
        if plain["why"] == "length":
            assert len(plain["tokens"]) == tokens.max_tokens <= CONTEXT - len(prompt)


def test_drafts_of_the_oracle_are_accepted_and_rejected() -> None:
    """Check the strength of the test above: paths of several lengths are accepted, and many nodes rejected."""
    llm, oracle = system("llama", "torch")
    plain = llm.generate(
        [[20, 30, 40]], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, speculation="off")
    )
    oracle.answers = [[20, 30, 40, *plain[0].outputs[0].token_ids]]
    tree = llm.generate([[20, 30, 40]], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert tree[0].metrics is not None
    did = tree[0].metrics.speculative_decoding
    assert did.accepted > 5
    assert did.drafted > 2 * did.accepted
    assert len([count for count in did.histogram if count]) >= 3


@pytest.mark.parametrize("proposal", [ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("temperature", [0.0, 0.02])
def test_a_chain_of_sources_gives_the_tokens_of_plain_decoding(
    proposal: ProposalKind, temperature: float
) -> None:
    """Copies draft alone in some steps, the model in others; a model that draws changes sampled text only."""
    model, draft = tiny_transformers("llama"), runner_of(tiny_transformers("llama", seed=5))
    description = DrafterDescription("tiny", VOCABULARY, max_context_len=draft.config.max_positions)
    ssm = SsmDrafter(draft, description, GrowthShape(kind=proposal))
    llm = tiny_llm({"ngram": NgramDrafter(), "ssm": ssm}, model, together=True)
    prompts = [[*range(20, 40), 9, 8, *range(20 + n, 27 + n)] for n in range(4)]
    answers, counts = {}, SpeculationCounts()
    for mode in ("off", "tree", "sequence"):
        params = SamplingParams(
            temperature=temperature, seed=3, max_tokens=40, ignore_eos=True, speculation=mode
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answers[mode] = [output.outputs[0].token_ids for output in outputs]
        for output in outputs:
            assert output.metrics is not None
            counts += output.metrics.speculative_decoding
    if proposal is ProposalKind.POINT or not temperature:
        assert answers["tree"] == answers["sequence"] == answers["off"]
    assert counts.of(0).drafts > 0, "copies"
    assert 0 < counts.of(1).drafts < counts.trees, "the model"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.native
@pytest.mark.parametrize("weights", ["auto", "bf16"])
def test_the_default_model_gives_the_same_tokens_with_trees(weights: str, default_model: object) -> None:
    """Compare answers of the default model in modes off and tree, like tests/e2e/test_default_model.py.

    Block formats are exact; in bfloat16 a near-tie may flip between passes of different sizes, so one may differ.
    """
    prompts = ["Why is the sky blue?", "def fibonacci(n):", "Once upon a time", "1, 2, 3, 4, 5, 6,"]
    with LLM(weights=weights, adaptive=False, tree_nodes=8) as llm:
        answers = {
            mode: [
                output.outputs[0].token_ids
                for output in llm.generate(
                    prompts, SamplingParams(temperature=0, max_tokens=32, speculation=mode), use_tqdm=False
                )
            ]
            for mode in ("off", "tree")
        }
    same = [plain == tree for plain, tree in zip(answers["off"], answers["tree"], strict=True)]
    assert sum(same) >= len(same) - (weights == "bf16"), answers
