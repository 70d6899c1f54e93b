"""Generates `specinfer/v1/*_pb2*.py(.pyi)` from `proto/`; a test compares it with what is committed."""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(out: Path) -> None:
    """Writes the generated modules below `out` (so `out/specinfer/v1/...`)."""
    sources = sorted((ROOT / "proto" / "specinfer" / "v1").glob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}"]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*arguments, *map(str, sources)]) != 0:
        sys.exit("protoc failed")


if __name__ == "__main__":
    generate(ROOT)
