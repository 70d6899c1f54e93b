"""`specinfer/v1` is exactly what `proto/` generates, and every field of the contract is commented."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        f"import generate, pathlib; generate.generate(pathlib.Path({str(tmp_path)!r}))",
    ]
    subprocess.run(command, cwd=ROOT / "proto", check=True)
    fresh = {p.name: p.read_text() for p in (tmp_path / "specinfer" / "v1").iterdir()}
    committed = {p.name: p.read_text() for p in (ROOT / "specinfer" / "v1").glob("*_pb2*")}
    assert fresh == committed, "run `make proto`"


def test_every_field_and_value_has_a_comment() -> None:
    member = re.compile(r"^\s+(optional |repeated )?[\w.]+ \w+ = \d+;|^\s+\w+ = [1-9]\d*;")
    bare = []
    for path in sorted((ROOT / "proto").rglob("*.proto")):
        lines = path.read_text().splitlines()
        for before, line in pairwise(lines):
            if member.match(line) and not before.strip().startswith("//"):
                bare.append(f"{path.name}: {line.strip()}")
    assert bare == []
