"""`specinfer train speculator` without prompts, on the default model: from texts to advice, across an interruption."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specinfer.hub import DEFAULT_MODEL
from tests.docs.blocks import ROOT


@pytest.mark.thorough
@pytest.mark.native
@pytest.mark.timeout(1800)
def test_a_draft_is_trained_from_texts_and_measured(default_model: Path, tmp_path: Path) -> None:
    """The first process is interrupted while it reads; the second continues with what is kept."""
    texts = [word for folder in ("specinfer", "docs") for word in ("--text", str(ROOT / folder))]
    command = [
        sys.executable,
        "-m",
        "specinfer.training",
        "speculator",
        "--model",
        DEFAULT_MODEL,
        "--out",
        "own",
    ]
    command += ["--method", "eagle", "--minutes", "1", *texts]
    states = tmp_path / "own.work" / "read"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as first:
        while first.poll() is None and len([*states.glob("read-*.npz")]) < 8:
            time.sleep(0.1)
        os.kill(first.pid, signal.SIGTERM)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    kept = {path: path.stat().st_mtime_ns for path in states.glob("read-*.npz")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in states.glob("read-*.npz")}.items()
    lines = done.stdout.splitlines()
    first_guesses = [float(line.split()[1]) for line in lines if line.strip().startswith("1 ")]
    assert len(first_guesses) == 2, "of EAGLE and of the heads"
    assert first_guesses[0] > 5, "a draft that starts as the target's last layer learns within a minute"
    assert "end to end: 40 held-out prompts" in done.stdout
    measured = [
        re.match(r"(ngram\+\w+,model=own\S*|\S+): \d\.\d\dx of plain decoding", line) for line in lines
    ]
    assert len([match for match in measured if match]) == 4, "both, the SSM that ships, n-grams"
    assert re.match(r"not known whether to serve it: |do not serve it: |serve it", lines[-1])
