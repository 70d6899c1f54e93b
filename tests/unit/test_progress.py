"""Progress of long work is logged: at its start, every two seconds, at its end."""

import json
import logging
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from specinfer.cli import show
from specinfer.cli.local.processes import Child
from specinfer.service.logs import make_formatter
from specinfer.system.progress import LOGGER, progress


def logged(times: Iterator[float], caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level("INFO", LOGGER), progress("packing", clock=lambda: next(times)) as report:
        for done in range(1, 5):
            report(done, 4)
    return [record.getMessage() for record in caplog.records]


def test_long_work_is_reported_every_second(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 1.0, 1.0, 1.6, 1.7, 4.6, 4.6, 5.0])
    assert logged(times, caplog) == [
        "packing",
        "packing: 25 %",
        "packing: 100 %",
        "packing: 5.0 s",
    ]


def test_short_work_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(chain([0.0], repeat(0.9)), caplog) == ["packing"]


def test_a_terminal_is_not_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "console", show.Console(file=sys.stderr, force_terminal=False))
    with show.waiting("loading") as report:
        report("starting verifier")
        logging.getLogger(LOGGER).info("packing: %d %%", 40)
    logging.getLogger(LOGGER).info("nobody waits any more")
    assert capsys.readouterr().err == "starting verifier\npacking: 40 %\n"


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_child_shows_its_progress_in_its_log(kind: str, tmp_path: Path) -> None:
    formatter = make_formatter("verifier", kind)
    lines = [
        formatter.format(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))
        for name, text in (
            (LOGGER, "packing"),
            (LOGGER, "packing: 40 %"),
            ("specinfer.model", "passes take 4 ms"),
        )
    ]
    child = Child(
        "verifier", [sys.executable, "-c", f"print({json.dumps(chr(10).join(lines))})"], tmp_path / "log", {}
    )
    child.join(60)
    assert child.progress() == "packing: 40 %"
