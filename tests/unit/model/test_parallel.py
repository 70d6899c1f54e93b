"""Division of a model among ranks: layouts, parts of weights, micro-batches, memory. No processes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from specinfer.errors import SettingError
from specinfer.model.batch import AttentionRows, Batch, PassFeatures
from specinfer.model.parallel.layout import Layout, Place, ShardedWeights, check_layout
from specinfer.model.parallel.stage import StageCost, cut, micro_batches, stage_features
from specinfer.model.torch.transformer import Transformer
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import in_llama_names
from specinfer.model.weights.files import SafetensorsWeights, TensorSlice, read_part
from tests.support.tiny_models import tiny_transformers

LLAMA = from_transformers(tiny_transformers("llama", vocab_size=96).config)
FAMILIES = ("llama", "llama-untied", "qwen2", "qwen3", "opt", "gpt_neox")


@pytest.mark.parametrize(
    ("layout", "field", "reason"),
    [
        (Layout(3, 1), "tensor_parallel = 3", "4 attention heads"),
        (Layout(1, 4), "pipeline_parallel = 4", "to 3, the model"),
        (Layout(1, 0), "pipeline_parallel = 0", "to 3, the model"),
    ],
)
def test_what_cannot_be_divided_is_named(layout: Layout, field: str, reason: str) -> None:
    with pytest.raises(SettingError, match=f"{field}: .*{reason}"):
        check_layout(LLAMA, layout)


def test_vocabulary_and_key_value_heads_are_checked_too() -> None:
    with pytest.raises(SettingError, match="97 tokens in the vocabulary"):
        check_layout(replace(LLAMA, vocab_size=97), Layout(2))
    with pytest.raises(SettingError, match="3 key-value heads, or be a multiple"):
        check_layout(replace(LLAMA, heads=12, kv_heads=3), Layout(2))
    check_layout(replace(LLAMA, heads=12, kv_heads=3, intermediate_size=60), Layout(6))
    check_layout(LLAMA, Layout(4, 3))


def test_ranks_have_every_layer_and_every_head() -> None:
    layout = Layout(2, 2)
    places = [Place(layout, rank) for rank in range(4)]
    assert [(place.stage, place.tensor) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [list(place.layers(5)) for place in places[::2]] == [[0, 1, 2], [3, 4]]
    assert [list(place.share(4)) for place in places[:2]] == [[0, 1], [2, 3]]
    four = [Place(Layout(4), rank) for rank in range(4)]
    assert [list(place.share(2)) for place in four] == [[0], [0], [1], [1]], "repeated, with their queries"


class RecordingWeights(Mapping[str, torch.Tensor]):
    """Weights that record the tensors that are read whole."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self.whole: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.whole.append(name)
        return self._weights[name]

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        return self._weights[name].narrow(span.dim, span.start, span.stop - span.start)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def test_a_rank_reads_no_matrix_whole() -> None:
    recording = RecordingWeights(tiny_transformers("llama-biased", vocab_size=96).state_dict())
    shard = ShardedWeights(LLAMA, recording, Place(Layout(2, 3), 2))
    assert {name: shard[name] for name in shard}
    assert recording.whole
    assert all("norm" in name or name.endswith("o_proj.bias") for name in recording.whole), recording.whole
    assert all(".1." in name or name == "model.norm.weight" for name in recording.whole), (
        "other layers' weights"
    )


def test_shards_put_together_are_the_model() -> None:
    weights = tiny_transformers("llama-biased", vocab_size=96).state_dict()
    halves = [ShardedWeights(LLAMA, weights, Place(Layout(2), rank)) for rank in range(2)]
    for name in halves[0]:
        a, b = (half[name] for half in halves)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            assert torch.equal(torch.cat([a, b], 1), weights[name])
        elif name.endswith("o_proj.bias"):
            assert torch.equal(a + b, weights[name])
        elif "norm" in name:
            assert torch.equal(a, b)
        else:
            assert torch.equal(torch.cat([a, b]), weights[name]), name


