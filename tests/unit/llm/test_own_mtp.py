"""MTP layers in a model's own checkpoint: guesses equal those of transformers' layer, and texts do not change."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from specinfer.cli.local.options import LocalOptions
from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.draft import draft_group
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.errors import IncompatibleError, SettingError
from specinfer.hub import resolve_model
from specinfer.llm import LLM, SamplingParams
from specinfer.options.model_options import PassOptions
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from tests.support.models.families import random_model
from tests.support.models.gguf_files import Gguf
from tests.support.models.saved_model import save_target
from tests.unit.model.checkpoints.test_gguf_tokenizer import bytewise

CONTEXT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33, 12]
NORMS = {"nextn.enorm": "pre_fc_norm_embedding", "nextn.hnorm": "pre_fc_norm_hidden"}


class Mtp(NamedTuple):
    """A target, its MTP layer and final norm as a model of one layer, and the weights that join both."""

    model: Any
    layer: Any
    joins: dict[str, torch.Tensor]
    place: Path

    def guesses(self, count: int) -> tuple[list[int], torch.Tensor]:
        """Return a greedy chain after the context, and the target's states before its final norm."""
        logits: list[torch.Tensor] = []
        hook = self.model.model.norm.register_forward_hook(lambda _, inputs, out: logits.append(inputs[0][0]))
        with torch.inference_mode():
            self.model(torch.tensor([CONTEXT]))
            hook.remove()
            states = logits[0][:-1].to(torch.bfloat16)
            hidden, tokens = self.model.model.norm(states.float()), CONTEXT[1:]
            for _ in range(count):
                outs = self._outs(tokens, hidden)
                tokens = [*tokens, int(self.model.lm_head(outs[-1]).argmax())]
                hidden = torch.cat([hidden, outs[-1:]])
        return tokens[-count:], states[:, None]

    def _outs(self, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        embedded = self.model.model.embed_tokens(torch.tensor(tokens))
        both = [self._normed(embedded, "pre_fc_norm_embedding"), self._normed(hidden, "pre_fc_norm_hidden")]
        x = F.linear(torch.cat(both, -1), self.joins["fc"])
        outs: torch.Tensor = self.layer.model(inputs_embeds=x[None]).last_hidden_state[0]
        return outs

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], 1 + self.joins[name], self.model.config.rms_norm_eps)


def made(family: str, **changes: Any) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    model = random_model(family, **changes)
    layer = random_model(
        family, 1, num_hidden_layers=1, layer_types=["full_attention"], mlp_only_layers=[], **changes
    )
    generator, size = torch.Generator().manual_seed(5), model.config.hidden_size
    joins = {name: 0.3 * torch.randn(size, generator=generator) for name in NORMS.values()}
    return model, layer, joins | {"fc": 0.3 * torch.randn(size, 2 * size, generator=generator)}


def gguf_file(family: str, path: Path, **values: Any) -> Mtp:
    metadata = bytewise()
    model, layer, joins = made(family, vocab_size=len(metadata["tokenizer.ggml.tokens"]))
    file, block, last = Gguf.of(model), Gguf.of(layer), model.config.num_hidden_layers
    file.others |= metadata
    file.values |= {"block_count": last + 1, "nextn_predict_layers": 1} | values
    for name, tensor in block.tensors.items():
        if name.startswith("blk.0."):
            file.tensors[name.replace("blk.0.", f"blk.{last}.")] = tensor
    for stored, name in NORMS.items():
        file.tensors[f"blk.{last}.{stored}.weight"] = (1 + joins[name]).numpy()
    file.tensors[f"blk.{last}.nextn.eh_proj.weight"] = joins["fc"].numpy()
    file.tensors[f"blk.{last}.nextn.shared_head_norm.weight"] = block.tensors["output_norm.weight"]
    return Mtp(model, layer, joins, file.write(path))


def checkpoint(family: str, directory: Path) -> Mtp:
    model, layer, joins = made(family)
    save_target(directory, model)
    tensors = {
        name.replace("model.", "mtp.", 1): tensor.contiguous()
        for name, tensor in layer.state_dict().items()
        if name.startswith(("model.layers.", "model.norm."))
    }
    tensors |= {f"mtp.{name}.weight": tensor for name, tensor in joins.items()}
    save_file(load_file(directory / "model.safetensors") | tensors, directory / "model.safetensors")
    return Mtp(model, layer, joins, directory)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.hub.gguf.cache_directory", lambda: tmp_path / "cache")


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("qwen3_5_text", gguf_file),
        ("qwen3_5_moe_text", gguf_file),
        ("qwen3_next", gguf_file),
        ("qwen3_5_text", checkpoint),
        ("qwen3_next", checkpoint),
    ],
)
def test_guesses_are_those_of_the_layer_in_transformers(family: str, make: Any, tmp_path: Path) -> None:
    mtp = make(family, tmp_path / ("model.gguf" if make is gguf_file else "model"))
    chain, states = mtp.guesses(3)
    options = {"dtype": "float32", "kv_tokens": 256, "min_path_probability": 0.0}
    drafter = make_drafter("mtp", DrafterOptions(model=str(mtp.place), target=str(mtp.place), **options))  # type: ignore[arg-type]
    assert drafter.description.feature_layers == (4,)
    features = states.view(torch.int16).numpy().tobytes()
    entry = DraftEntry("a", 0, CONTEXT, TreeLimits(3, 3, 1), GREEDY, features=features, features_start=0)
    (outcome,) = SpeculatorEngine([drafter]).draft([entry])
    ((_, tree),) = outcome.drafts
    assert isinstance(tree, TokenTree)
    assert tree.token_ids[1:].tolist() == chain


