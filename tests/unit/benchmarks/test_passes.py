"""Times of passes, their sections in a report, and distances between distributions."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.passes.measure import CHUNK, Figures, section
from benchmarks.passes.mixture import RandomBlocks, expected_experts
from benchmarks.quality import Distance, distances
from benchmarks.tables import with_sections
from specinfer.model.families.experts import Experts
from specinfer.model.formats.registry import BLOCK_FORMATS
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING
from tests.support.tiny_models import tiny_transformers

ABOUT = {
    "cores": 2,
    "cpu": "a CPU",
    "command": "passes",
    "commit": "c",
    "time": "t",
    "weights": "as in the file",
}


def test_a_section_has_bandwidths_and_ratios() -> None:
    ours = Figures({1: [0.02, 0.01, 0.03], 8: [0.04]}, [100.0])
    peer = Figures({1: [0.05], 8: [0.2]}, [25.0])
    text = section("model after 4 tokens", {"ours": ours, "peer": peer}, 2_000_000_000, ABOUT)
    assert "| 1 | 20.0 (10.0..30.0) | 100.0 | 1.00 | 50.0 (50.0..50.0) | 40.0 | 1.00 | 2.50 |" in text
    assert "| 8 | 40.0 (40.0..40.0) | 50.0 | 2.00 | 200 (200..200) | 10.0 | 4.00 | 5.00 |" in text
    assert "ours 100 (100..100), peer 25.0 (25.0..25.0)" in text


def test_a_chunk_counts_as_a_prompt() -> None:
    figures = Figures()
    figures.add([1, 1, CHUNK], [0.1, 0.2, 2.0])
    assert figures.passes == {1: [0.1, 0.2]}
    assert figures.prompt_rates == [CHUNK / 2.0]


def test_a_mixture_reads_the_experts_that_its_rows_choose() -> None:
    experts = Experts(128, 8, 768, renormalised=True)
    config = replace(from_transformers(tiny_transformers("qwen3_moe").config), experts=experts)
    assert expected_experts(config, 1) == 8
    assert expected_experts(config, 2) == pytest.approx(16 - 8 * 8 / 128)


def test_random_weights_are_quantised_once_for_each_shape() -> None:
    weights = RandomBlocks({"a": (2, 32), "b": (2, 32), EMBEDDING: (2, 32), "norm": (4,)}, BLOCK_FORMATS[0])
    first, second = weights.blocks("a"), weights.blocks("b")
    assert first is not None
    assert second is not None
    assert (first[0], first[1].data_ptr()) == ("Q8_0", second[1].data_ptr())
    assert weights.blocks(EMBEDDING) is weights.blocks("norm") is None
    assert weights["norm"].tolist() == [1, 1, 1, 1]


def test_a_section_replaces_that_of_its_title() -> None:
    title = "# Title\n\nWords.\n"
    report = with_sections(title, "", {"a": "## a\n\nold\n", "b": "## b\n\nkept\n"})
    report = with_sections(title, report, {"a": "## a\n\nnew\n", "c": "## c\n\nadded\n"})
    assert report == "# Title\n\nWords.\n\n## a\n\nnew\n\n## b\n\nkept\n\n## c\n\nadded\n"


def test_distances_of_two_distributions() -> None:
    reference = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    ours = torch.tensor([[math.log(3.0), 0.0], [5.0, 3.0]])
    kl, same = distances(ours, reference)
    assert kl.tolist() == pytest.approx([0.5 * math.log(4 / 3), 0.0], abs=1e-6)
    assert same.tolist() == [True, True]
    assert Distance.of(kl, same).mean == pytest.approx(0.25 * math.log(4 / 3), abs=1e-6)
