"""Pruning by measured effect: what does nothing goes first, and what is left is a plain model that drafts."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import load_config
from specinfer.model.weights.draft_checkpoint import load_ssm
from specinfer.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from speculator_svc.training.corpus import Continuation, write_continuations
from speculator_svc.training.pruning import prune as pruning
from speculator_svc.training.pruning.effects import group_effects
from speculator_svc.training.pruning.prune import prune
from speculator_svc.training.run import InterruptionError
from speculator_svc.training.train_ssm import train_ssm
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import reference_logits, tiny_transformers

ROWS = ([5, 17, 3, 88, 41], [2, 71, 9])
DEAD_HEAD, DEAD_NEURONS = 1, [0, 3, *range(20, 34)]
"""Parts of the tiny models' two key-value heads and 56 neurons."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty continuations of different lengths. Random: a layer that changes nothing changes no token."""
    path, rng = tmp_path_factory.mktemp("corpus") / "corpus.jsonl", np.random.default_rng(0)
    made = [
        (rng.integers(3, 97, n % 5 + 2).tolist(), rng.integers(3, 97, n % 7 + 4).tolist()) for n in range(30)
    ]
    write_continuations(path, ((str(i), Continuation(tuple(p), tuple(o))) for i, (p, o) in enumerate(made)))
    return path


def save(model: Any, directory: Path) -> Path:
    """A model in bfloat16, with a tokenizer."""
    model.to(torch.bfloat16).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return directory


def cut(lines: Path, target: Path, out: Path, **size: Any) -> dict[str, Any]:
    """Prunes; returns what the result tells of it."""
    prune([lines], out, model=str(target), device="cpu", **size)
    record: dict[str, Any] = json.loads((out / "config.json").read_text())["pruned"]
    return record


def logits(directory: Path, row: list[int], **options: Any) -> torch.Tensor:
    given = {"dtype": "float32", "kv_tokens": 64, "executor": "torch"} | options
    runner = ModelRunner.load(directory, RunnerOptions(**given))
    (found,) = runner.forward([Segment(runner.open(), row, want_last=True)])
    return found[0]


def silence(layer: Any) -> None:
    """From now on the layer gives what it gets."""
    torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    torch.nn.init.zeros_(layer.mlp.down_proj.weight)


def kill_parts(model: Any) -> None:
    """From now on nobody reads a key-value head and some neurons of any layer."""
    width = model.config.head_dim * model.config.num_attention_heads // model.config.num_key_value_heads
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[:, DEAD_HEAD * width : (DEAD_HEAD + 1) * width] = 0
        layer.mlp.down_proj.weight.data[:, DEAD_NEURONS] = 0


@pytest.mark.parametrize("idle", [0, 2])
def test_a_layer_that_does_nothing_goes_first_and_one_that_matters_stays(
    idle: int, lines: Path, tmp_path: Path
) -> None:
    model = tiny_transformers("llama", num_hidden_layers=4)
    silence(model.model.layers[idle])
    target = save(model, tmp_path / "target")
    record = cut(lines, target, tmp_path / "three", layers=3)
    assert [removal["layer"] for removal in record["removed"]] == [idle]
    assert record["kl"] == pytest.approx(0, abs=1e-4)
    assert record["agreement"] == 1
    for row in ROWS:
        torch.testing.assert_close(logits(tmp_path / "three", row), logits(target, row))

    further = cut(lines, target, tmp_path / "two", layers=2)
    assert further["removed"][0]["layer"] == idle
    assert further["layers"] == sorted({0, 1, 2, 3} - {removal["layer"] for removal in further["removed"]})
    assert further["kl"] > 0.1, "the negative control: a layer that does something is missed"
    assert further["removed"][1]["kl"] == further["kl"], "what was measured is what is left"


