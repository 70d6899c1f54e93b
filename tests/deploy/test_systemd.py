"""The unit of systemd: its settings are those of `serve`, and systemd accepts it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from all_in_one.settings import ServeSettings

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "specinfer.service"


def rows(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_its_variables_are_settings_of_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (environment,) = rows("Environment")
    for variable in environment.split():
        monkeypatch.setenv(*variable.split("=", 1))
    settings = ServeSettings.load("serve", [])
    assert rows("ExecStart") == ["/opt/specinfer/bin/specinfer serve"]
    assert Path(settings.store).parent == Path("/var/lib") / rows("StateDirectory")[0]
    assert os.environ["SPECINFER_CACHE"] == f"/var/cache/{rows('CacheDirectory')[0]}"
    assert int(rows("TimeoutStopSec")[0]) > 2 * settings.drain_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_it(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/specinfer/bin/specinfer", sys.executable))
    said = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
