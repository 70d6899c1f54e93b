"""Published drafts: scores and draws equal those of a plain computation; unknown fields are refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.drafters.checkpoint import load_draft
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.errors import IncompatibleError, SettingError, SpecInferError
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.drawing import draft_distribution
from specinfer.model.sampling.noise import perturbed
from specinfer.request.sampling import GREEDY, Sampling, noise_key
from specinfer.tree import ProposalKind, TokenTree, TreeLimits
from tests.support.models.flat_drafts import save_flat
from tests.support.models.published import (
    DRAFTED,
    METHODS,
    VOCABULARY,
    PlainDraft,
    save_published,
    save_target,
)
from tests.support.tiny_models import tiny_transformers

CONTEXTS = {"long": [5, 17, 3, 88, 41, 60, 7, 9, 20, 33, 12], "short": [7, 3, 60]}
LAYERS = {"dflash": 2, "dspark": 2, "peagle": 3, "mtp": 1, "flat": 2}
DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {method: (method, {}) for method in METHODS} | {
    "narrow": ("peagle", {"layers": {"sliding_window": 2}}),
    "gated": ("dspark", {"markov_head_type": "gated"}),
    "rnn": ("dspark", {"markov_head_type": "rnn"}),
    "rnn-masks": ("dspark", {"markov_head_type": "rnn", "sample_from_anchor": False}),
    "anchor": ("dflash", {"sample_from_anchor": True}),
    "windows-see-all": ("dflash", {"sliding_window_non_causal": True}),
    **{f"flat-{causal}": ("flat", {"causal": causal}) for causal in (True, False, None)},
}
"""Name of a checkpoint -> (method, changed fields of its configuration)."""
OPTIONS = {"dtype": "float32", "kv_tokens": 256, "min_path_probability": 0.0}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module", params=DRAFTS)
def draft(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a checkpoint of each kind in `DRAFTS`; return its directory."""
    method, fields = DRAFTS[request.param]
    directory = tmp_path_factory.mktemp(request.param) / method
    if method == "flat":
        return save_flat(directory, **fields)
    return save_published(directory, method, target, **fields)


def drafter_of(directory: Path, target: Path, **options: Any) -> Drafter:
    method = json.loads((directory / "config.json").read_text()).get("speculators_model_type", "dflash")
    options = {"model": str(directory), "target": str(target), **OPTIONS, **options}
    return make_drafter(method, DrafterOptions(**options))


def states_of(name: str, method: str) -> torch.Tensor:
    shape = (len(CONTEXTS[name]) - 1, LAYERS[method], 32)
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name))).to(torch.bfloat16)


def entry_of(
    name: str, method: str, start: int, stop: int, limits: TreeLimits, sampling: Sampling
) -> DraftEntry:
    """Return an entry with the tokens `start` to `stop` of a context and their hidden states."""
    first, last = max(start - 1, 0), stop - 1
    states = states_of(name, method)[first:last].view(torch.int16).numpy().tobytes()
    delta = CONTEXTS[name][start:stop]
    return DraftEntry(
        name, start, delta, limits, sampling, draw_seed=11, features=states, features_start=first
    )


def trees_of(
    directory: Path, target: Path, limits: TreeLimits, sampling: Sampling = GREEDY, **options: Any
) -> dict[str, TokenTree]:
    """Return the trees after both contexts, drafted in one batch; the longer context was sent in three parts."""
    method = directory.name
    engine = SpeculatorEngine([drafter_of(directory, target, **options)])
    whole = len(CONTEXTS["long"])
    engine.draft([entry_of("long", method, 0, 6, limits, sampling)])
    engine.draft([entry_of("long", method, 6, 7, TreeLimits(0, 0), sampling)])
    outcomes = engine.draft(
        [
            entry_of("long", method, 7, whole, limits, sampling),
            entry_of("short", method, 0, 3, limits, sampling),
        ]
    )
    trees = {}
    for outcome in outcomes:
        ((_, tree),) = outcome.drafts
        assert isinstance(tree, TokenTree)
        trees[outcome.request_id] = tree
    return trees


