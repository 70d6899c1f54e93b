"""Prefixes in a directory: found by later processes, limited in size, and never used if damaged."""

import logging
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.cache import prefix_directory
from specinfer.model.cache.prefix_directory import PrefixDirectory
from specinfer.model.runner import ModelRunner
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import EntryStatus
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama", head_dim=16)
PROMPT = [(7 * i + i * i) % 97 for i in range(100)]
SHARED = 96
"""Number of tokens of the prompt in whole blocks."""


def runner_at(
    directory: Path,
    kv_tokens: int = 256,
    kv_type: str = "auto",
    fingerprint: str = "model",
    limit: int = 1 << 30,
) -> ModelRunner:
    runner = runner_of(MODEL, executor="native", dtype="bfloat16", kv_tokens=kv_tokens, kv_type=kv_type)
    runner.keep_prefixes(directory, fingerprint, limit)
    return runner


def answer(runner: ModelRunner, scope: str = "", prompt: list[int] = PROMPT) -> tuple[int, torch.Tensor]:
    """Return the number of cached tokens, and the logits after the prompt."""
    sequence = runner.open(scope)
    known = runner.cache.share(sequence, prompt[:-1])
    (logits,) = runner.forward([Segment(sequence, prompt[known:], want_last=True)])
    runner.cache.release(sequence)
    runner.cache.check()
    return known, logits


@pytest.fixture(scope="module")
def saved_prefixes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Return a directory with the prompt's blocks, and the logits after the prompt."""
    runner = runner_at(directory := tmp_path_factory.mktemp("prefixes"))
    _, expected = answer(runner)
    runner.cache.pool.save_prefixes()
    return directory, expected


@pytest.mark.native
@pytest.mark.parametrize("kv_type", ["auto", "q8_0"])
def test_another_process_finds_the_prefix_and_computes_the_same_bits(tmp_path: Path, kv_type: str) -> None:
    first = runner_at(tmp_path, kv_type=kv_type)
    known, expected = answer(first)
    assert known == 0
    first.cache.pool.save_prefixes()
    second = runner_at(tmp_path, kv_type=kv_type)
    known, cached_len = answer(second)
    assert known == SHARED == second.cache.pool.restored_tokens == second.cache.pool.shared_tokens
    assert torch.equal(cached_len, expected)


@pytest.mark.native
def test_blocks_that_memory_loses_are_restored_from_the_directory(tmp_path: Path) -> None:
    runner = runner_at(tmp_path, kv_tokens=128)
    _, expected = answer(runner)
    for start in range(3):
        answer(runner, prompt=[(start + 5 * i) % 97 for i in range(112)])
    known, cached_len = answer(runner)
    assert known == SHARED
    assert runner.cache.pool.restored_tokens > 0
    assert torch.equal(cached_len, expected)


@pytest.mark.native
@pytest.mark.parametrize("limit", [1, 16, 20, 32, 60, 200])
@pytest.mark.parametrize("in_memory", [0, 2])
def test_a_limited_prompt_is_restored_over_several_steps_with_the_same_bits(
    saved_prefixes: tuple[Path, torch.Tensor], limit: int, in_memory: int
) -> None:
    """A step restores whole blocks up to the limit, and computes at most the rest of the limit."""
    directory, expected = saved_prefixes
    engine = VerifierEngine(runner_at(directory))
    cache = engine.runner.cache
    before = engine.runner.open()
    cache.share(before, PROMPT[: in_memory * 16])
    cache.release(before)
    cached_len, restored = 0, cache.pool.restored_tokens
    while cached_len < len(PROMPT) - 1:
        limited = VerifyJob("r", cached_len, PROMPT[cached_len:], None, GREEDY, read_limit=limit)
        (outcome,) = engine.verify([limited])
        assert outcome.status is EntryStatus.OK
        newly, restored = cache.pool.restored_tokens - restored, cache.pool.restored_tokens
        computed = outcome.cached_len - cached_len - outcome.cached_tokens
        assert newly < limit + 16
        assert computed <= max(0, limit - newly)
        assert newly + computed > 0, "each step makes progress"
        cached_len = outcome.cached_len
    assert restored == SHARED, "a limit loses nothing that is stored"
    assert cache.pool.queried_tokens == SHARED + in_memory * 16, (
        "each block counts once for the share of hits"
    )
    (sequence,) = cache._sequences
    (logits,) = engine.runner.forward([Segment(sequence, PROMPT[-1:], want_last=True)])
    assert torch.equal(logits, expected)


@pytest.mark.native
@pytest.mark.parametrize("change", [{"kv_type": "q8_0"}, {"fingerprint": "another"}], ids=str)
def test_another_model_or_format_finds_nothing(tmp_path: Path, change: dict[str, str]) -> None:
    first = runner_at(tmp_path)
    answer(first)
    first.cache.pool.save_prefixes()
    assert answer(runner_at(tmp_path, **change))[0] == 0