def test_the_layer_that_goes_is_the_one_that_is_missed_least(lines: Path, tmp_path: Path) -> None:
    """Measured again without the sweep: each layer's absence in a model of its own."""
    target = save(tiny_transformers("llama", seed=4), tmp_path / "target")
    record = cut(lines, target, tmp_path / "out", layers=2)
    (removal,) = record["removed"]
    text = [json.loads(line) for line in lines.read_text().splitlines()]
    found = {}
    for absent in range(3):
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        silence(model.model.layers[absent])
        whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        found[absent] = np.mean([divergence(whole, model, row) for row in text])
    assert removal["layer"] == min(found, key=lambda layer: found[layer])
    assert len({round(value, 1) for value in found.values()}) == 3, (
        "they differ by more than text and rounding"
    )


def divergence(whole: Any, other: Any, row: dict[str, list[int]]) -> float:
    """Mean KL over the output tokens of one continuation."""
    at = slice(len(row["p"]) - 1, -1)
    p, q = (reference_logits(m, row["p"] + row["o"]).log_softmax(-1)[at] for m in (whole, other))
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("family", ["llama-untied", "qwen2", "qwen3"])
def test_heads_and_neurons_that_nobody_reads_go_and_nothing_changes(
    family: str, lines: Path, tmp_path: Path
) -> None:
    model = tiny_transformers(family, **({"head_dim": 16} if family == "qwen3" else {}))
    kill_parts(model)
    target, out = save(model, tmp_path / "target"), tmp_path / "out"
    record = cut(lines, target, out, kv_heads=1, neurons=56 - len(DEAD_NEURONS))
    assert (record["kl"], record["agreement"]) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.05))
    config = load_config(out)
    assert (config.layers, config.heads, config.kv_heads, config.intermediate_size) == (3, 2, 1, 40)
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for row in ROWS:
        expected = reference_logits(whole, row)
        torch.testing.assert_close(reference_logits(again, row), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits(out, row), expected[-1], rtol=1e-4, atol=1e-4)

    cut(lines, target, tmp_path / "less", kv_heads=1, neurons=38)
    assert (logits(tmp_path / "less", ROWS[0]) - logits(target, ROWS[0])).abs().max() > 0.01


def test_an_effect_is_the_mean_square_of_what_is_added() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(50, 12), torch.randn(7, 12)
    for width in (1, 4):
        added = [
            (inputs[:, i : i + width] @ weight[:, i : i + width].T).square().sum(-1).mean()
            for i in range(0, 12, width)
        ]
        torch.testing.assert_close(group_effects(inputs, weight, width), torch.stack(added))


def test_all_parts_together_leave_a_small_model_that_the_kernels_run(lines: Path, tmp_path: Path) -> None:
    model = tiny_transformers("llama", num_hidden_layers=4, hidden_size=64, head_dim=16)
    target, out = save(model, tmp_path / "target"), tmp_path / "out"
    record = cut(lines, target, out, layers=2, kv_heads=1, neurons=32)
    assert (len(record["layers"]), record["kv_heads"], record["neurons"]) == (2, 1, 32)
    for row in ROWS:
        native = logits(out, row, executor="native")
        torch.testing.assert_close(native, logits(out, row), rtol=1e-4, atol=1e-4)
    for weights in ("bf16", "q4_1", "q8_0"):
        drafter = drafter_of(out, dtype="bfloat16", executor="native", weights=weights)
        (tree,) = drafter.draft([DraftJob("r", ROWS[0], TreeLimits(6, 3), GREEDY)])
        assert isinstance(tree, TokenTree)
        assert len(tree) == 7


def drafter_of(directory: Path, **options: Any) -> Drafter:
    given: dict[str, Any] = {"dtype": "float32", "kv_tokens": 512} | options
    return make_drafter("ssm", DrafterOptions(model=str(directory), **given))


