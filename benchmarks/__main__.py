"""Run a benchmark by name: `python -m benchmarks step` runs `benchmarks.step`."""

import runpy
import sys
from importlib.util import find_spec
from pkgutil import iter_modules

import benchmarks


def main() -> None:
    """Run the benchmark named by the first argument, with the other arguments."""
    programs = {
        module.name: module.ispkg for module in iter_modules(benchmarks.__path__) if module.name[0] != "_"
    }
    names = sorted(
        n for n, package in programs.items() if not package or find_spec(f"benchmarks.{n}.__main__")
    )
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"python -m benchmarks NAME [OPTIONS]; NAME is one of {', '.join(names)}")
    name = sys.argv.pop(1)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
