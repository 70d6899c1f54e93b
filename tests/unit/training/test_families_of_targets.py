"""Drafts on hidden states are trained for targets of all dense families: start, labels, training, checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.drafters.heads_layers import BlockwiseSource, tensors_of_target
from specinfer.drafters.published.eagle3 import load_eagle, save_eagle
from specinfer.hub import resolve_model
from specinfer.llm import LLM, SamplingParams
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers, load_config
from specinfer.model.weights.families import EMBEDDING, in_llama_names, open_weights
from specinfer.training.eagle_student import EagleStudent, starting_tensors, unrolled_loss
from specinfer.training.feature_students import HeadsStudent, UnrolledBatch, UnrolledRows, starting_heads
from specinfer.training.reading.drafts import active_units
from specinfer.training.reading.examples import KeptExamples, TargetHead
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.reader import read_corpus_texts
from tests.support.models.families import random_model
from tests.support.models.gguf_models import write_family
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import reference_logits, tiny_transformers
from tests.unit.model.checkpoints.test_gguf_families import FILES
from tests.unit.training.test_eagle_training import corpus_of

EXACT = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral-windowed",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "smollm3",
    "granite",
)
"""Families whose last layer is the start; those of OLMo have no norms before attention and MLP."""
DENSE = (*EXACT, "phi3-longrope", "olmo2", "olmo3")
TOKENS = [5, 17, 3, 88, 41]
"""As many tokens as the windows of the models."""
VOCABULARY = torch.arange(97)


def target_of(family: str) -> tuple[Any, ModelConfig, Any]:
    model = tiny_transformers(family)
    config = from_transformers(model.config)
    return model, config, in_llama_names(config, model.state_dict())


@torch.inference_mode()
def states_before(module: torch.nn.Module, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs [tokens, 1, hidden] of a module of the target, and the target's logits."""
    inputs: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0]))
    logits = reference_logits(model, TOKENS)
    hook.remove()
    return inputs[0][:, None], logits


def batch_of(states: torch.Tensor, steps: int = 1) -> UnrolledBatch:
    empty = torch.zeros(0)
    rows = UnrolledRows(torch.arange(len(states)), empty, empty, empty)
    return UnrolledBatch(torch.tensor([TOKENS]), states[None], (rows,) * steps)


@pytest.mark.parametrize("family", EXACT)
def test_the_start_is_the_last_layer_of_the_target(family: str) -> None:
    """From the states before its last layer the draft computes the target's logits, factors and caps included."""
    model, config, weights = target_of(family)
    student = EagleStudent(config, weights[EMBEDDING], starting_tensors(config, weights, 1, VOCABULARY))
    states, expected = states_before(model.model.layers[-1], model)
    with torch.inference_mode():
        (logits,) = student(batch_of(states))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "granite", "olmo2"])
