"""Table of all drafters, each with a function that makes it for a tiny target."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specinfer.drafters import Drafter, DrafterDescription, DrafterOptions, DraftJob, make_drafter
from specinfer.drafters.eagle import EagleDrafter, EagleRunner
from specinfer.drafters.heads import BlockwiseDrafter, HeadsDrafter, HeadsRunner, MedusaDrafter
from specinfer.drafters.heads_layers import MedusaSource
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.stack import DraftWeights
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING
from specinfer.training.eagle_student import starting_tensors
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from tests.support.models.flat_drafts import save_flat
from tests.support.models.published import METHODS, save_published, save_target
from tests.support.oracle import greedy
from tests.support.system import VOCABULARY, ScriptedDrafter, ascii_tokenizer, text_of
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]
POINT = ProposalKind.POINT
HIDDEN, LAYERS, HEADS = 32, 3, 3


@dataclass(frozen=True)
class Row:
    """Drafter of the table."""

    make: Callable[[Path], Drafter]
    drafted: int
    """Minimum number of tokens that it drafts for an answer of 16 tokens."""
    draws: bool = False
    family: str = "llama"


def guesses(job: DraftJob) -> TokenTree:
    """Draft two random tokens after the root and one below, some right by chance."""
    draw, width = random.Random(sum(job.context) + len(job.context)), job.limits.width or 2
    builder = TreeBuilder(job.context[-1])
    tokens = [draw.randrange(3, VOCABULARY) for _ in range(width)]
    node = builder.propose_points(0, tokens, [0.4] * width)[0]
    if job.limits.depth > 1:
        builder.propose_points(node, [draw.randrange(3, VOCABULARY)], [0.5])
    return builder.build()


def by_name(name: str, **options: Any) -> Callable[[Path], Drafter]:
    return lambda _: make_drafter(name, DrafterOptions(**options))


def with_tokenizer(name: str, **options: Any) -> Callable[[Path], Drafter]:
    """Make a drafter from a tokenizer, and for retrieval from a text with the answer."""

    def make(path: Path) -> Drafter:
        ascii_tokenizer()._fast.save(str(path / "tokenizer.json"))
        (store := path / "texts.jsonl").write_text(json.dumps({"text": text_of(greedy(PROMPT, 16))}))
        return make_drafter(name, DrafterOptions(model=str(path), datastore=str(store), **options))

    return make


def ssm(kind: ProposalKind, family: str = "llama-untied") -> Callable[[Path], Drafter]:
    """Make an SSM: another random model, or for the family "llama" the target itself."""
    description = DrafterDescription("tiny", VOCABULARY, "", 512)
    return lambda _: SsmDrafter(runner_of(tiny_transformers(family)), description, GrowthShape(kind=kind))


def heads(kind: ProposalKind, method: type[HeadsDrafter]) -> Callable[[Path], Drafter]:

    def make(_: Path) -> Drafter:
        torch.manual_seed(1)
        shapes = {"0.linear.weight": (HIDDEN, HIDDEN), "0.linear.bias": (HIDDEN,), "1.weight": (97, HIDDEN)}
        tensors = {f"{i}.{name}": torch.randn(shape) for i in range(HEADS) for name, shape in shapes.items()}
        model, options = tiny_transformers("llama"), RunnerOptions(dtype="float32")
        source = MedusaSource(tensors, torch.arange(97), HEADS)
        runner = HeadsRunner.build(source, from_transformers(model.config), model.state_dict(), options)
        description = DrafterDescription("heads", 97, feature_layers=(LAYERS,), feature_size=HIDDEN)
        return method(runner, description, GrowthShape(kind=kind), torch.arange(97))

    return make


def eagle(kind: ProposalKind, executor: str = "torch") -> Callable[[Path], Drafter]:
    """Make an EAGLE drafter with an untrained layer."""

    def make(_: Path) -> Drafter:
        model = tiny_transformers("llama")
        config, weights = from_transformers(model.config), model.state_dict()
        draft_config = replace(config, layers=1, tied_embeddings=False)
        if executor == "native":  # the same tensors as half as many heads, of a size that the kernels know
            angles = tuple(2.0**-i for i in range(8))
            draft_config = replace(
                draft_config,
                heads=draft_config.heads // 2,
                kv_heads=draft_config.kv_heads // 2,
                head_dim=16,
                inv_freq=angles,
            )
        tensors = starting_tensors(config, weights, 2, torch.arange(97))
        runner = EagleRunner.build(
            DraftWeights(draft_config, tensors | {EMBEDDING: weights[EMBEDDING]}),
            RunnerOptions(dtype="float32", executor=executor, kv_tokens=2048),
        )
        description = DrafterDescription("eagle", 97, feature_layers=(1, 3), feature_size=HIDDEN)
        return EagleDrafter(runner, description, GrowthShape(kind=kind), torch.arange(97))

    return make


def published(method: str) -> Callable[[Path], Drafter]:
    """Make a drafter from a random checkpoint in the published layout of a method."""

    def make(path: Path) -> Drafter:
        directory = save_published(path / method, method, save_target(path / "target"))
        options = DrafterOptions(
            model=str(directory), dtype="float32", kv_tokens=2048, min_path_probability=0.0
        )
        return make_drafter(method, options)

    return make


def flat(causal: bool) -> Callable[[Path], Drafter]:
    """Make a drafter from a random DFlash or JetSpec checkpoint in `transformers`' layout."""

    def make(path: Path) -> Drafter:
        draft_options = {
            "model": str(save_flat(path / "flat", causal)),
            "target": str(save_target(path / "target")),
        }
        options = DrafterOptions(**draft_options, dtype="float32", kv_tokens=2048, min_path_probability=0.0)
        return make_drafter("dflash", options)

    return make


ROWS = {
    "guesses": Row(lambda _: ScriptedDrafter(guesses), 20),
    "ngram": Row(by_name("ngram"), 1),
    "suffix": Row(by_name("suffix", suffix_learn=True), 1),
    "retrieval": Row(with_tokenizer("retrieval"), 4),
    "recycling": Row(with_tokenizer("recycling"), 20),
    "lookahead": Row(with_tokenizer("lookahead"), 4),
    "ssm": Row(ssm(POINT), 20),
    "ssm, the target itself": Row(ssm(POINT, "llama"), 12),
    "blockwise": Row(heads(POINT, BlockwiseDrafter), 20),
    **{f"ssm, {kind.name}": Row(ssm(kind), 16, True) for kind in ProposalKind if kind != POINT},
    **{f"medusa, {kind.name}": Row(heads(kind, MedusaDrafter), 16, kind != POINT) for kind in ProposalKind},
    **{f"eagle, {kind.name}": Row(eagle(kind), 8, kind != POINT) for kind in ProposalKind},
    "eagle, native": Row(eagle(POINT, "native"), 8),
    **{method: Row(published(method), 8, family="qwen3") for method in METHODS},
    "dflash, flat": Row(flat(causal=False), 8, family="qwen3"),
    "dflash, causal": Row(flat(causal=True), 8, family="qwen3"),
}
THOROUGH = {"ssm, the target itself", "medusa, WITH_REPLACEMENT", "eagle, WITH_REPLACEMENT"}
"""Rows that other rows nearly cover; only thorough runs test them."""
