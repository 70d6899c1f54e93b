"""The verifier's engine gives the same verdicts on the gpu and torch executors, and copies few numbers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specinfer.request.sampling import GREEDY, Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.text.constraints.compiler import Compiler, compiler_of
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.tree.token_tree import distribution
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.oracle import chain
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE

V = 97
PROMPTS = ([5, 17, 2, 80, 33], [4, 61, 7], [9, 8, 7, 6])
SAMPLINGS = (GREEDY, Sampling(temperature=0.5, seed=3), Sampling(temperature=1.5, seed=4))


def engine(executor: str, compiler: Compiler | None = None) -> VerifierEngine:
    model = tiny_transformers("llama", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    device = DEVICE if executor == "gpu" else "cpu"
    runner = runner_of(model, executor=executor, device=device, kv_tokens=512)
    return VerifierEngine(runner, compiler=compiler)


def drawn_tree(root: int, tokens: list[int]) -> TokenTree:
    """Return a tree with draws of two speculators, then a point."""
    builder = TreeBuilder(root)
    q = distribution([*tokens, 50], [0.5, 0.3, 0.2])
    builder.propose_samples(0, ProposalKind.WITH_REPLACEMENT, [tokens[0], tokens[0], tokens[1]], q)
    builder.propose_samples(0, ProposalKind.WITHOUT_REPLACEMENT, [tokens[1], 50], q)
    builder.propose_points(1, [tokens[1]], [0.5])
    return builder.build()


def jobs(best: list[list[int]], **wanted: Any) -> list[VerifyJob]:
    """Return a greedy, a noise and a drawn job; each tree contains the tokens of plain decoding."""
    trees = []
    for prompt, tokens in zip(PROMPTS[:2], best, strict=False):
        builder = TreeBuilder(prompt[-1])
        (first,) = builder.propose_points(0, [tokens[0]], [0.9])
        builder.propose_points(first, [(tokens[1] + 1) % V, tokens[1]], [0.4, 0.3])
        trees.append(builder.build())
    trees.append(drawn_tree(PROMPTS[2][-1], best[2]))
    return [
        VerifyJob(str(i), 0, prompt, tree, sampling, **wanted)
        for i, (prompt, tree, sampling) in enumerate(zip(PROMPTS, trees, SAMPLINGS, strict=True))
    ]


def plain_tokens(torch_engine: VerifierEngine) -> list[list[int]]:
    """Return the first two tokens after each prompt, decoded plainly with its sampling."""
    verified = []
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        tokens: list[int] = []
        for _ in range(2):
            context = [*prompt, *tokens]
            job = VerifyJob("x", 0, context, TokenTree.root_only(context[-1]), sampling)
            (outcome,) = torch_engine.verify([job])
            tokens.append(outcome.bonus)
        verified.append(tokens)
    torch_engine.release(["x"])
    return verified


def test_verdicts_are_those_of_the_torch_executor_and_little_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_device, on_torch = engine("gpu"), engine("torch")
    best = plain_tokens(on_torch)
    expected = on_torch.verify(jobs(best))
    copied, cpu = [], torch.Tensor.cpu

    def counted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        copied.append(tensor.numel())
        return cpu(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    actual = on_device.verify(jobs(best))
    monkeypatch.undo()
    assert actual == expected
    assert [outcome.status for outcome in actual] == [EntryStatus.OK] * 3
    for outcome in actual[:2]:
        assert len(outcome.accepted) == 2, "tokens of plain decoding are accepted"
    rows = sum(len(job.tree) for job in jobs(best) if job.tree is not None)
    assert copied == [3 * rows + 3], "once per step: three numbers per node, one per token of q"
    assert on_device.passes[0][1] > 0


def test_logprobs_and_top_k_are_those_of_the_torch_executor() -> None:
    on_device, on_torch = engine("gpu"), engine("torch")
    best = plain_tokens(on_torch)
    requested = jobs(best, logprobs=True, top_logprobs=3, top_k=4)
    for actual, expected in zip(on_device.verify(requested), on_torch.verify(requested), strict=True):
        assert (actual.accepted, actual.bonus, actual.top_k) == (
            expected.accepted,
            expected.bonus,
            expected.top_k,
        )
        for row, other in zip(actual.logprobs, expected.logprobs, strict=True):
            assert row.chosen == pytest.approx(other.chosen, rel=1e-4)
            assert [token for token, _ in row.top] == [token for token, _ in other.top]
            assert [value for _, value in row.top] == pytest.approx([p for _, p in other.top], rel=1e-4)


PENALTIES: dict[str, Any] = {
    "logit_bias": ((7, 1.5), (94, -50.0)),
    "presence_penalty": 0.7,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.3,
}
LETTERS = Constraint(ConstraintKind.REGEX, "[a-f]{4}")


def decoded(
    executor: str, sampling: Sampling, constraint: Constraint | None, known: Sequence[int] = ()
) -> list[int]:
    """Return four tokens after a prompt; trees are chains of the next `known` tokens."""
    verifier = engine(executor, compiler_of(ascii_tokenizer(), V, (2,)))
    prompt, tokens, cached = PROMPTS[0], list[int](), 0
    while len(tokens) < 4:
        context = [*prompt, *tokens]
        tree = chain(context[-1], known[len(tokens) : len(tokens) + 3])
        new = {"prompt_len": len(prompt), "constraint": constraint} if not cached else {}
        (outcome,) = verifier.verify([VerifyJob("r", cached, context[cached:], tree, sampling, **new)])
        if outcome.status is not EntryStatus.EXHAUSTED:  # its mask is being computed
            assert outcome.status is EntryStatus.OK
            tokens += [*(int(tree.token_ids[node]) for node in outcome.accepted), outcome.bonus]
            cached = outcome.cached_len
    return tokens[:4]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize(("adjusted", "constraint"), [(PENALTIES, None), ({}, LETTERS)])
def test_penalties_biases_and_constraints_are_those_of_the_torch_executor(
    temperature: float, adjusted: dict[str, Any], constraint: Constraint | None
) -> None:
    sampling = Sampling(temperature=temperature, seed=7, **adjusted)
    expected = decoded("torch", sampling, constraint)
    assert expected != decoded("torch", Sampling(temperature=temperature, seed=7), None)
    assert decoded("gpu", sampling, constraint, expected) == expected


def test_an_error_in_choosing_fails_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device, on_torch = engine("gpu"), engine("torch")
    best = plain_tokens(on_torch)
    executor: Any = on_device.runner.chooser
    choose = executor.choose

    def fails(tasks: Any) -> Any:
        if any(task.sampling.seed == 3 for task in tasks):
            raise RuntimeError("no memory for this")
        return choose(tasks)

    monkeypatch.setattr(executor, "choose", fails)
    outcomes: list[Verdict] = on_device.verify(jobs(best))
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == [EntryStatus.OK, EntryStatus.ERROR, EntryStatus.OK]
    assert outcomes[1].message.startswith("the model failed: RuntimeError")