@pytest.mark.native
def test_a_file_drafts_for_itself_and_no_text_changes(tmp_path: Path) -> None:
    path = str(gguf_file("qwen3_5_text", tmp_path / "model.gguf").place)
    wanted = {"drafter": "ngram+mtp", "model": path}
    assert draft_group(path) == draft_group(path, path) == wanted
    prompts = [[*range(start, start + 9)] for start in (3, 20)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers = []
    for draft in ("none", "auto", "mtp"):
        with LLM(path, dtype="float32", draft=draft, kv_tokens=2048, adaptive=False, tree_nodes=8) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        answers.append([output.outputs[0].token_ids for output in outputs])
        drafted = [output.metrics.speculative_decoding.drafted for output in outputs if output.metrics]
        assert (sum(drafted) > 0) == (draft != "none")
    assert answers[0] == answers[1] == answers[2]


def test_auto_does_not_use_it_if_the_target_returns_no_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(checkpoint("qwen3_5_text", tmp_path / "model").place)
    caplog.set_level("INFO")
    assert draft_group(path, target=PassOptions(executor="generic")) == {"drafter": "ngram"}
    (line,) = caplog.messages
    assert line.startswith(f"draft of {path}: the model's own MTP layer is not used")
    assert LocalOptions(path, verifier={"executor": "generic"}).hosted == {"drafter": "ngram"}
    assert LocalOptions(path).hosted == {"drafter": "ngram+mtp", "model": path}
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for dtype, device in (("float16", "cpu"), ("bfloat16", "cuda")):  # the kernels support neither
        assert draft_group(path, target=PassOptions(dtype, device)) == {"drafter": "ngram"}
        assert LocalOptions(path, dtype=dtype, device=device).hosted == {"drafter": "ngram"}
    with pytest.raises(SettingError, match="dtype = 'int4'"):
        draft_group(path, target=PassOptions("int4"))
    monkeypatch.setattr("specinfer.model.probe.load.planned_executor", lambda *args: None)
    assert draft_group(path) == {"drafter": "ngram"}


def test_the_generic_executor_drafts_with_ngrams_and_refuses_a_named_layer(tmp_path: Path) -> None:
    path = str(gguf_file("qwen3_5_text", tmp_path / "model.gguf").place)
    options: dict[str, Any] = {"dtype": "float32", "executor": "generic", "kv_tokens": 2048, "tree_nodes": 8}
    with LLM(path, **options) as llm:
        (output,) = llm.generate([CONTEXT], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert output.outputs[0].token_ids
    with pytest.raises(SettingError, match="generic executor"):
        LLM(path, draft="mtp", **options)


def test_a_model_without_such_a_layer_is_refused(tmp_path: Path) -> None:
    file = Gguf.of(random_model("qwen3_5_text", vocab_size=len(bytewise()["tokenizer.ggml.tokens"])))
    file.others |= bytewise()
    path = str(file.write(tmp_path / "plain.gguf"))
    with pytest.raises(SettingError, match="draft = "):
        draft_group(path, path)
    assert draft_group(path) == {"drafter": "ngram"}
    with pytest.raises(SettingError, match="model = "):
        make_drafter("mtp", DrafterOptions(model=path, target=path))


def test_it_drafts_for_its_own_model_only(tmp_path: Path) -> None:
    path = str(gguf_file("qwen3_5_text", tmp_path / "model.gguf").place)
    other = str(checkpoint("qwen3_5_text", tmp_path / "other").place)
    with pytest.raises(SettingError, match="draft for itself"):
        make_drafter("mtp", DrafterOptions(model=path, target=other))


def test_a_tensor_that_is_not_known_is_named(tmp_path: Path) -> None:
    directory = checkpoint("qwen3_5_text", tmp_path / "model").place
    weights = load_file(directory / "model.safetensors")
    save_file(weights | {"mtp.embed_tokens.weight": torch.ones(2, 2)}, directory / "model.safetensors")
    assert resolve_model(str(directory)) == directory
    with pytest.raises(IncompatibleError, match=r"mtp\.embed_tokens\.weight"):
        make_drafter("mtp", DrafterOptions(model=str(directory)))