def path_to(tree: TokenTree, node: int) -> list[int]:
    path = []
    while node:
        path.append(int(tree.token_ids[node]))
        node = int(tree.parents[node])
    return path[::-1]


def ids_of(method: str) -> list[int]:
    return list(range(VOCABULARY)) if method in ("mtp", "flat") else DRAFTED


def test_scores_of_a_tree_are_the_plain_probabilities(draft: Path, target: Path) -> None:
    plain, ids = PlainDraft.load(draft, target), ids_of(draft.name)
    for name, tree in trees_of(draft, target, TreeLimits(12, 4)).items():
        depths = [len(path_to(tree, node)) for node in range(len(tree))]
        assert len(tree) == 13
        assert max(depths) >= 2, "it is a tree of more than one level"
        assert len(set(depths)) < len(depths), "and no chain"
        for node in range(1, len(tree)):
            *above, token = path_to(tree, node)
            row = plain.logits(CONTEXTS[name], states_of(name, draft.name), above)
            wanted = float((row / 0.75).softmax(-1)[ids.index(token)])
            assert tree.scores[node] == pytest.approx(wanted, abs=1e-5)


def test_a_chain_is_the_plain_greedy_one_and_as_long_as_there_are_guesses(draft: Path, target: Path) -> None:
    plain, ids = PlainDraft.load(draft, target), ids_of(draft.name)
    guesses = {"peagle": 5, "mtp": 6}.get(draft.name, 4 + plain.config.get("sample_from_anchor", 0))
    for name, tree in trees_of(draft, target, TreeLimits(6, 6, 1)).items():
        chain = tree.token_ids[1:].tolist()
        assert len(chain) == guesses
        for depth, token in enumerate(chain):
            row = plain.logits(CONTEXTS[name], states_of(name, draft.name), chain[:depth])
            assert token == ids[int(row.argmax())]


def test_points_for_sampled_requests_are_chosen_by_the_noise_of_their_positions(
    draft: Path, target: Path
) -> None:
    plain, ids = PlainDraft.load(draft, target), np.array(ids_of(draft.name))
    sampling = Sampling(temperature=1.0, seed=9)
    for name, tree in trees_of(draft, target, TreeLimits(4, 4, 1), sampling).items():
        chain = tree.token_ids[1:].tolist()
        for depth, token in enumerate(chain):
            row = plain.logits(CONTEXTS[name], states_of(name, draft.name), chain[:depth])
            noise = noise_key(sampling.seed, len(CONTEXTS[name]) + depth)
            assert token == ids[perturbed(probabilities(row, sampling), ids, noise).argmax()]


@pytest.mark.parametrize("proposal", ["with_replacement", "without_replacement"])
def test_draws_come_with_the_distribution_that_they_were_drawn_from(
    draft: Path, target: Path, proposal: str
) -> None:
    plain, ids = PlainDraft.load(draft, target), np.array(ids_of(draft.name))
    sampling, deep = Sampling(temperature=0.9, seed=3), 0
    for name, tree in trees_of(draft, target, TreeLimits(12, 4), sampling, proposal=proposal).items():
        for drawn in tree.proposals:
            assert drawn.kind is ProposalKind[proposal.upper()]
            above = path_to(tree, drawn.parent)
            deep += bool(above)
            row = plain.logits(CONTEXTS[name], states_of(name, draft.name), above)
            places, q = draft_distribution(row, sampling, 32)
            wanted = dict(zip(ids[places].tolist(), q.tolist(), strict=True))
            probabilities = dict(zip(drawn.q_token_ids.tolist(), drawn.q_probabilities.tolist(), strict=True))
            assert probabilities == pytest.approx(wanted, abs=1e-5)
    assert deep, "there are draws below draws"
    assert drafter_of(draft, target, proposal=proposal).description.draws