def test_a_pruned_model_is_a_start_for_an_ssm_of_its_shape(lines: Path, tmp_path: Path) -> None:
    target, start = save(tiny_transformers("llama"), tmp_path / "target"), tmp_path / "start"
    record = cut(lines, target, start, layers=2, kv_heads=1, neurons=40)

    def train(**options: Any) -> dict[str, Any]:
        given = {"model": str(target), "vocabulary": 40, "start": start, "device": "cpu", "overwrite": True}
        train_ssm([lines], tmp_path / "ssm", work=tmp_path / "work", **(given | {"minutes": 0} | options))
        found: dict[str, Any] = json.loads((tmp_path / "ssm/config.json").read_text())
        return found

    config = train()
    assert "--start start --layers 0,1 " in config["trained"]["command"]
    draft = load_ssm(tmp_path / "ssm", target)
    shape = (draft.config.layers, draft.config.heads, draft.config.kv_heads, draft.config.intermediate_size)
    assert shape == (2, 2, 1, 40)
    untrained = ModelRunner.build(draft.config, draft.weights, RunnerOptions(dtype="float32", kv_tokens=64))
    (found,) = untrained.forward([Segment(untrained.open(), ROWS[0], want_last=True)])
    expected = logits(start, ROWS[0])[draft.token_ids]
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    (tree,) = drafter_of(tmp_path / "ssm").draft([DraftJob("r", ROWS[0], TreeLimits(4, 2), GREEDY)])
    assert isinstance(tree, TokenTree)
    assert len(tree) == 5

    with pytest.raises(SettingError, match=r"insert = '0': the target's layers have another shape"):
        train(start=tmp_path / "ssm", insert="0")
    with pytest.raises(SettingError, match=r"insert = '0': there is no SSM in --start"):
        train(insert="0")
    with pytest.raises(SettingError, match=r"layers = '2': the model has layers 0 to 1"):
        train(layers="2")
    other = save(tiny_transformers("llama", seed=9), tmp_path / "other")
    with pytest.raises(IncompatibleError, match=r"start is no model pruned from .*other: it has other embed"):
        train(model=str(other))
    assert record["original"] == "target"


def test_bad_input_is_named_and_nothing_else_is_replaced(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, out = save(tiny_transformers("llama"), tmp_path / "target"), tmp_path / "out"
    bad = {
        "layers = 4: the model has 3": {"layers": 4},
        "layers = -1: the model has 3": {"layers": -1},
        "kv_heads = 3: the model has 2": {"kv_heads": 3},
        "neurons = 57: the model has 56": {"neurons": 57},
        "layers = 3: nothing is to go": {"layers": 3},
    }
    for message, size in bad.items():
        with pytest.raises(SettingError, match=message):
            cut(lines, target, out, **size)
    with pytest.raises(SettingError, match=r"out = '.*target': holds something that is no pruned model"):
        cut(lines, target, target, layers=2, overwrite=True)
    long = tmp_path / "long.jsonl"
    write_continuations(long, ((str(i), Continuation((5,) * 200, (5, 6, 7))) for i in range(4)))
    with pytest.raises(SettingError, match=r"corpus = .*long.jsonl': has no continuation of a short prompt"):
        cut(long, target, out, layers=2)
    opt = save(tiny_transformers("opt"), tmp_path / "opt")
    with pytest.raises(IncompatibleError, match="model_type = 'opt': only Llama and its kin are pruned"):
        cut(lines, opt, out, layers=2)
    with monkeypatch.context() as patch:
        patch.setattr(pruning, "pruned_tensors", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(InterruptionError, match="nothing was written"):
            cut(lines, target, out, layers=2)
        with pytest.raises(UnavailableError, match=r"cannot store .*config.json/out: File exists"):
            cut(lines, target, target / "config.json" / "out", layers=2)  # said before anything is measured
    assert not out.exists()

    assert len(cut(lines, target, out, layers=2)["layers"]) == 2
    with pytest.raises(SettingError, match=r"out = .*out': holds a pruned model; --overwrite replaces it"):
        cut(lines, target, out, layers=1)
    assert len(cut(lines, target, out, layers=1, overwrite=True)["layers"]) == 1
    assert not list(tmp_path.glob(".out*"))
