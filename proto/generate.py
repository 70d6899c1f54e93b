"""Generate `specinfer/v1/*_pb2*.py(.pyi)`, which a test compares: `make proto`."""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Write the generated modules to `out/specinfer/v1`."""
    sources = sorted((HERE / "specinfer" / "v1").glob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{HERE}", f"-I{well_known}"]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*arguments, *map(str, sources)]) != 0:
        sys.exit("protoc failed")


if __name__ == "__main__":
    generate(HERE.parent)
