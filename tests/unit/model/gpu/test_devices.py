"""Devices of services and drafts: checked at once, the same for both, their memory shared."""

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from all_in_one.settings import ServeSettings
from specinfer.cli.options.shared import LocalFlags
from specinfer.drafters import DraftJob, pools
from specinfer.drafters.published.eagle3 import load_eagle, save_eagle
from specinfer.errors import SettingError
from specinfer.llm.options import LLMOptions
from specinfer.model import loading, memory
from specinfer.model.batch import Segment, flatten
from specinfer.model.cache.capacity import AUTO_TOKENS, SHARE, token_bytes, weight_bytes
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.gpu import executor, growth
from specinfer.model.loading import load_model
from specinfer.model.memory import PROGRAM_BYTES, fitting_cache
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers, load_config
from specinfer.model.weights.families import open_weights
from specinfer.options.model_options import CACHE_TOKENS, check_values
from specinfer.request.sampling import GREEDY
from specinfer.system.machine import free_memory
from specinfer.training.eagle_student import starting_tensors
from specinfer.tree import TreeLimits
from speculator_svc.settings import SpeculatorSettings
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE
from verifier_svc import app
from verifier_svc.resident import load_drafters_of
from verifier_svc.settings import VerifierSettings

MISSING = "cuda:99"


@pytest.mark.parametrize("settings", [VerifierSettings, SpeculatorSettings, ServeSettings])
def test_a_service_refuses_a_missing_device_with_its_settings(settings: Any) -> None:
    for device in (MISSING, "gpu", ""):
        with pytest.raises(SettingError, match=f"device = '{device}': "):
            settings.load("program", ["--device", device])


def test_the_library_and_commands_refuse_a_missing_device() -> None:
    for device in (MISSING, ""):
        with pytest.raises(SettingError, match=f"device = '{device}': "):
            LLMOptions(device=device)
    with pytest.raises(SettingError, match=f"device = '{MISSING}': "):
        check_values(LocalFlags(device=MISSING))
    check_values(LocalFlags())
    with pytest.raises(SettingError, match=f"draft: device = '{MISSING}': "):
        pools.check_speculator("draft", {"drafter": "ngram", "device": MISSING})


def test_a_resident_draft_has_the_targets_device_unless_it_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    monkeypatch.setattr(pools, "make_drafter", lambda name, options: made.append(options.device))
    monkeypatch.setattr("verifier_svc.resident.SpeculatorEngine", lambda drafters, idle_seconds: None)
    settings = VerifierSettings(model="m", device="cuda:1")
    for flags in ({}, {"device": "cuda:0"}):
        load_drafters_of(settings, {"drafter": "ssm", "model": "d", **flags})
    assert made == ["cuda:1", "cuda:0"]


@pytest.mark.usefixtures("on_gpu")
def test_a_resident_draft_grows_its_trees_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the executor's own, in one sequence; the reference growth would run a pass for each level."""
    monkeypatch.setattr(growth, "MIN_WIDTH", 8)
    monkeypatch.setattr("specinfer.model.drafting.expansion.ReferenceGrowth.grow", None)
    settings = VerifierSettings(model="m", device=DEVICE, dtype="float32")
    flags = {"drafter": "ssm", "model": str(save_target(tmp_path)), "kv-tokens": "512", "beam": "1"}
    drafter: Any = pools.load_drafters("draft", flags, settings.for_drafts("m"))["ssm"]
    assert drafter._runner.executor_name == "gpu"
    (tree,) = drafter.draft([DraftJob("r", [5, 6, 70], TreeLimits(2, 2), GREEDY)])
    assert len(tree) == 3