def test_the_scale_of_embeddings_does_not_matter(family: str) -> None:
    """Gemma and Granite multiply embeddings by a factor, and OLMo's layers do not norm their inputs."""
    model, config, weights = target_of(family)
    tensors = starting_tensors(config, weights, 1, VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    noisy = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in tensors.items()
    }
    batch = batch_of(states_before(model.model.norm, model)[0])
    with torch.inference_mode():
        one, scaled, other = (
            EagleStudent(config, table, noisy)(batch)[0]
            for table in (weights[EMBEDDING], 8 * weights[EMBEDDING], weights[EMBEDDING].roll(1, 0))
        )
    torch.testing.assert_close(scaled, one, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(other, one, atol=0.1)


@pytest.mark.parametrize("family", DENSE)
def test_labels_and_heads_have_the_distribution_of_the_target(family: str) -> None:
    model, config, weights = target_of(family)
    states, expected_logits = states_before(model.model.norm, model)
    expected = expected_logits.softmax(-1)
    labels = TargetHead(config, weights, VOCABULARY, "cpu").labels(states[:, 0])
    chosen = expected.gather(-1, torch.from_numpy(labels.ids).long())
    shares = (chosen / chosen.sum(-1, keepdim=True)).numpy()
    np.testing.assert_allclose(labels.probabilities.astype(np.float32), shares, atol=2e-3)
    kind = BlockwiseSource
    trained = starting_heads(kind, 1, config, weights, VOCABULARY, 0)
    heads = HeadsStudent(config, kind, 1, trained, tensors_of_target(kind, config, weights, VOCABULARY))
    with torch.inference_mode():
        (logits,) = heads(batch_of(states))
    torch.testing.assert_close(logits.softmax(-1), expected, atol=1e-4, rtol=1e-3)


def as_file(family: str, directory: Path) -> Path:
    return write_family(family, directory, intermediate_size=96, **FILES[family])


def saved(family: str, directory: Path) -> Path:
    return save_target(directory / "target", random_model(family, intermediate_size=96, **FILES[family]))


@pytest.mark.native
@pytest.mark.parametrize("write", [as_file, saved])
@pytest.mark.parametrize(
    "family",
    [
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "phi3, longrope",
        "smollm3",
        "granite",
        "olmo2",
        "olmo3",
    ],
)
def test_a_draft_learns_is_read_back_and_does_not_change_texts(
    family: str, write: Any, tmp_path: Path
) -> None:
    model = str(write(family, tmp_path))
    target = resolve_model(model)
    config = load_config(target)
    weights, layers, token_ids = open_weights(target, config), (1, config.layers), torch.arange(3, 90)
    with LLM(model, draft="none", dtype="float32", kv_tokens=1024) as llm:
        llm.runner.keep_features(layers)
        texts = read_corpus_texts(llm.runner, corpus_of(8), kept := KeptTexts(tmp_path / "kept", "", layers))
        units = active_units(llm.runner, weights, [text.item for text in texts])
    assert len(units) == min(96, 2 * config.hidden_size)
    tensors = starting_tensors(config, weights, 2, token_ids, torch.tensor(units[::2]))
    student = EagleStudent(config, weights[EMBEDDING], tensors)
    head = TargetHead(config, weights, token_ids, "cpu")
    batch = KeptExamples(texts, head, 2, kept.places(layers)).batch(range(8))
    optimizer = torch.optim.AdamW(student.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = unrolled_loss(student, batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]

    save_eagle(tmp_path / "draft", student.tensors(), token_ids, layers, target, model, {})
    read = load_eagle(tmp_path / "draft", target).weights
    assert read.config == student.config
    rounded = {name: tensor.to(torch.bfloat16).float() for name, tensor in student.tensors().items()}
    assert read.tensors.keys() == {EMBEDDING, *rounded}
    assert all(torch.equal(read.tensors[name].float(), rounded[name]) for name in rounded)
    texts_of = {}
    for draft in (
        "none",
        f"eagle,model={tmp_path / 'draft'}",
        f"eagle,model={tmp_path / 'draft'},executor=torch",
    ):
        with LLM(model, draft=draft, dtype="float32", kv_tokens=1024, adaptive=False) as llm:
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
            outputs = llm.generate([[5, 17, 3, 88], [41, 60, 7]], params)
            texts_of[draft] = [output.outputs[0].token_ids for output in outputs]
            if draft != "none":
                assert llm.metrics["spec_decode_num_draft_tokens"] > 0
                assert llm.metrics["failed_steps"] == llm.metrics["speculator_failed_drafts[eagle]"] == 0
    assert len({str(texts) for texts in texts_of.values()}) == 1


@pytest.mark.parametrize("write", [as_file, saved])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "granite"])
def test_a_draft_in_four_bits_has_norm_and_head_of_its_target(
    family: str, write: Any, tmp_path: Path
) -> None:
    target = resolve_model(str(write(family, tmp_path)))
    config, token_ids = load_config(target), torch.arange(3, 90)
    weights = open_weights(target, config)
    tensors = starting_tensors(config, weights, 1, token_ids)
    save_eagle(tmp_path / "draft", tensors, token_ids, (config.layers,), target, "", {}, four_bits=True)
    read = load_eagle(tmp_path / "draft", target).weights.tensors
    assert torch.equal(read["model.norm.weight"].float(), tensors["model.norm.weight"].float())
    head, expected = read["lm_head.weight"].float(), tensors["lm_head.weight"].float()
    if config.logit_scale == 1:
        assert torch.equal(head, expected)
    else:  # the factor is in the rows, which are stored
        torch.testing.assert_close(head, expected, atol=0.2 * float(expected.abs().max()), rtol=0)
        assert torch.nn.functional.cosine_similarity(head, expected).min() > 0.97
