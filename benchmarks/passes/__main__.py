"""`python -m benchmarks passes MODEL`: passes by rows and context, with llama.cpp.

Writes one section of a report for each model and context; sections of others stay.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.passes.measure import CHUNK, TITLE, Figures, OurPasses, SystemTimes, matrix_bytes, section
from benchmarks.peers.processes import PeerProcess
from benchmarks.publish import RESULTS
from benchmarks.tables import with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.errors import SettingError, UnavailableError
from specinfer.hub import model_name, resolve_model
from specinfer.model.threads import use_threads
from specinfer.model.weights.source import kept_gguf

OURS, PEER = "SpecInfer", "llama.cpp"
FEW = 8
"""Minimum rows of all passes of a size in a turn."""


def main(
    models: Annotated[list[str], typer.Argument(help="Names, directories or GGUF files.")],
    rows: Annotated[str, typer.Option(help="Rows of the passes.")] = "1,2,3,4,6,8,12,16,32,64",
    context: Annotated[str, typer.Option(help="Tokens before the passes.")] = "256,4096",
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of the systems.")] = 3,
    llama_python: Annotated[Path | None, typer.Option(help="Python that has llama-cpp-python.")] = None,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "passes.md",
) -> None:
    """Measure passes of models."""
    use_threads(threads)
    sizes, contexts = numbers("rows", rows), numbers("context", context)
    about = about_this_run("python -m benchmarks passes")
    for model in models:
        directory = resolve_model(model)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            peer = None
            if llama_python is not None:
                peer = llama_peer(directory, llama_python, Path(folder))
                stack.callback(peer.close)
            ours = OurPasses(directory, max(contexts))
            size = matrix_bytes(directory, ours.runner.config)
            for tokens in contexts:
                figures = measure(ours, peer, tokens, sizes, turns)
                head = f"{model_name(model)} after {tokens} tokens"
                text = section(head, figures, size, about | {"weights": str(ours.runner.weights)})
                write(out, {head: text})
                console.print(text, markup=False)


def numbers(option: str, text: str) -> list[int]:
    """Return the ascending whole numbers of a list with commas.

    Raises:
        SettingError: if it is none.
    """
    found = sorted({int(part) for part in text.split(",") if part.strip().isdecimal()})
    if not found or found[0] < 1 or len(found) != len(text.split(",")):
        raise SettingError(option, text, "must be different numbers from 1 on, with commas: 1,2,4")
    return found


def llama_peer(directory: Path, python: Path, folder: Path) -> PeerProcess:
    """Return llama.cpp on the same file.

    Raises:
        SettingError: if the model was made of no GGUF file.
    """
    path = kept_gguf(directory)
    if path is None:
        raise SettingError(
            "llama-python", str(python), f"{directory} has no GGUF file that llama.cpp could read"
        )
    return PeerProcess("llama_cpp_passes", "", {"source": path.resolve()}, folder, python)


def measure(
    ours: OurPasses, peer: PeerProcess | None, tokens: int, sizes: list[int], turns: int
) -> dict[str, Figures]:
    """Return figures by system, from turns in alternating order.

    A prompt's speed is that of a chunk in every second turn, or of the context if that is long.
    """
    task: dict[str, Any] = {"context": tokens, "threads": ours.threads}
    systems: dict[str, Callable[[list[int]], SystemTimes]] = {OURS: partial(ours.measure, tokens)}
    if peer is not None:
        systems[PEER] = lambda wanted: of_peer(peer, task | {"rows": wanted})
    found = {system: Figures() for system in systems}
    several = [size for size in sizes for _ in range(max(1, FEW // size))]
    for turn in range(turns):
        wanted = [1, *several, *([CHUNK] if tokens <= CHUNK and turn % 2 == 0 else [])]
        for system in sorted(systems, reverse=turn % 2 == 0):
            reading = systems[system](wanted)
            found[system].add(wanted[1:], reading.seconds[1:])
            if tokens > CHUNK and turn == 0:
                found[system].prompt_rates.append(tokens / reading.context)
    return found


def of_peer(peer: PeerProcess, task: dict[str, Any]) -> SystemTimes:
    """Return what llama.cpp measured.

    Raises:
        UnavailableError: if it failed.
    """
    answer = peer.measure(task)
    if isinstance(answer, str):
        raise UnavailableError(f"llama.cpp {answer}")
    return SystemTimes(**answer)


def write(out: Path, sections: dict[str, str]) -> None:
    """Put sections into a report."""
    old = out.read_text() if out.is_file() else ""
    out.write_text(with_sections(TITLE, old, sections))


if __name__ == "__main__":
    typer.run(main)
