"""Offloaded layers: the same bits as without offloading, and layers in the right order."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.batch import Segment
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.offload.stores import PAGE, DiskStore, HostStore, LayerStore, open_store
from specinfer.model.offload.stream import DeviceBuffer, HostBuffer, LayerStream
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.torch.executor import TorchExecutor
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY
from specinfer.tree import TreeLimits
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.native.test_passes import random_segments
from verifier_svc.__main__ import load_runner
from verifier_svc.settings import VerifierSettings

SHAPE = {"head_dim": 32, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6}


@pytest.fixture
def on_disk(tmp_path: Path) -> dict[str, str]:
    return {"offload": "disk", "offload_directory": str(tmp_path)}


def passes_of(runner: ModelRunner) -> list[torch.Tensor]:
    """Return logits of random trees, and of single tokens after accepted paths, of several requests."""
    passes = []
    for seed in (0, 1):
        segments = random_segments(runner, seed, 4)
        passes += runner.forward(segments)
        for segment in segments:
            runner.cache.commit(segment.sequence, [0] if segment.nodes else [])
        passes += runner.forward([Segment(s.sequence, [5], want_last=True) for s in segments])
    return passes


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(f, "float32") for f in ("llama-biased", "qwen3", "opt", "gpt_neox")] + [("llama", "bfloat16")],
)
def test_torch_gives_the_same_bits(family: str, dtype: str, on_disk: dict[str, str]) -> None:
    model = tiny_transformers(family, **SHAPE)
    whole, offloaded = (
        runner_of(model, kv_tokens=8192, dtype=dtype, executor="torch", **options)
        for options in ({}, on_disk)
    )
    for a, b in zip(passes_of(offloaded), passes_of(whole), strict=True):
        assert torch.equal(a, b)


@pytest.mark.native
@pytest.mark.parametrize("layers", [1, 2, 3])  # fewer than buffers, as many, and a number they do not divide
@pytest.mark.parametrize("weights", ["bf16", "q8_0", "q4_1"])
def test_the_kernels_give_the_same_bits(weights: str, layers: int, on_disk: dict[str, str]) -> None:
    model = tiny_transformers("llama", **SHAPE, num_hidden_layers=layers)
    options: dict[str, Any] = {
        "kv_tokens": 8192,
        "dtype": "bfloat16",
        "executor": "native",
        "weights": weights,
    }
    whole, offloaded = (runner_of(model, **options, **more) for more in ({}, on_disk))
    for a, b in zip(passes_of(offloaded), passes_of(whole), strict=True):
        assert torch.equal(a, b)


@pytest.mark.native
@pytest.mark.parametrize("family", ["opt", "gpt_neox", "qwen3"])
def test_the_kernels_give_the_same_hidden_states_for_other_families(
    family: str, on_disk: dict[str, str]
) -> None:
    model = tiny_transformers(family, **SHAPE)
    passes = []
    for options in ({}, on_disk):
        runner = runner_of(model, executor="native", **options)
        segments = [Segment(runner.open(), [3, 1, 4, 1, 5], want_last=True)]
        logits, features = runner.forward_with_features(segments, (0, 2, 3))
        passes.append((logits[0], features[0]))
    assert all(torch.equal(a, b) for a, b in zip(*passes, strict=True))


@pytest.mark.native
def test_a_tree_and_single_steps_agree_bit_for_bit_when_offloaded(on_disk: dict[str, str]) -> None:
    runner = runner_of(tiny_transformers("llama", **SHAPE), executor="native", dtype="bfloat16", **on_disk)
    plain, tree = runner.open(), runner.open()
    single = [runner.forward([Segment(plain, [7, 8], want_last=True)])[0]]
    single += [runner.forward([Segment(plain, [token], want_last=True)])[0] for token in (11, 12)]
    (scored,) = runner.forward(
        [Segment(tree, [7, 8], [50, 11, 60, 12, 70], [-1, -1, 0, 1, 3], want_last=True)]
    )
    assert torch.equal(scored[[0, 2, 4]], torch.cat(single))


@pytest.mark.native
def test_the_matrices_are_only_in_the_file(on_disk: dict[str, str], tmp_path: Path) -> None:
    """Keeping the packed matrices in memory, too, would not show in the results."""
    runner = runner_of(
        tiny_transformers("llama", **SHAPE | {"intermediate_size": 192}), executor="native", **on_disk
    )
    assert not list(tmp_path.iterdir()), "the file has no name"
    streamed = runner._executor._streamed  # type: ignore[attr-defined]
    assert [sum(sizes.values()) for sizes in streamed._sizes] == list(streamed._store.sizes)
    heads = (6 + 2 * 2) * 32 * 96 + 6 * 32 * 96
    assert streamed._store.sizes[0] == 4 * (heads + 3 * 96 * 192), "whole tiles, so nothing is padded"
    library, model = streamed._library, streamed._model
    at = (torch.zeros(1, dtype=torch.int64)).numpy()
    library.si_packed(model, 0, 0, at.ctypes.data)
    assert at[0] == 0, "before the first pass the matrix is nowhere in memory"


@pytest.mark.native
def test_drafting_with_an_offloaded_model_is_refused(on_disk: dict[str, str]) -> None:
    runner = runner_of(tiny_transformers("llama", **SHAPE), executor="native", **on_disk)
    task = GrowthTask(runner.open(), [1], TreeLimits(4, 2), GREEDY)
    with pytest.raises(IncompatibleError, match="offload"):
        runner.grow([task], GrowthShape(), torch.arange(97, dtype=torch.int32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload": "tape"}, "offload = 'tape':"),
        ({"offload": "host"}, "offload = 'host':"),
        ({"offload": "disk", "executor": "gpu"}, "must be none for the gpu executor"),
        ({"offload": "disk", "executor": "generic"}, "must be none for the generic executor"),
    ],
)
def test_unsupported_offloading_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        runner_of(tiny_transformers("llama"), **options)


def test_a_family_that_only_the_generic_executor_runs_is_not_offloaded(tmp_path: Path) -> None:
    from tests.support.tiny_models import tiny_generic

    tiny_generic("gpt2").save_pretrained(tmp_path)
    with pytest.raises(SettingError, match="offload = 'disk':"):
        load_checked(tmp_path, RunnerOptions(dtype="float32", offload="disk"))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"offload_directory = .*file"):
        open_store("disk", "cpu", str(tmp_path / "file" / "below"))


def test_the_verifier_takes_it_from_its_settings(tmp_path: Path) -> None:
    tiny_transformers("llama").save_pretrained(tmp_path / "model")
    settings = VerifierSettings(
        model=str(tmp_path / "model"),
        dtype="float32",
        executor="torch",
        kv_tokens=256,
        offload="disk",
        offload_directory=str(tmp_path / "layers"),
    )
    runner = load_runner(settings)
    assert (tmp_path / "layers").is_dir()
    whole = load_runner(settings.model_copy(update={"offload": "none"}))
    actual = [r.forward([Segment(r.open(), [5, 6], want_last=True)])[0] for r in (runner, whole)]
    assert torch.equal(*actual)


def layers_of(sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return random bytes for every layer."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes]


@pytest.mark.parametrize("make", [lambda path: DiskStore(path), lambda _: HostStore(pinned=False)])
def test_a_store_gives_back_what_it_was_given(make: Callable[[Path], LayerStore], tmp_path: Path) -> None:
    store, layers = make(tmp_path), layers_of([5, PAGE, 3 * PAGE + 1, 64])
    for layer in layers:
        store.append(layer.split(max(1, len(layer) // 3)))
    assert list(store.sizes) == [len(layer) for layer in layers]
    buffer = HostBuffer(4 * PAGE)
    for index in (2, 0, 3, 1, 2):
        assert torch.equal(store.fetch(index, buffer.memory), layers[index])


class Countable(HostStore):
    """A store whose layers are one byte, their number; records fetches, and fails if `broken`."""

    def __init__(self, layers: int) -> None:
        super().__init__(pinned=False)
        self.fetched: list[int] = []
        self.broken = False
        for layer in range(layers):
            self.append([torch.tensor([layer], dtype=torch.uint8)])

    def fetch(self, layer: int, staging: torch.Tensor) -> torch.Tensor:
        self.fetched.append(layer)
        if self.broken:
            raise UnavailableError(f"layer {layer}")
        staging[:1] = super().fetch(layer, staging)
        return staging[:1]


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_layers_come_in_order_pass_after_pass(layers: int) -> None:
    stream = LayerStream(Countable(layers), [HostBuffer(PAGE) for _ in range(2)])
    for _ in range(4):
        for layer in range(layers):
            with stream.hold(layer) as buffer:
                assert int(stream.buffers[buffer].memory[0]) == layer


def test_one_layer_is_read_ahead_while_a_layer_is_used() -> None:
    store = Countable(4)
    stream = LayerStream(store, [HostBuffer(PAGE) for _ in range(2)])
    with stream.hold(0):
        until(lambda: store.fetched == [0, 1])
        with pytest.raises(AssertionError):
            until(lambda: len(store.fetched) > 2, seconds=0.2)
    until(lambda: store.fetched == [0, 1, 2])


def test_a_pass_that_fails_does_not_affect_the_next_one() -> None:
    stream = LayerStream(Countable(5), [HostBuffer(PAGE) for _ in range(2)])

    def run(fails_at: int | None) -> list[int]:
        seen = []
        for layer in range(5):
            with stream.hold(layer) as buffer:
                seen.append(int(stream.buffers[buffer].memory[0]))
                if layer == fails_at:
                    raise ZeroDivisionError
        return seen

    for fails_at in (0, 3, 4):
        with pytest.raises(ZeroDivisionError):
            run(fails_at)
        assert run(None) == [0, 1, 2, 3, 4]


def test_a_disk_that_fails_fails_the_pass_until_it_recovers() -> None:
    store = Countable(3)
    stream = LayerStream(store, [HostBuffer(PAGE) for _ in range(2)])

    def run() -> list[int]:
        seen = []
        for layer in range(3):
            with stream.hold(layer) as buffer:
                seen.append(int(stream.buffers[buffer].memory[0]))
        return seen

    assert run() == [0, 1, 2]
    until(lambda: len(store.fetched) == 5)  # the first layers of the next pass are already read
    store.broken = True
    for _ in range(2):
        with pytest.raises(UnavailableError, match="layer"):
            run()
    store.broken = False
    failures = 0
    while failures < 3:  # reads ahead of the passes failed once or twice more
        try:
            assert run() == [0, 1, 2]
            break
        except UnavailableError:
            failures += 1
    assert failures < 3
    assert run() == [0, 1, 2]


def test_a_stream_waits_for_the_end_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that copies while the interpreter shuts down would abort the process."""
    before = set(threading.enumerate())
    stream = LayerStream(Countable(3), [HostBuffer(PAGE) for _ in range(2)])
    (reader,) = set(threading.enumerate()) - before
    join = reader.join
    ends: list[bool] = []
    monkeypatch.setattr(reader, "join", lambda: ends.append(join() is None))
    del stream
    assert ends == [True]
    assert not reader.is_alive()