def test_a_drafter_describes_the_hidden_states_that_it_reads(draft: Path, target: Path) -> None:
    description = drafter_of(draft, target).description
    layers = {"peagle": (0, 2, 3), "mtp": (3,), "flat": (1, 2)}.get(draft.name, (1, 3))
    assert (description.feature_layers, description.feature_size) == (layers, 32)
    assert not description.draws
    with pytest.raises(SettingError, match="executor"):
        drafter_of(draft, target, executor="native")
    with pytest.raises(SettingError, match="weights"):
        drafter_of(draft, target, weights="q8_0")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dflash", {"crystal": 1}, "crystal = 1:"),
    ("mtp", {"block_size": 4}, "block_size = 4:"),
    ("dflash", {"mask_token_id": None}, "mask_token_id = None:"),
    ("dflash", {"mask_token_id": 97}, "mask_token_id = 97:"),
    ("dflash", {"block_size": 1}, "block_size = 1: "),
    ("dflash", {"aux_hidden_state_layer_ids": [1, 4]}, r"aux_hidden_state_layer_ids = \[1, 4\]: "),
    ("dflash", {"aux_hidden_state_layer_ids": [1, 1]}, r"aux_hidden_state_layer_ids = \[1, 1\]: "),
    ("dflash", {"target_hidden_size": 64}, "target_hidden_size = 64:"),
    ("dflash", {"sample_from_anchor": 2}, "sample_from_anchor = 2:"),
    ("dflash", {"draft_vocab_size": 41}, "draft_vocab_size = 41|lm_head.weight has shape"),
    ("dflash", {"tie_word_embeddings": True}, "tie_word_embeddings = True"),
    ("dspark", {"markov_head_type": "lstm"}, "markov_head_type = 'lstm':"),
    ("dspark", {"markov_rank": 7}, r"weight has shape \[1, 38\]: config.json implies \[1, 39\]"),
    ("peagle", {"norm_output": True}, "norm_output = True:"),
    ("peagle", {"norm_before_fc": True}, "fc_norm = True:"),
    ("peagle", {"fc_norm": False}, "have the tensor fc_norm.0.weight"),
    ("mtp", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers = 2:"),
]
REFUSED_LAYERS: list[tuple[str, dict[str, Any], str]] = [
    ("dflash", {"model_type": "qwen3_next"}, "model_type = 'qwen3_next':"),
    ("mtp", {"model_type": "llama"}, "model_type = 'llama': "),
    ("mtp", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, "sliding_window = 8: "),
    ("dflash", {"gate": True}, "transformer_layer_config.gate = True:"),
    ("dflash", {"vocab_size": 96}, "vocab_size = 96:"),
    ("dflash", {"hidden_size": 64}, "hidden_size = 64:"),
    ("dflash", {"layer_types": ["chunked_attention"] * 2}, "layer_types = "),
    ("dflash", {"layer_types": None}, "layer_types = None: "),
    ("dflash", {"sliding_window": None}, "sliding_window = None:"),
    ("dflash", {"hidden_act": "tanh"}, "hidden_act = 'tanh'"),
    ("dflash", {"attention_bias": True}, "weights lack layers.0.self_attn.k_proj.bias"),
    ("dflash", {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}}, "rope_parameters = "),
    ("dflash", {"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "tensor layers.1."),
]


@pytest.mark.parametrize(("method", "fields", "reason"), REFUSED)
def test_a_field_that_is_not_understood_is_refused_by_name(
    method: str, fields: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    directory = save_published(tmp_path / method, method, target, **fields)
    with pytest.raises(IncompatibleError, match=reason) as refused:
        drafter_of(directory, target)
    assert str(refused.value).startswith(f"{directory}: ")


@pytest.mark.parametrize(("method", "fields", "reason"), REFUSED_LAYERS)
def test_layers_that_are_not_understood_are_refused_by_name(
    method: str, fields: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(IncompatibleError, match=reason):
        drafter_of(save_published(tmp_path / method, method, target, layers=fields), target)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (
            ("verifier", "architectures"),
            ["LlamaForCausalLM"],
            "verifier.architectures = ",
        ),
        (("verifier", "name_or_path"), None, "name_or_path = None:"),
        (("algorithm",), "eagle3", "algorithm = 'eagle3':"),
        (("proposal_methods", 0, "accept_tolerance"), 0.1, "accept_tolerance = 0.1:"),
        (("proposal_methods", 0, "verifier_accept_k"), 2, "verifier_accept_k = 2:"),
        (
            ("proposal_methods", 0, "mood"),
            "good",
            "speculators_config.proposal_methods: mood = 'good': unknown field; known are accept_tolerance, ",
        ),
        (("proposal_methods",), [], "speculators_config.proposal_methods: speculative_tokens = None"),
        (
            ("proposal_methods",),
            None,
            "speculators_config.proposal_methods = None:",
        ),
    ],
)
def test_a_description_that_does_not_fit_is_refused_by_name(
    place: tuple[Any, ...], value: Any, reason: str, target: Path, tmp_path: Path
) -> None:
    directory = save_published(tmp_path / "dflash", "dflash", target)
    config = json.loads((directory / "config.json").read_text())
    *outer, last = place
    inner = config["speculators_config"]
    for step in outer:
        inner = inner[step]
    inner[last] = value
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(IncompatibleError, match=reason):
        drafter_of(directory, target)


def places_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a JSON value."""
    if place:
        yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in parts:
        yield from places_of(part, (*place, step))


@pytest.mark.parametrize("method", ["dspark", "flat"])
def test_any_other_value_is_read_or_refused(method: str, target: Path, tmp_path: Path) -> None:
    """A value of another type anywhere in the file is refused with an error of ours, never another exception."""
    directory = tmp_path / method
    _ = save_flat(directory, True) if method == "flat" else save_published(directory, method, target)
    written = (directory / "config.json").read_text()
    refused, places = 0, list(places_of(json.loads(written)))
    assert len(places) > 30
    for place in places:
        for value in (None, "x", -1, 1.5, [None], {"a": 1}):
            config = json.loads(written)
            inner = config
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = value
            (directory / "config.json").write_text(json.dumps(config))
            try:
                load_draft(directory, target)
            except SpecInferError:
                refused += 1
    assert refused > 3 * len(places)


def test_a_tensor_that_is_missing_or_not_called_for_is_named(target: Path, tmp_path: Path) -> None:
    directory = save_published(tmp_path / "dflash", "dflash", target)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    save_file({name: t for name, t in tensors.items() if name != "hidden_norm.weight"}, file)
    with pytest.raises(IncompatibleError, match=r"hidden_norm\.weight"):
        drafter_of(directory, target)
    save_file(tensors | {"gate.weight": torch.ones(1)}, file)
    with pytest.raises(IncompatibleError, match=r"gate\.weight"):
        drafter_of(directory, target)
    save_file(tensors | {"d2t": tensors["d2t"] * 0}, file)
    drafter_of(directory, target)
    save_file(tensors | {"d2t": tensors["d2t"] + 40}, file)
    with pytest.raises(IncompatibleError, match="d2t"):
        drafter_of(directory, target)


def test_other_algorithms_of_the_library_are_refused_by_name(target: Path, tmp_path: Path) -> None:
    directory = save_published(tmp_path / "dflash", "dflash", target)
    config = json.loads((directory / "config.json").read_text())
    for algorithm in ("dflash2", "xpress"):
        (directory / "config.json").write_text(json.dumps(config | {"speculators_model_type": algorithm}))
        with pytest.raises(
            IncompatibleError, match=f"speculators_model_type = '{algorithm}' must be one of "
        ):
            make_drafter("dflash", DrafterOptions(model=str(directory)))


def test_a_missing_target_is_named_with_the_checkpoint(target: Path, tmp_path: Path) -> None:
    directory = save_published(tmp_path / "mtp", "mtp", target)
    config = (directory / "config.json").read_text().replace(str(target), "/not/there")
    (directory / "config.json").write_text(config)
    with pytest.raises(SettingError, match=f"{directory}': is for verifier /not/there: "):
        drafter_of(directory, target)


def test_a_target_of_another_family_is_refused(tmp_path: Path) -> None:
    other = save_target(tmp_path / "target", tiny_transformers("llama"))
    with pytest.raises(SpecInferError, match="Qwen3ForCausalLM"):
        drafter_of(save_published(tmp_path / "dflash", "dflash", other), other)
