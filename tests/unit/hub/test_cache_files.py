"""Files of the cache: modes by the umask, no remains of killed processes, errors of one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from specinfer.errors import SettingError
from specinfer.hub import work_directory
from specinfer.hub.pull import pull_model
from specinfer.service.entry_point import run_service
from specinfer.service.settings import ProcessSettings
from specinfer.system.cache_directory import cache_directory
from tests.support.models.gguf_models import write_model_file

_DIES = """
import os, signal, sys
from pathlib import Path
from specinfer.hub.work_directory import atomic_directory
with atomic_directory(Path(sys.argv[1])) as work:
    (work / "folder").mkdir()
    (work / "folder" / "weights").write_bytes(b"x" * 1000)
    (work / "config.json").write_text("half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_modes_of_a_pulled_model_are_those_of_the_umask(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "cache"))
    file = write_model_file(tmp_path / "model.gguf")
    with umask(mask):
        directory = pull_model(str(file))
    paths = [path for path in [directory, *directory.rglob("*")] if not path.is_symlink()]
    assert len(paths) > 3
    for path in paths:
        usual = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == usual & ~mask, path


def test_modes_do_not_depend_on_who_wrote_the_files(tmp_path: Path) -> None:
    with umask(0o022), work_directory.atomic_directory(tmp_path / "model") as work:
        (work / "folder").mkdir(0o700)
        for place in (work / "weights", work / "folder" / "weights"):
            place.touch(0o600)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").rglob("*")}
    assert modes == {"folder": 0o755, "weights": 0o644}


def test_files_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "models" / "model"
    died = subprocess.run([sys.executable, "-c", _DIES, str(target)], check=False)
    assert died.returncode == -9
    assert not target.exists()
    assert sum(path.stat().st_size for path in target.parent.rglob("*")) > 1000
    with work_directory.atomic_directory(target) as work:
        (work / "config.json").write_text("complete")
    assert [path.name for path in target.parent.rglob("*")] == ["model", "config.json"]
    assert (target / "config.json").read_text() == "complete"


def test_the_error_without_a_home_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SPECINFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", none)
    monkeypatch.setattr(Path, "home", lambda: none(Path()))
    with pytest.raises(SettingError, match="SPECINFER_CACHE = '':"):
        cache_directory()


class _Settings(ProcessSettings):
    model_config = SettingsConfigDict(**{**ProcessSettings.model_config, "env_prefix": "NONE_OF_OURS_"})


def test_a_service_names_the_file_that_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(_: ProcessSettings) -> None:
        (tmp_path / "closed").read_text()

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("specinfer.service.entry_point.set_up_logs", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run_service("program", _Settings, [], lambda _: "service", serve)
    assert ended.value.code == 2
    line = f"program: error: file = '{tmp_path / 'closed'}': Is a directory\n"
    assert capsys.readouterr().err == line
