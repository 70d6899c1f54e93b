"""A GGUF file is read with all metadata that affects the results, or refused by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.account import check_tensors
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.files import TensorSlice
from specinfer.model.weights.gguf_files.reader import QuickReader
from specinfer.model.weights.gguf_weights import MATRICES, GgufWeights
from tests.support.models.gguf_files import Gguf
from tests.support.tiny_models import reference_logits

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
LONG = torch.randint(3, 97, (200,), generator=torch.Generator().manual_seed(2)).tolist()
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def random_llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SHAPE | changes))).eval()


def factors_of(model: Any) -> np.ndarray:
    """Return `rope_freqs.weight` as llama.cpp's converter computes it."""
    plain = 1 / 1e4 ** (np.arange(0, 16, 2) / 16)
    return (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)


SCALINGS: dict[str, tuple[dict[str, Any], Callable[[Gguf, Any], None]]] = {
    "none": ({}, lambda file, model: None),
    "rope_freqs": (LLAMA3, lambda file, model: file.tensors.update({"rope_freqs.weight": factors_of(model)})),
    "linear": (
        LINEAR,
        lambda file, model: file.values.update({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    ),
    "scale_linear": (LINEAR, lambda file, model: file.values.update({"rope.scale_linear": 4.0})),
    "yarn": (
        YARN,
        lambda file, model: file.values.update(
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
                "rope.scaling.finetuned": True,
            }
        ),
    ),
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_positions_are_scaled_as_in_the_file(scaling: str, tmp_path: Path) -> None:
    rope, change = SCALINGS[scaling]
    model = random_llama(**({"rope_parameters": rope} if rope else {}))
    file = Gguf.of(model)
    change(file, model)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    runner = ModelRunner.build(
        from_transformers(weights.config()), weights, RunnerOptions(dtype="float32", kv_tokens=256)
    )
    (logits,) = runner.forward([Segment(runner.open(), LONG, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, LONG)[-1], rtol=1e-3, atol=1e-3)


def test_a_configuration_that_lost_the_scaling_is_refused(tmp_path: Path) -> None:
    model = random_llama(rope_parameters=LLAMA3)
    file = Gguf.of(model)
    file.tensors["rope_freqs.weight"] = factors_of(model)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    lost = from_transformers(random_llama().config)
    with pytest.raises(IncompatibleError, match=r"config\.json"):
        ModelRunner.build(lost, weights, RunnerOptions(dtype="float32", kv_tokens=256))


CHANGES: dict[str, tuple[Callable[[Gguf], object], str]] = {
    "unknown key": (
        lambda f: f.values.update({"attn_logit_softcapping": 50.0}),
        "llama.attn_logit_softcapping = 50",
    ),
    "scale": (lambda f: f.values.update({"logit_scale": 8.0}), "llama.logit_scale = 8"),
    "experts": (lambda f: f.values.update({"expert_count": 8}), "lacks the key llama.expert_used_count"),
    "long factors": (
        lambda f: f.values.update({"rope.scaling.type": "longrope"}),
        "rope.scaling.type = 'longrope'",
    ),
    "yarn without factor": (
        lambda f: f.values.update({"rope.scaling.type": "yarn"}),
        "GGUF: llama.rope.scaling.factor = None: must be above 0",
    ),
    "head": (lambda f: f.values.update({"rope.dimension_count": 8}), "rope.dimension_count = 8"),
    "vocabulary": (
        lambda f: f.values.update({"vocab_size": 90}),
        "vocab_size = 90: must be 97, the rows of token_embd.weight",
    ),
    "both scalings": (
        lambda f: (
            f.values.update({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
            f.tensors.update({"rope_freqs.weight": np.ones(8, np.float32)}),
        ),
        "rope_freqs.weight has 8 numbers, rope.scaling.type is 'linear'",
    ),
    "unknown tensor": (
        lambda f: f.tensors.update({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}),
        "tensor blk.0.attn_sinks.weight is not supported",
    ),
    "no norm": (lambda f: f.values.pop("attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon"),
    "no context": (lambda f: f.values.pop("context_length"), "context_length"),
    "adapter": (lambda f: f.others.update({"general.type": "adapter"}), "general.type = 'adapter'"),
    "architecture": (lambda f: setattr(f, "architecture", "mamba"), "GGUF architecture = 'mamba'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unsupported_files_are_refused(change: str, tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    apply, reason = CHANGES[change]
    apply(file)
    with pytest.raises(IncompatibleError, match=reason):
        GgufWeights(file.write(tmp_path / "model.gguf")).config()


def test_every_key_about_arithmetic_is_read(tmp_path: Path) -> None:
    """A missing key has a default equal to the file's value, or is named in an error."""
    whole = GgufWeights(Gguf.of(random_llama()).write(tmp_path / "model.gguf")).config().to_dict()
    for key in Gguf.of(random_llama()).values:
        file = Gguf.of(random_llama())
        file.values.pop(key)
        actual = outcome(file.write(tmp_path / "other.gguf"))
        named = "k_proj" if key == "attention.head_count_kv" else key  # without it the shapes do not fit
        assert actual == whole or named in str(actual), key


@pytest.mark.parametrize("value", [0, -1, 4_000_000_000, "x", True, 0.5, [1, 2]])
def test_a_key_with_an_impossible_value_is_named(value: Any, tmp_path: Path) -> None:
    for key, right in Gguf.of(random_llama()).values.items():
        if isinstance(right, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
            continue
        file = Gguf.of(random_llama())
        file.values[key] = value if value != -1 else "-1"
        with pytest.raises(IncompatibleError, match=re.escape(key.rpartition(".")[2])):
            GgufWeights(file.write(tmp_path / "model.gguf")).config()


NOTES: dict[str, Any] = {
    "mradermacher.quantize_version": "2",
    "mradermacher.quantized_at": "2026-01-01T00:00:00+00:00",
    "duynt.note": [1, 2],
    "qwen2.attention.head_count": 3,
    "llamas": 1,
    "notes": "mine",
    "quantize.imatrix.chunks_count": 7,
}


def test_keys_of_other_namespaces_never_refuse_a_file(tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    plain = outcome(file.write(tmp_path / "plain.gguf"))
    file.others |= NOTES
    assert outcome(file.write(tmp_path / "noted.gguf")) == plain


NEUTRAL: dict[str, list[Any]] = {
    "pooling_type": [0],
    "logit_scale": [1.0, 0.0],
    "residual_scale": [1.0],
    "embedding_scale": [1.0],
    "attention.scale": [0.0, 0.25],
    "attention.clamp_kqv": [0.0],
    "attention.max_alibi_bias": [0.0],
    "attn_logit_softcapping": [0.0],
    "final_logit_softcapping": [0.0],
    "expert_used_count": [0],
    "expert_weights_scale": [0.0, 1.0],
    "use_parallel_residual": [False],
    "rope.scaling.attn_factor": [1.0],
    "rope.scaling.type": ["none"],
    "tensor_data_layout": ["Meta AI original pth"],
    "nextn_predict_layers": [0],
}


@pytest.mark.parametrize("key", NEUTRAL)
def test_a_key_whose_value_changes_nothing_is_taken(key: str, tmp_path: Path) -> None:
    plain = outcome(Gguf.of(random_llama()).write(tmp_path / "plain.gguf"))
    assert isinstance(plain, dict)
    file = Gguf.of(random_llama())
    for value in NEUTRAL[key]:
        file.values[key] = value
        changed = outcome(file.write(tmp_path / "model.gguf"))
        assert changed == plain
    file.values[key] = "yes" if key != "tensor_data_layout" else "other"
    assert key in str(outcome(file.write(tmp_path / "model.gguf")))


def test_without_its_key_every_head_has_keys_of_its_own(tmp_path: Path) -> None:
    file = Gguf.of(random_llama(num_key_value_heads=4))
    stated = outcome(file.write(tmp_path / "stated.gguf"))
    del file.values["attention.head_count_kv"]
    assert outcome(file.write(tmp_path / "missing.gguf")) == stated
    loaded = [GgufWeights(tmp_path / f"{name}.gguf") for name in ("stated", "missing")]
    assert all(torch.equal(loaded[0][name], loaded[1][name]) for name in loaded[0])


def test_a_factor_of_0_scales_no_positions(tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    file.values |= {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}
    config = GgufWeights(file.write(tmp_path / "model.gguf")).config()
    assert config.rope_parameters["factor"] == 1.0


INFINITE, NOT_A_NUMBER = float("inf"), float("nan")
HOSTILE: list[tuple[str, Any]] = [
    *(("attention.layer_norm_rms_epsilon", value) for value in (INFINITE, NOT_A_NUMBER, -1e-5, 0.0)),
    *(("rope.freq_base", value) for value in (INFINITE, NOT_A_NUMBER, -1.0, 0.0, 1e31)),
    *(("rope.scaling.factor", value) for value in (INFINITE, -1.0, NOT_A_NUMBER)),
    *(("rope.scale_linear", value) for value in (INFINITE, -1.0)),
    *(("attention.sliding_window", value) for value in (2.5, -1, INFINITE, "x", [3, 4])),
    ("context_length", 1),
    ("attention.head_count", [4.0, 2.5]),
    ("attention.head_count_kv", 3),
    ("attention.head_count_kv", [2, -2]),
    ("rope.scaling.original_context_length", -3),
]


@pytest.mark.parametrize(("key", "value"), HOSTILE, ids=str)
def test_a_hostile_number_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    file.values[key] = value
    with pytest.raises(IncompatibleError, match=re.escape(f"llama.{key}")):
        GgufWeights(file.write(tmp_path / "model.gguf")).config()


@pytest.mark.parametrize("name", ["bos", "eos", "padding"])
@pytest.mark.parametrize("value", [-1, 97, 4_294_967_295, 1.5, "x"])
def test_an_id_outside_the_vocabulary_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    file.others[key := f"tokenizer.ggml.{name}_token_id"] = value
    with pytest.raises(IncompatibleError, match=re.escape(key)):
        GgufWeights(file.write(tmp_path / "model.gguf")).config()


@pytest.mark.parametrize("divisor", [INFINITE, NOT_A_NUMBER, 0.0, -1.0])
def test_hostile_divisors_of_positions_are_refused(divisor: float, tmp_path: Path) -> None:
    file = Gguf.of(random_llama())
    file.tensors["rope_freqs.weight"] = np.full(8, divisor, np.float32)
    with pytest.raises(IncompatibleError, match=r"rope_freqs\.weight"):
        GgufWeights(file.write(tmp_path / "model.gguf")).config()


@settings(max_examples=30)
@given(st.data())
def test_a_cut_file_states_how_many_bytes_are_missing(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = Gguf.of(random_llama()).write(tmp_path_factory.mktemp("cut") / "model.gguf")
    whole, reader = path.read_bytes(), QuickReader(path)
    end = max(tensor.data_offset + tensor.n_bytes for tensor in reader.tensors)
    missing = data.draw(st.integers(1, int(end - reader.data_offset)))
    path.write_bytes(whole[: end - missing])
    with pytest.raises(IncompatibleError, match=f"{path}: {missing} bytes are missing"):
        GgufWeights(path)


def patched(path: Path, after: bytes, skip: int, content: bytes) -> Path:
    """Overwrite bytes of a file, `skip` bytes after the first place of `after`."""
    whole = path.read_bytes()
    place = whole.index(after) + len(after) + skip
    path.write_bytes(whole[:place] + content + whole[place + len(content) :])
    return path


LARGE = (1 << 60).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("after", "skip", "content", "reason"),
    [
        (b"output_norm.weight", 4 + 8 + 4, (2**64 - 32).to_bytes(8, "little"), "bytes are missing"),
        (b"output_norm.weight", 4 + 8 + 4, (2**63).to_bytes(8, "little"), "bytes are missing"),
        (b"output_norm.weight", 4, (2**63).to_bytes(8, "little"), "bytes are missing"),
        (b"output_norm.weight", 0, b"\xff" * 4, "ends within its metadata"),
        (b"GGUF", 4, LARGE, "tensors: must be at most"),
        (b"GGUF", 12, LARGE, "keys: must be at most"),
        (b"general.tags", 8, LARGE, "'general.tags': .* entries of a list: must be at most"),
        (b"general.tags", 4, b"\x09", "'general.tags': is a list of lists"),
        (b"tokenizer.ggml.scores", 8, LARGE, "'tokenizer.ggml.scores': .* must be at most"),
        (b"tokenizer.ggml.scores", 4, b"\x09", "'tokenizer.ggml.scores': is a list of lists"),
    ],
)
def test_hostile_sizes_are_refused_before_anything_is_read(
    after: bytes, skip: int, content: bytes, reason: str, tmp_path: Path
) -> None:
    path = patched(with_vocabulary(tmp_path / "model.gguf"), after, skip, content)
    with pytest.raises(IncompatibleError, match=reason):
        GgufWeights(path)


def test_a_file_may_be_moved_while_its_weights_are_read(tmp_path: Path) -> None:
    path = Gguf.of(random_llama()).write(tmp_path / "model.gguf")
    weights = GgufWeights(path)
    expected = {name: weights[name] for name in weights}
    path.rename(tmp_path / "moved.gguf")
    path.write_bytes(b"another file")
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    _, rows = weights.some_blocks("model.embed_tokens.weight", [3, 5]) or ("", torch.empty(0))
    assert torch.equal(rows.view(torch.float32), expected["model.embed_tokens.weight"][[3, 5]])


@settings(max_examples=40)
@given(st.data())
def test_one_tensor_dropped_or_reshaped_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Either the conversion or the loading of its result refuses the file."""
    file, directory = Gguf.of(random_llama()), tmp_path_factory.mktemp("changed")
    name = data.draw(st.sampled_from(sorted(file.tensors.keys() - {"output.weight"})))
    match data.draw(st.sampled_from(["drop", "fewer rows", "fewer columns"])):
        case "drop":
            del file.tensors[name]
        case "fewer rows":
            file.tensors[name] = np.ascontiguousarray(file.tensors[name][:-1])
        case "fewer columns":
            file.tensors[name] = np.ascontiguousarray(file.tensors[name][..., :-1])
    with pytest.raises(IncompatibleError):
        account(file.write(directory / "model.gguf"))


def account(path: Path) -> None:
    """Read a whole file, and compare its tensors with its configuration."""
    weights = GgufWeights(path)
    hf = weights.config()
    check_tensors(hf, from_transformers(hf), {name: weights[name] for name in weights})


def outcome(path: Path) -> dict[str, Any] | str:
    """Return the configuration of a file, or the reason of its refusal."""
    try:
        account(path)
        return dict(GgufWeights(path).config().to_dict())
    except IncompatibleError as error:
        return str(error)


def test_parts_are_joined_or_refused(tmp_path: Path) -> None:
    model = random_llama()
    whole = Gguf.of(model)
    paths = whole.write_parts(tmp_path / "model", 3)
    joined, single = GgufWeights(paths[0]), GgufWeights(whole.write(tmp_path / "whole.gguf"))
    assert (joined.parts, single.parts) == (3, 1)
    assert joined.config().to_dict() == single.config().to_dict()
    assert set(joined) == set(single)
    assert all(torch.equal(joined[name], single[name]) for name in joined)
    with pytest.raises(IncompatibleError, match="part 2 of 3"):
        GgufWeights(paths[1])
    other = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(IncompatibleError, match=r"00002-of-00003\.gguf contains part 3 of 3"):
        GgufWeights(paths[0])
    paths[1].write_bytes(other)
    paths[2].unlink()
    with pytest.raises(IncompatibleError, match=r"put .*00003-of-00003\.gguf into the same folder"):
        GgufWeights(paths[0])


def test_bytes_that_are_no_gguf_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing of that kind" * 10)
    with pytest.raises(IncompatibleError, match="cannot read"):
        GgufWeights(tmp_path / "model.gguf")


def with_vocabulary(path: Path) -> Path:
    """Write a file with a vocabulary before, between and after other metadata."""
    file = Gguf.of(random_llama())
    words = [f"word {n} of ÿ" * (n % 3) for n in range(5000)]
    file.others = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.scores": [0.5] * 5000,
        "general.tags": ["a", "b"],
        "tokenizer.ggml.token_type": [1] * 5000,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return file.write(path)


def test_long_lists_are_read_only_on_request(tmp_path: Path) -> None:
    path = with_vocabulary(tmp_path / "model.gguf")
    ours, theirs = QuickReader(path), gguf.GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    assert sum(len(field.data) == 5000 for field in theirs.fields.values()) == 3
    assert sum(len(field.data) == 5000 for field in ours.fields.values()) == 0
    for name, field in theirs.fields.items():
        assert ours.value(name) == field.contents()
    for our_tensor, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert our_tensor.name == other.name
        assert np.array_equal(our_tensor.data, other.data)


def test_a_file_that_ends_in_its_vocabulary_is_refused(tmp_path: Path) -> None:
    path = with_vocabulary(tmp_path / "model.gguf")
    whole = path.read_bytes()
    for part in (0.1, 0.2, 0.5, 0.9):
        path.write_bytes(whole[: round(part * whole.index(b"token_embd.weight"))])
        with pytest.raises(IncompatibleError, match="cannot read"):
            GgufWeights(path)
    lengths = whole.index(b"word 1 of") - 8
    path.write_bytes(whole[:lengths] + b"\xff" * 7 + b"\x7f" + whole[lengths + 8 :])
    with pytest.raises(IncompatibleError, match="cannot read"):
        GgufWeights(path)


@pytest.mark.parametrize("kind", sorted(MATRICES))
def test_blocks_are_the_bytes_of_the_file(kind: str, tmp_path: Path) -> None:
    """Rows of queries and keys are in the order of `transformers`; parts equal those of the whole matrix."""
    model, of_kind = random_llama(hidden_size=256, intermediate_size=512), gguf.GGMLQuantizationType[kind]
    path = Gguf.of(model, of_kind).write(tmp_path / "model.gguf")
    weights, numbers = GgufWeights(path), GgufWeights(path, blocks=False)
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
        blocks = weights.blocks(name)
        assert blocks is not None
        assert blocks[0] == kind
        dequantised = torch.from_numpy(gguf.dequantize(blocks[1].numpy(), of_kind))
        assert torch.equal(dequantised, weights[name])
        assert kind != "F32" or torch.equal(weights[name], model.state_dict()[name])
        assert numbers.blocks(name) is None
        for span in (TensorSlice(0, 3, 40), TensorSlice(1, 8, 24)):
            wanted = weights[name].narrow(span.dim, span.start, span.stop - span.start)
            assert torch.equal(weights.part(name, span), wanted)
    assert weights.blocks("model.norm.weight") is None


def test_a_membership_test_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default `in` of a mapping would dequantise the tensor."""
    weights = GgufWeights(Gguf.of(random_llama()).write(tmp_path / "model.gguf"))
    monkeypatch.setattr(gguf, "dequantize", lambda *_: pytest.fail("read"))
    assert "model.norm.weight" in weights
    assert "model.norm.bias" not in weights
    assert weights.shape("lm_head.weight") == (97, 64)