@pytest.mark.parametrize(("device", "threads"), [("cuda:1", 1), ("cpu", 2)])
def test_on_a_gpu_target_and_draft_are_loaded_one_after_the_other(
    device: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread may use the device while one captures a graph."""
    loading_threads: list[int] = []

    def load(*_: object) -> None:
        loading_threads.append(threading.get_ident())

    monkeypatch.setattr(app, "_tokens", lambda settings, flags: 512)
    monkeypatch.setattr(app, "load_runner", load)
    monkeypatch.setattr(app, "load_drafters_of", load)
    app.load_models(VerifierSettings(model="m", draft="none", device=device))
    assert len(set(loading_threads)) == threads


def test_memory_that_a_device_lacks_is_an_error_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nMore of it.")

    monkeypatch.setattr(executor.GpuExecutor, "__init__", allocate)
    reason = r"device = 'cpu': CUDA out of memory. Tried to allocate 3 GiB. \(--kv-tokens = 64\)$"
    with pytest.raises(SettingError, match=reason.replace("'cpu'", repr(DEVICE))):
        runner_of(tiny_transformers("llama"), executor="gpu", device=DEVICE, kv_tokens=64)


def test_kernels_run_on_the_models_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, graphs and events use the thread's current device, which may be another."""
    model = tiny_transformers("llama", num_hidden_layers=1)
    runner = runner_of(model, executor="gpu", device=DEVICE, kv_tokens=64)
    entered: list[str] = []

    def current(device: str) -> Any:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(executor, "current", current)
    own: Any = runner._executor
    segment = Segment(runner.open(), [5, 17], want_last=True)
    runner.forward([segment])
    own.logits(flatten([segment]), own.hidden(flatten([segment])))
    monkeypatch.setattr(executor, "choose", lambda tasks: [])
    own.choose([])
    own.move([1], [2])
    monkeypatch.setattr(executor.GpuGrowth, "grow", lambda *_: [])
    own.grow([], GrowthShape(), None)
    assert entered == [DEVICE] * 6


@pytest.mark.parametrize("family", ["llama", "llama-untied", "opt", "gpt_neox", "mixtral", "qwen2_moe"])
def test_the_weights_on_a_gpu_are_counted_from_the_configuration(family: str) -> None:
    """Without norms, biases and routers, which are small; in 8 bits layers take a quarter of float32."""
    model = tiny_transformers(family, hidden_size=64, head_dim=16, intermediate_size=256)
    config = from_transformers(model.config)
    names = {name: tensor.numel() for name, tensor in model.named_parameters() if tensor.ndim > 1}
    layers = sum(count for name, count in names.items() if ".layers." in name)
    assert weight_bytes(config, "float32", "auto") == pytest.approx(4 * sum(names.values()), rel=0.02)
    assert weight_bytes(config, "bfloat16", "auto") == weight_bytes(config, "float32", "auto") / 2
    saved = weight_bytes(config, "float32", "auto") - weight_bytes(config, "float32", "int8")
    assert saved == pytest.approx(3 * layers, rel=0.02)


@pytest.mark.usefixtures("on_gpu")
def test_target_and_draft_share_the_memory_of_a_gpu(tmp_path: Path) -> None:
    model, draft = (save_target(tmp_path / name, num_hidden_layers=n) for name, n in (("a", 3), ("b", 1)))
    config, small = load_config(model), load_config(draft)
    weights, token = weight_bytes(config, "bfloat16", "auto"), token_bytes(config, "bfloat16", "auto")
    of_draft = weight_bytes(small, "bfloat16", "auto")
    of_draft += CACHE_TOKENS * token_bytes(small, "bfloat16", "auto")
    options, room = RunnerOptions(device=DEVICE, kv_tokens=AUTO_TOKENS), 4000 * token
    free = weights + room
    assert fitting_cache(model, None, options, free) == room * SHARE // token
    assert fitting_cache(model, model, options, free) == room * SHARE // token, "its own layer is loaded"
    assert fitting_cache(model, draft, options, free + of_draft) == room * SHARE // token
    with pytest.raises(SettingError, match="kv_tokens = 'auto': 0 MB are left after the weights"):
        fitting_cache(model, draft, options, free)
    fixed = weights + PROGRAM_BYTES
    default = RunnerOptions(device=DEVICE)
    assert fitting_cache(model, None, default, fixed + 1000 * token) == 992
    assert fitting_cache(model, None, default, fixed + 10 * CACHE_TOKENS * token) == CACHE_TOKENS


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("four_bits", [False, True])
def test_a_trained_draft_counts_with_what_it_copies_of_its_target(four_bits: bool, tmp_path: Path) -> None:
    """It runs in torch, where no matrix is in 4 bits, and has its own embeddings, head and cache."""
    target, draft, ids = tmp_path / "target", tmp_path / "draft", torch.arange(40)
    config = load_config(save_target(target, num_hidden_layers=3))
    tensors = starting_tensors(config, open_weights(target, config), 1, ids)
    save_eagle(draft, tensors, ids, (3,), target, str(target), {}, four_bits)
    loaded = load_eagle(draft, target).weights.tensors
    needs = memory._needs(target, draft, RunnerOptions("float32", DEVICE))
    assert needs is not None
    assert needs.draft == pytest.approx(4 * sum(loaded[name].numel() for name in loaded), rel=0.02)
    assert needs.token == 4 / 3 * token_bytes(config, "float32", "auto"), "one layer more than three"


@pytest.mark.usefixtures("on_gpu")
def test_a_cache_takes_its_share_of_the_gpus_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(save_target(tmp_path))
    token = token_bytes(config, "float32", "auto")
    free = weight_bytes(config, "float32", "auto") + 800 * token
    monkeypatch.setattr("specinfer.model.loading.free_memory", {DEVICE: free}.__getitem__)
    options = RunnerOptions("float32", DEVICE, kv_tokens=AUTO_TOKENS)
    assert ModelRunner(*load_model(tmp_path, options)).cache.capacity_tokens == 608, "in whole blocks"


@pytest.mark.usefixtures("on_gpu")
def test_a_rank_reads_weights_to_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` is the first device for readers of files."""
    opened: list[str] = []

    def open_checkpoint(directory: Path, device: str) -> Any:
        opened.append(device)
        raise InterruptedError

    monkeypatch.setattr(loading, "open_checkpoint", open_checkpoint)
    options = RunnerOptions("float32", DEVICE, executor="gpu", kv_tokens=64)
    with pytest.raises(InterruptedError):
        load_model(save_target(tmp_path), options, SimpleNamespace(device="cuda:1"))  # type: ignore[arg-type]
    assert opened == ["cuda:1"]


def test_ranks_need_a_number_of_tokens_on_gpus() -> None:
    with pytest.raises(SettingError, match="kv_tokens = 'auto': needs a number for ranks"):
        loading._check_shared(RunnerOptions(executor="torch", kv_tokens=AUTO_TOKENS))


def test_the_free_memory_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes count: a verifier and speculator services share a device."""
    asked: list[str] = []

    def mem_get_info(device: str) -> tuple[int, int]:
        asked.append(device)
        return 7_000, 9_000

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert free_memory("cuda:1") == 7_000
    assert free_memory("cpu") > 1 << 20
    assert asked == ["cuda:1"]