class Recorded:
    """Fake copies to a device: `early` counts copies into a buffer whose work was not finished."""

    def __init__(self) -> None:
        self.marks, self.over, self.early = 0, 0, 0

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        self.early += self.over < self.marks
        memory.copy_(host)

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def wait(self, mark: object) -> None:
        assert isinstance(mark, int)
        self.over = max(self.over, mark)


def test_a_device_buffer_is_not_overwritten_before_the_work_on_it_is_over() -> None:
    store = HostStore(pinned=False)
    for layer in layers_of([8, 8, 8]):
        store.append([layer])
    copies = Recorded()
    buffer = DeviceBuffer(8, "cpu", torch.empty(8, dtype=torch.uint8), copies)
    for layer in (0, 1, 2, 0):
        buffer.fill(store, layer)
        assert torch.equal(buffer.memory, store.fetch(layer, buffer.memory))
        buffer.used()
    assert (copies.marks, copies.over, copies.early) == (4, 3, 0)


def test_host_memory_and_device_buffers_give_the_same_bits() -> None:
    """The path of a GPU without its streams: layers in host memory, copied into buffers on the device."""
    model = tiny_transformers("qwen2", **SHAPE)
    config = from_transformers(model.config)
    whole = runner_of(model, kv_tokens=8192)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    executor = TorchExecutor(config, weights, torch.float32, 8192 // 16, store=HostStore(pinned=False))
    offloaded = ModelRunner(config, executor, 8192 // 16)
    for a, b in zip(passes_of(offloaded), passes_of(whole), strict=True):
        assert torch.equal(a, b)


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition becomes true in another thread."""
    event = threading.Event()
    for _ in range(round(seconds / 0.01)):
        if true():
            return
        event.wait(0.01)
    raise AssertionError(f"not within {seconds} s")