def test_parts_of_a_file_are_parts_of_its_tensors(tmp_path: Path) -> None:
    tensor = torch.arange(24.0).view(4, 6)
    save_file({"x": tensor}, tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path)
    for span in (TensorSlice(0, 1, 3), TensorSlice(1, 2, 6), TensorSlice(0, 0, 0)):
        assert torch.equal(read_part(weights, "x", span), read_part({"x": tensor}, "x", span))


def test_micro_batches_pay_where_tokens_cost() -> None:
    assert micro_batches(64, 1, StageCost(0.0, 1.0)) == 1, "no stage waits"
    assert micro_batches(64, 4, StageCost(1.0, 0.0)) == 1, "weights would be read again and again"
    assert micro_batches(64, 4, StageCost(0.0, 1.0)) == 16
    assert micro_batches(2, 4, StageCost(0.0, 1.0)) == 2
    between = StageCost.through((1, 1.1), (64, 7.4))
    assert between.seconds(11) == pytest.approx(2.1)
    m = micro_batches(64, 2, between)
    assert m == min(range(1, 9), key=lambda n: (n + 1) * (1.0 + 0.1 * 64 / n))
    assert 1 < m < 8


def test_a_cut_pass_is_the_same_pass() -> None:
    rows = [
        AttentionRows(0, 3, 5, [0], [3, 4, 5], [[], [], []]),
        AttentionRows(3, 7, 9, [2], [5, 5, 5, 6], [[6], [7], [6, 8], []]),
    ]
    states = np.zeros((7, 1, 2), np.float32)
    batch = Batch(
        [*range(10, 17)], [*range(7)], [*range(20, 27)], rows, [2, 3, 5, 6], [], PassFeatures((1,), states)
    )
    pieces = cut(batch, 3)
    assert [piece.token_ids for piece in pieces] == [[10, 11], [12, 13], [14, 15, 16]]
    assert [piece.logit_rows for piece in pieces] == [[], [0, 1], [1, 2]]
    assert [[(r.start, r.stop, r.visible, r.extra) for r in piece.rows] for piece in pieces] == [
        [(0, 2, [3, 4], [[], []])],
        [(0, 1, [5], [[]]), (1, 2, [5], [[6]])],
        [(0, 3, [5, 5, 6], [[7], [6, 8], []])],
    ]
    for number, piece in enumerate(pieces):
        assert piece.features is not None
        piece.features.states[:] = number
    assert states[:, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert len(cut(batch, 99)) == 7


def test_every_hidden_state_has_one_stage() -> None:
    asked = (0, 2, 3, 5)
    stages = [stage_features(asked, range(3), False), stage_features(asked, range(3, 5), True)]
    assert stages == [[0, 2], [3, 5]]


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_load_their_share_of_the_memory(family: str) -> None:
    """Norms, biases of outputs and tables of positions are at each rank."""
    model = tiny_transformers(family, vocab_size=96)
    config = from_transformers(model.config)
    weights = in_llama_names(config, {name: t.detach() for name, t in model.state_dict().items()})

    def loaded(layout: Layout, dtype: torch.dtype = torch.float32) -> list[int]:
        places = [Place(layout, rank) for rank in range(layout.ranks)]
        return [
            Transformer(place.of(config), ShardedWeights(config, weights, place), dtype).weight_bytes
            for place in places
        ]

    (alone,) = loaded(Layout())
    tables = 8 * config.max_positions * (config.rotary_dim or config.hidden_size / 2)
    for rank in loaded(Layout(2)):
        assert (alone - tables) / 2 <= rank - tables < 0.6 * (alone - tables)
    assert sum(loaded(Layout(2, 2))) < 1.2 * (alone + 3 * tables)
    assert Place(Layout(2), 0).of(config).kv_heads * 2 == config.kv_heads
    assert all(loaded(Layout(1, 3), torch.bfloat16)), "oneDNN cannot pack a matrix without rows"
