"""The gpu executor, interpreted if there is no GPU, gives the results of the torch executor in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.gpu import launch
from specinfer.model.runner import ModelRunner
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE, random_parents

SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
PROMPTS = ([5, 17, 2, 80, 33], [4, 61, 7, 9, 9, 30, 22, 1, 0, 55, 3, 3, 8, 70, 41, 12, 90, 6])


def make(executor: str, family: str = "llama", **shape: int) -> ModelRunner:
    device = DEVICE if executor == "gpu" else "cpu"
    model = tiny_transformers(family, **(SHAPE | shape))
    return runner_of(model, executor=executor, device=device, kv_tokens=512)


def segments(runner: ModelRunner, seed: int) -> list[Segment]:
    """Read two contexts; return a delta and a tree for each, and a new request."""
    rng = np.random.default_rng(seed)
    sequences = [runner.open() for _ in PROMPTS]
    runner.forward([Segment(s, prompt) for s, prompt in zip(sequences, PROMPTS, strict=True)])
    parts = [
        Segment(s, [int(rng.integers(97))], rng.integers(0, 97, n).tolist(), random_parents(rng, 0, n), True)
        for s, n in zip(sequences, (5, 2), strict=True)
    ]
    return [*parts, Segment(runner.open(), [9, 8, 7], want_last=True)]


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("opt", "gpt_neox"))],
)
def test_passes_over_trees_equal_the_torch_executor(family: str) -> None:
    """Rotary positions in all, some and no dimensions; norms of heads; layer norms; a parallel MLP."""
    actual, expected = ([*r.forward(segments(r, 1))] for r in (make("gpu", family), make("torch", family)))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


class Request:
    """A request that is decoded greedily; `tokens` are those of the answer, `known` the expected ones."""

    def __init__(self, runner: ModelRunner, prompt: Sequence[int], known: Sequence[int] = ()) -> None:
        self._runner, self._known = runner, known
        self._sequence, self._delta = runner.open(), list(prompt)
        self.tokens: list[int] = []

    def segment(self, width: int) -> Segment:
        """Return the delta and a tree with the next three known tokens, each after `width` - 1 wrong siblings.

        So accepted nodes are scattered and must be moved. Width 0: no tree.
        """
        nodes, parents, parent = list[int](), list[int](), -1
        for token in self._known[len(self.tokens) : len(self.tokens) + 3] if width else ():
            nodes += [(token + wrong) % 97 for wrong in range(width)][::-1]
            parents += [parent] * width
            parent = len(nodes) - 1
        return Segment(self._sequence, self._delta, nodes, parents, want_last=True)

    def accept(self, segment: Segment, rows: torch.Tensor) -> None:
        """Commit the target's greedy path through the tree, and append its tokens to the answer."""
        best, path, node = rows.argmax(-1).tolist(), list[int](), -1
        edges = zip(segment.parents, segment.nodes, strict=True)
        children = {edge: child for child, edge in enumerate(edges)}
        while (child := children.get((node, best[node + 1]))) is not None:
            path.append(child)
            node = child
        self._runner.cache.commit(self._sequence, path)
        self._delta = [best[node + 1]]
        self.tokens += [segment.nodes[child] for child in path] + self._delta


def decode(runner: ModelRunner, count: int, width: int = 0, known: Sequence[Sequence[int]] = ((), ())) -> Any:
    """Return the first `count` greedy tokens after each prompt, decoded in one batch, and the number of passes."""
    requests = [Request(runner, prompt, tokens) for prompt, tokens in zip(PROMPTS, known, strict=True)]
    passes = 0
    while min(len(request.tokens) for request in requests) < count:
        segments = [request.segment(width) for request in requests]
        for request, segment, rows in zip(requests, segments, runner.forward(segments), strict=True):
            request.accept(segment, rows)
        passes += 1
    return [request.tokens[:count] for request in requests], passes


def test_greedy_tokens_are_the_torch_executors_plain_as_chains_and_as_trees() -> None:
    expected, _ = decode(make("torch"), 8)
    assert expected[0] != expected[1]
    assert decode(make("gpu"), 8) == (expected, 8)
    for width in (1, 3):
        runner = make("gpu")
        assert decode(runner, 8, width, expected) == (expected, 2)
        runner.cache.check()


def test_hidden_states_are_the_torch_executors() -> None:
    runners = make("gpu"), make("torch")
    actual, expected = (r.forward_with_features(segments(r, 2), (0, 1))[1] for r in runners)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-3)


def test_a_windowed_cache_is_the_torch_executors() -> None:
    """Keys that stay are rotated when blocks are dropped."""
    rng = np.random.default_rng(5)
    texts, results = [rng.integers(0, 97, n).tolist() for n in (50, 30, 4)], []
    for name in ("gpu", "torch"):
        runner = runner_of(
            tiny_transformers("llama", **SHAPE),
            executor=name,
            device=DEVICE if name == "gpu" else "cpu",
            kv_tokens=512,
            kv_window=48,
        )
        sequence = runner.open()
        for text in texts:
            (rows,) = runner.forward([Segment(sequence, text, want_last=True)])
            runner.cache.slide(sequence, 16)
        assert sequence.evicted
        results.append(rows.cpu())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_prompt_in_the_cache_is_not_read_again(tmp_path: Path) -> None:
    """Requests share blocks of 16 tokens in memory; files of prefixes are refused."""
    rng, rows = np.random.default_rng(6), []
    text = rng.integers(0, 97, 41).tolist()
    for name in ("gpu", "torch"):
        runner = make(name)
        runner.forward([Segment(runner.open(), text[:36])])
        sequence = runner.open()
        runner.cache.share(sequence, text[:40])
        assert sequence.length == 32
        (logits,) = runner.forward([Segment(sequence, text[32:], want_last=True)])
        rows.append(logits.cpu())
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)
    with pytest.raises(
        SettingError, match=r"prefix_cache_directory = .* the gpu executor stores no prefixes"
    ):
        make("gpu").keep_prefixes(tmp_path, "", 1)


def test_without_a_gpu_the_error_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(SettingError, match="device = 'cpu':"):
        launch.check_device("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(SettingError, match=r"device = 'cuda:1': compute capability 7.5: .* needs 8.0"):
        launch.check_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: launch.MIN_CAPABILITY)
    launch.check_device("cuda:1")
