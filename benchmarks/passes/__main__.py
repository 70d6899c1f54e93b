"""`python -m benchmarks passes MODEL`: time passes, also of llama.cpp.

Passes differ in rows and context length. Writes a section of the report for each model and context; the other
sections of an existing report stay.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.passes.measure import (
    CHUNK,
    READ,
    SPARE,
    TITLE,
    Figures,
    OurPasses,
    SystemTimes,
    matrix_bytes,
    section,
)
from benchmarks.passes.mixture import TITLE as MIXTURE_TITLE
from benchmarks.passes.mixture import RandomMixture
from benchmarks.peers.processes import PeerProcess
from benchmarks.publish import RESULTS
from benchmarks.tables import with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.errors import SettingError
from specinfer.hub import model_name, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.threads import use_threads
from specinfer.model.weights.source import kept_gguf
from specinfer.system.turns import alternate

OURS, PEER = "SpecInfer", "llama.cpp"
FEW = 8
"""Passes of n rows run max(1, FEW // n) times per turn."""


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Names, directories or GGUF files.")] = None,
    rows: Annotated[str, typer.Option(help="Rows of each request.")] = "1,2,3,4,6,8,12,16,32,64",
    context: Annotated[str, typer.Option(help="Tokens before the passes.")] = "256,4096",
    requests: Annotated[str, typer.Option(help="Requests of a pass.")] = "1",
    kv_type: Annotated[str, typer.Option(help="Formats of cached keys and values.")] = "bf16",
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of the systems.")] = 3,
    mixture: Annotated[str, typer.Option(help="Format of a random mixture of experts to measure.")] = "",
    llama_python: Annotated[
        Path | None, typer.Option(help="Python that has llama-cpp-python; for one request.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "passes.md",
) -> None:
    """Measure passes of models."""
    use_threads(threads)
    sizes, contexts, counts = (
        numbers("rows", rows),
        numbers("context", context),
        numbers("requests", requests),
    )
    formats = kv_type.split(",")
    about = about_this_run("python -m benchmarks passes")
    if mixture:
        measure_mixture(mixture, contexts, sizes, turns, out)
    for model in models or ():
        directory = resolve_model(model)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            peers = (
                {} if llama_python is None else llama_peers(directory, llama_python, Path(folder), formats)
            )
            for peer in peers.values():
                stack.callback(peer.close)
            most = max(counts) * (max(contexts) + max(sizes))
            room = most + CHUNK + SPARE
            ours = {
                _named(OURS, name, formats): OurPasses(
                    load_checked(directory, RunnerOptions(kv_tokens=room, kv_type=name))
                )
                for name in formats
            }
            first = next(iter(ours.values()))
            size = matrix_bytes(directory, first.runner.config)
            for tokens, count in product(contexts, counts):
                figures = measure(ours, peers if count == 1 else {}, tokens, count, sizes, turns)
                head = f"{model_name(model)} after {tokens} tokens" + (f", {count} requests" * (count > 1))
                text = section(head, figures, size, about | {"weights": str(first.runner.weights)})
                write(out, TITLE, {head: text})
                console.print(text, markup=False)


def _named(system: str, kv_type: str, formats: list[str]) -> str:
    return system if len(formats) == 1 else f"{system} {kv_type}"


def numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a comma-separated list, ascending.

    Raises:
        SettingError: if the text is not such a list.
    """
    values = sorted({int(part) for part in text.split(",") if part.strip().isdecimal()})
    if not values or values[0] < 1 or len(values) != len(text.split(",")):
        raise SettingError(option, text, "must be different numbers from 1 on, separated by commas: 1,2,4")
    return values


def llama_peers(directory: Path, python: Path, folder: Path, formats: list[str]) -> dict[str, PeerProcess]:
    """Return a llama.cpp process for the model's GGUF file by cache format.

    Raises:
        SettingError: if the model does not come from a GGUF file.
    """
    path = kept_gguf(directory)
    if path is None:
        raise SettingError(
            "llama-python", str(python), f"{directory} has no GGUF file that llama.cpp could read"
        )
    return {
        _named(PEER, "f16" if name == "bf16" else name, formats): PeerProcess(
            python, path.resolve(), name, folder / f"{name}.log"
        )
        for name in formats
    }


def measure(
    ours: Mapping[str, OurPasses],
    peers: Mapping[str, PeerProcess],
    tokens: int,
    requests: int,
    sizes: list[int],
    turns: int,
) -> dict[str, Figures]:
    """Return each system's figures; systems alternate in turns.

    Prompt speed comes from chunks of `CHUNK` tokens, or from reading a context longer than `CHUNK`.
    """
    task: dict[str, Any] = {"context": tokens, "threads": torch.get_num_threads(), "read": READ}
    systems: dict[str, Callable[[list[int]], SystemTimes]] = {
        name: partial(figures.measure, tokens, requests) for name, figures in ours.items()
    }
    for name, peer in peers.items():
        systems[name] = partial(of_peer, peer, task)
    by_system = {system: Figures() for system in systems}
    several = [size for size in sizes for _ in range(max(1, FEW // size))]
    for turn in range(turns):
        wanted = [1, *several, *([CHUNK] if tokens <= CHUNK and turn % 2 == 0 else [])]
        for system in alternate(systems, turn):
            reading = systems[system](wanted)
            by_system[system].add(wanted[1:], reading.seconds[1:])
            if tokens > CHUNK and turn == 0:
                by_system[system].prompt_rates.append(min(tokens, READ) / reading.context)
    return by_system


def of_peer(peer: PeerProcess, task: dict[str, Any], sizes: list[int]) -> SystemTimes:
    """Return llama.cpp's times of passes of `sizes` rows.

    Raises:
        UnavailableError: if llama.cpp failed.
    """
    return SystemTimes(**peer.measure(task | {"rows": sizes}))


def measure_mixture(weights: str, contexts: list[int], sizes: list[int], turns: int, out: Path) -> None:
    """Measure a random mixture of experts, and write its report."""
    about = about_this_run("python -m benchmarks passes")
    random = RandomMixture(weights, max(contexts) + CHUNK + SPARE)
    ours = {OURS: OurPasses(random.runner)}
    for tokens in contexts:
        figures = measure(ours, {}, tokens, 1, sizes, turns)[OURS]
        head, text = random.section(tokens, figures, about)
        write(out, MIXTURE_TITLE, {head: text})
        console.print(text, markup=False)


def write(out: Path, title: str, sections: dict[str, str]) -> None:
    """Write sections into a report."""
    old = out.read_text() if out.is_file() else ""
    out.write_text(with_sections(title, old, sections))


if __name__ == "__main__":
    typer.run(main)
