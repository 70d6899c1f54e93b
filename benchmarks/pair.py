"""`python -m benchmarks pair`: a target with draft, compared with llama.cpp.

One `LLM` answers every prompt plainly and with trees, in turns, so that drift of the machine meets both alike.
The first turn is that of a cold planner. llama.cpp (its Python binding, one stream) takes its turn after them.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.peers.processes import PeerProcess
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS, write
from benchmarks.tables import origin
from specinfer.cli.about import about_this_run
from specinfer.cli.demo import PAIR
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.llm import LLM, SamplingParams
from specinfer.model.weights.source import KEPT_GGUF
from specinfer.system.threads import thread_count
from specinfer.tokenizer import Tokenizer

STREAMS = (1, 4, 16)
MODES = {"plain": "off", "trees": "tree"}
LLAMA_CPP = "llama.cpp plain"
_LONGEST = 256
"""Maximum tokens of a prompt: decoding is measured."""
Rates = dict[tuple[str, int, str], list[float]]
"""Tokens per second of every turn, by kind, streams and mode."""


def main(
    prompts: Annotated[list[Path], typer.Option(help="Prompts, JSONL; a kind of text each.")],
    turns: Annotated[int, typer.Option(min=1, help="Turns of all modes.")] = 3,
    few: Annotated[int, typer.Option(min=1, help="Prompts of a turn at one stream.")] = 4,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per prompt.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    model: str = PAIR[0],
    draft: str = PAIR[1],
    llama_cpp: Annotated[Path | None, typer.Option(help="Python with llama-cpp-python.")] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "pair",
) -> None:
    """Measure a target with its draft."""
    directory = resolve_model(model)
    tokenizer = Tokenizer.load(directory)
    texts = {path.stem: [_encoded(tokenizer, text) for text in mixed_texts(path)] for path in prompts}
    rates: Rates = {}
    with LLM(model, draft=draft, max_num_seqs=max(STREAMS)) as llm, tempfile.TemporaryDirectory() as folder:
        file = {"source": (directory / KEPT_GGUF).resolve()}
        peer = PeerProcess("llama_cpp", "", file, Path(folder), llama_cpp) if llama_cpp else None
        for turn in range(turns):
            for kind, own in texts.items():
                for streams in STREAMS:
                    console.print(f"turn {turn + 1}: {kind}, {streams} streams")
                    count = few if streams == 1 else 2 * streams if streams < 16 else streams
                    chosen = [own[(turn * count + i) % len(own)] for i in range(count)]
                    for mode in list(MODES)[:: -1 if turn % 2 else 1]:
                        rate = tokens_per_second(llm, chosen, streams, MODES[mode], new_tokens, temperature)
                        rates.setdefault((kind, streams, mode), []).append(rate)
                    if peer is not None and streams == 1 and not temperature:
                        rates.setdefault((kind, 1, LLAMA_CPP), []).append(
                            _of_llama_cpp(peer, chosen, new_tokens)
                        )
            kinds = "greedy" if not temperature else f"temperature {temperature}"
            shown = f"{kinds}, {new_tokens} new tokens a prompt; turn {turn + 1} of {turns}, the first one is cold."
            about = origin(about_this_run("python -m benchmarks pair"))
            write(out, report(f"{model} with the draft {draft}", f"{about}; {shown}", rates))
        if peer is not None:
            peer.close()


def tokens_per_second(
    llm: LLM,
    prompts: Sequence[list[int]],
    streams: int,
    speculation: str,
    new_tokens: int,
    temperature: float,
) -> float:
    """Return the pace of all prompts, so many at once, reading included."""
    params = SamplingParams(
        temperature=temperature, seed=1, max_tokens=new_tokens, ignore_eos=True, speculation=speculation
    )
    started = time.perf_counter()
    for start in range(0, len(prompts), streams):
        llm.generate(
            [{"prompt_token_ids": p} for p in prompts[start : start + streams]], params, use_tqdm=False
        )
    return len(prompts) * new_tokens / (time.perf_counter() - started)


def _of_llama_cpp(peer: PeerProcess, prompts: Sequence[list[int]], new_tokens: int) -> float:
    task = {
        "prompts": [prompts[0], *prompts],
        "few": len(prompts),
        "new_tokens": new_tokens,
        "threads": thread_count(0),
        "lookup": False,
    }
    found = peer.measure(task)
    if isinstance(found, str):
        raise SystemExit(f"llama.cpp: {found}")
    return float(next(iter(found.values()))["1"])


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": text}])[-_LONGEST:]


def report(title: str, about: str, rates: Mapping[tuple[str, int, str], Sequence[float]]) -> str:
    """Return the page: medians, ranges and ratios over turns."""
    lines = [f"# {title}", "", about, "", "| prompts | streams | mode | tokens/s | over plain | first turn |"]
    lines.append("|---|---|---|---|---|---|")
    for (kind, streams, mode), own in rates.items():
        plain = rates[kind, streams, "plain"]
        ratios = [a / b for a, b in zip(own, plain, strict=True)]
        pace = f"{median(own):.1f} ({min(own):.1f} to {max(own):.1f})"
        over = "" if mode == "plain" else f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        first = "" if mode == "plain" else f"{ratios[0]:.2f}x"
        lines.append(f"| {kind} | {streams} | {mode} | {pace} | {over} | {first} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