@pytest.mark.native
@pytest.mark.parametrize("damage", ["torn", "a bit", "foreign", "empty"])
def test_damaged_files_are_ignored_with_one_log_line(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = runner_at(tmp_path)
    _, expected = answer(first)
    first.cache.pool.save_prefixes()
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) == SHARED // 16
    for path in files:
        content = bytearray(path.read_bytes())
        if damage == "a bit":
            content[-1] ^= 1
        elif damage == "foreign":
            content[10] ^= 1
        else:
            content = content[: len(content) // 2 if damage == "torn" else 0]
        path.write_bytes(content)
    second = runner_at(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            second.cache.check()
            assert torch.equal(answer(second)[1], expected)
    assert len([line for line in caplog.messages if "this cached prefix is not used" in line]) == 1, (
        "the chain ends there"
    )


@pytest.mark.native
def test_a_missing_or_unwritable_directory_loses_only_the_prefix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = runner_at(tmp_path / "gone")
    _, expected = answer(first)
    first.cache.pool.save_prefixes()
    second = runner_at(tmp_path / "gone")
    for path in (tmp_path / "gone").rglob("*.kv"):
        path.unlink()
    known, cached_len = answer(second)
    assert known == 0
    assert torch.equal(cached_len, expected)
    (tmp_path / "file").write_text("in the way")
    third = runner_at(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(answer(third)[1], expected)
        third.cache.pool.save_prefixes()
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 1


@pytest.mark.native
def test_scopes_share_no_prefix(tmp_path: Path) -> None:
    runner = runner_at(tmp_path)
    assert answer(runner, "alice")[0] == 0
    assert answer(runner, "bob")[0] == 0
    assert answer(runner)[0] == 0
    assert answer(runner, "alice")[0] == SHARED
    runner.cache.pool.save_prefixes()
    later = runner_at(tmp_path)
    assert answer(later, "eve")[0] == 0
    assert answer(later, "bob")[0] == SHARED


def key(number: int) -> bytes:
    return bytes([number] * 16)


def test_the_directory_is_bounded_and_keeps_the_latest_used_blocks(tmp_path: Path) -> None:
    prefixes = PrefixDirectory(tmp_path, "model", 5 * 1056)
    for number in range(5):
        prefixes.write(key(number), bytes(1000))
    prefixes.flush()  # else a slow disk's queue is full, and drops the first block
    assert prefixes.read(key(0), 1000) == bytes(1000)
    prefixes.note_use([key(0)])
    prefixes.write(key(5), bytes(1000))
    assert [key(number) in prefixes for number in range(6)] == [True, False, True, True, True, True]
    prefixes.flush()
    assert prefixes.total_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) == 5 * 1056
    later = PrefixDirectory(tmp_path, "another model", 2 * 1056)
    later.write(key(9), bytes(1000))
    later.flush()
    assert len(list(tmp_path.rglob("*.kv"))) == 2, "files of other models count"


@pytest.mark.native
def test_a_directory_that_is_too_small_keeps_beginnings_of_the_last_prompts(tmp_path: Path) -> None:
    block = runner_at(tmp_path).features.block_bytes + 56
    first = runner_at(tmp_path, limit=3 * block)
    answer(first, prompt=[(5 * i) % 97 for i in range(100)])
    answer(first)
    first.cache.pool.save_prefixes()
    assert answer(runner_at(tmp_path))[0] == 3 * 16


@pytest.mark.native
def test_a_prompt_loses_its_last_blocks_first(tmp_path: Path) -> None:
    """Blocks of the prompt's end are of no use without the earlier ones."""
    block = runner_at(tmp_path).features.block_bytes + 56
    first = runner_at(tmp_path)
    answer(first)
    first.cache.pool.save_prefixes()
    again = runner_at(tmp_path, limit=(SHARED // 16 + 1) * block)
    assert answer(again)[0] == SHARED
    again.cache.pool.save_prefixes()
    other = runner_at(tmp_path, limit=(SHARED // 16 + 1) * block)
    answer(other, prompt=[(5 * i) % 97 for i in range(40)])
    other.cache.pool.save_prefixes()
    assert 0 < answer(runner_at(tmp_path))[0] < SHARED


def test_an_incomplete_file_of_a_dead_process_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        prefixes = PrefixDirectory(tmp_path, "model", 1 << 20)
        prefixes.write(key(1), bytes(1000))
        prefixes.flush()
    (left,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    PrefixDirectory(tmp_path, "model", 1 << 20)
    assert left.exists(), "its process may still be writing"
    os.utime(left, (time.time() - 3600,) * 2)
    PrefixDirectory(tmp_path, "model", 1 << 20)
    assert not left.exists()


def test_a_slow_disk_delays_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that wait to be written are found; beyond the backlog the oldest are dropped, except at the end."""
    disk = threading.Event()
    replace = os.replace

    def wait(*paths: str) -> None:
        assert disk.wait(60)
        replace(*paths)

    monkeypatch.setattr(os, "replace", wait)
    monkeypatch.setattr(prefix_directory, "_BACKLOG_BYTES", 3500)
    prefixes = PrefixDirectory(tmp_path, "model", 1 << 20)
    for number in range(5):
        prefixes.write(key(number), bytes([number]) * 1000)
    kept = [0, 3, 4]
    for number in range(5):
        blocks = prefixes.read(key(number), 1000)
        assert blocks == (bytes([number]) * 1000 if number in kept else None)
    disk.set()
    prefixes.write(key(5), bytes([5]) * 1000, wait=True)
    prefixes.flush()
    later = PrefixDirectory(tmp_path, "model", 1 << 20)
    assert [number for number in range(6) if key(number) in later] == [*kept, 5]
    assert later.read(key(4), 1000) == bytes([4]) * 1000
    assert prefixes.total_bytes == later.total_bytes


@pytest.mark.parametrize("planted", ["pipe", "link", "large", "folder", "longer"])
def test_only_regular_files_of_a_blocks_size_are_read(planted: str, tmp_path: Path) -> None:
    """Reading a pipe would not return, and reading a large file would take all memory."""
    written = PrefixDirectory(tmp_path, "model", 1 << 50)
    written.write(key(1), bytes(1000))
    written.flush()
    (path,) = tmp_path.rglob("*.kv")
    for first in (True, False):
        prefixes = PrefixDirectory(tmp_path, "model", 1 << 50)
        if first:
            content = path.read_bytes()
            path.unlink()
            match planted:
                case "pipe":
                    os.mkfifo(path)
                case "link":
                    path.symlink_to("/dev/zero")
                case "large":
                    path.touch()
                    os.truncate(path, 1 << 40)
                case "folder":
                    path.mkdir()
                case "longer":
                    path.write_bytes(content + b"x")
        assert prefixes.read(key(1), 1000) is None


def test_processes_share_one_limit_and_find_each_others_blocks(tmp_path: Path) -> None:
    limit = 40 * 1056
    first, second = (PrefixDirectory(tmp_path, "model", limit) for _ in range(2))
    for number in range(60):
        for half, prefixes in enumerate((first, second)):
            prefixes.write(key(2 * number + half), bytes(1000))
            prefixes.flush()
    total = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    assert 0.9 * limit < total <= limit == pytest.approx(second.total_bytes, abs=2112)
    assert second.read(key(118), 1000) == bytes(1000)
    assert first.read(key(0), 1000) is None


def test_only_the_owner_may_list_the_blocks(tmp_path: Path) -> None:
    """A name is the hash of a prompt, so it tells whether a guessed prompt was used."""
    before = os.umask(0)
    try:
        prefixes = PrefixDirectory(tmp_path / "new", "model", 1 << 20)
        prefixes.write(key(1), bytes(1000))
        prefixes.flush()
        modes = {path.stat().st_mode & 0o77 for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))}
        assert modes == {0}
        (block,) = (tmp_path / "new").rglob("*.kv")
        block.parents[1].chmod(0o755)  # as older versions made it
        PrefixDirectory(tmp_path / "new", "model", 1 << 20)
        assert block.parents[1].stat().st_mode & 0o77 == 0
    finally:
        os.umask(before)


def test_a_disk_that_hangs_makes_no_queue(tmp_path: Path) -> None:
    prefixes, disk = PrefixDirectory(tmp_path, "model", 1 << 20), threading.Event()
    keys = [key(number) for number in range(50)]
    for name in keys:
        prefixes.write(name, bytes(1000))
    prefixes.flush()
    prefixes._writer.submit(disk.wait)
    for _ in range(100):
        prefixes.note_use(keys)
    assert prefixes._writer._work_queue.qsize() <= 1
    disk.set()
    prefixes.flush()
    times = [prefixes._path(name).stat().st_mtime_ns for name in keys]
    assert times == sorted(times, reverse=True), "the beginning of a prompt is the latest"


def test_read_only_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = PrefixDirectory(tmp_path, "model", 1 << 20)
    prefixes.write(key(1), bytes(1000))
    prefixes.flush()

    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    assert prefixes.read(key(1), 1000) == bytes(1000)


def test_executors_that_copy_no_blocks_and_windows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="prefix_cache_directory = "):
        runner_of(MODEL, executor="torch").keep_prefixes(tmp_path, "model", 1)
    windowed = runner_of(MODEL, executor="native", kv_window=64)
    with pytest.raises(SettingError, match="windowed cache"):
        windowed.keep_prefixes(tmp_path, "model", 1)
