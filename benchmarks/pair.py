"""`make bench`: a target with drafts, compared with llama-server and vLLM.

All servers get the same files and are called over HTTP. Our server answers every prompt plainly and with trees; there
is one for each `--draft`. One llama-server decodes plainly, another with the same draft, if that is a whole model. The
servers alternate, so that drift of the machine affects all. A mode answers its prompts twice: unread, and again, when
its prefix cache has them. The planner is cold in the first turn. vLLM serves the default model in bfloat16, plainly and
with n-grams.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import typer

from benchmarks.peers.processes import write_float_model
from benchmarks.peers.servers import Server
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS, write
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.demo import PAIR
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.hub.resolve import is_pulled
from specinfer.model.weights.source import KEPT_GGUF
from specinfer.service.api_keys import make_key, write_keys
from specinfer.system.threads import thread_count
from specinfer.system.turns import alternate, ratios

PROMPTS = Path("tests/data/prompts.jsonl")
STREAMS = (1, 4, 16)
PLAIN = "plain"
LLAMA_SERVER = "llama-server"
N_GRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
_CONTEXT = 1024
"""Context tokens per stream (concurrent request) in llama-server."""


class RoundRates(NamedTuple):
    """Tokens per second of a turn."""

    unread: float
    """First answers, with the reading of the prompts."""
    read: float
    """Second answers: the prefix cache has the prompts."""


Rates = dict[tuple[str, int, str], list[RoundRates]]
"""Rates of every turn, by (kind of text, streams, mode)."""
Mode = Callable[[Sequence[str], int, int], float]
"""(texts, concurrent requests, tokens per answer) -> tokens per second."""


def main(
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Prompts, JSONL; a kind of text each; tests/data/prompts.jsonl.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of all modes.")] = 3,
    few: Annotated[int, typer.Option(min=1, help="Prompts of a turn at one stream.")] = 4,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per prompt.")] = 64,
    streams: Annotated[list[int] | None, typer.Option(min=1, help="Requests at once; 1, 4 and 16.")] = None,
    longest: Annotated[
        int, typer.Option(min=1, help="Maximum characters of a prompt: the end of longer texts.")
    ] = 800,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    model: str = PAIR[0],
    draft: Annotated[
        list[str] | None, typer.Option(help="Drafts, each with a server.", show_default=PAIR[1])
    ] = None,
    llama_server: Annotated[Path | None, typer.Option(help="llama.cpp's server.")] = None,
    vllm_python: Annotated[Path | None, typer.Option(help="Python that has vLLM.")] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "pair",
) -> None:
    """Measure a target with its drafts."""
    drafts = draft or [PAIR[1]]
    texts = {
        path.stem: cycle([text[-longest:] for text in mixed_texts(path)]) for path in prompts or [PROMPTS]
    }
    rates: Rates = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        modes = own_modes(stack, model, drafts, temperature, Path(folder))
        if llama_server is not None:
            modes |= llama_modes(stack, llama_server, model, drafts[0], temperature, Path(folder))
        if vllm_python is not None:
            modes |= vllm_modes(stack, vllm_python, model, temperature, Path(folder))
        for turn in range(turns):
            for kind, kind_prompts in texts.items():
                for at_once in streams or STREAMS:
                    chosen = list(islice(kind_prompts, few if at_once == 1 else at_once))
                    for mode in alternate(modes, turn):
                        pair = RoundRates(*[modes[mode](chosen, at_once, new_tokens) for _ in range(2)])
                        shown = f"{pair.unread:.1f}, {pair.read:.1f} tokens/s"
                        console.print(f"turn {turn + 1}: {kind}, {at_once} streams, {mode}: {shown}")
                        rates.setdefault((kind, at_once, mode), []).append(pair)
            kinds = "greedy" if not temperature else f"temperature {temperature}"
            shown = f"{kinds}, {new_tokens} new tokens a prompt; turn {turn + 1} of {turns}, the first one is cold."
            about = origin(about_this_run("python -m benchmarks pair"))
            write(out, report(f"{model} with {', '.join(drafts)}", f"{about}; {shown}", rates))


def own_modes(
    stack: ExitStack, model: str, drafts: Sequence[str], temperature: float, folder: Path
) -> dict[str, Mode]:
    """Start a server for each draft; return plain decoding and trees.

    Each mode has its own API key, and thus its own prefix cache, so neither finds the other's prompts cached.
    """
    made = {name: make_key(name) for name in (PLAIN, "trees")}
    write_keys(folder / "keys", [entry for _, entry in made.values()])
    command = [sys.executable, "-m", "specinfer.cli", "serve", "--listen", "{host}:{port}", "--model", model]
    command += ["--api-keys", str(folder / "keys"), "--prefix-scope", "key"]
    modes: dict[str, Mode] = {}
    for number, draft in enumerate(drafts):
        log = folder / f"specinfer-{number}.log"
        server = stack.enter_context(Server([*command, "--draft", draft], log, made[PLAIN][0]))
        for name, speculation in ((PLAIN, "off"), ("trees", "tree")):
            fields = {"temperature": temperature, "speculation": speculation}
            mode = partial(server.tokens_per_second, fields=fields, api_key=made[name][0])
            modes.setdefault(name if name == PLAIN or len(drafts) == 1 else f"trees of {draft}", mode)
    return modes


def llama_modes(
    stack: ExitStack, binary: Path, model: str, draft: str, temperature: float, folder: Path
) -> dict[str, Mode]:
    """Start llama-server plainly and with the draft; return both modes."""
    target = (resolve_model(model) / KEPT_GGUF).resolve()
    threads, slots = thread_count(0), max(STREAMS)
    flags = {"--host": "{host}", "--port": "{port}", "-m": target, "-t": threads, "-tb": threads}
    flags |= {"-np": slots, "-c": slots * _CONTEXT}
    common = [str(binary), *(str(part) for flag in flags.items() for part in flag)]
    modes: dict[str, Mode] = {}
    variants: dict[str, list[str]] = {"plain": []}
    if is_pulled(draft):
        small = (resolve_model(draft) / KEPT_GGUF).resolve()
        variants["draft"] = ["--spec-type", "draft-simple", "-md", str(small)]
    for name, extra in variants.items():
        server = stack.enter_context(Server([*common, *extra], folder / f"llama-{name}.log"))
        fields = {"temperature": temperature, "cache_prompt": True}
        modes[f"{LLAMA_SERVER} {name}"] = partial(server.tokens_per_second, fields=fields)
    return modes


def vllm_modes(
    stack: ExitStack, python: Path, model: str, temperature: float, folder: Path
) -> dict[str, Mode]:
    """Start vLLM plainly and with n-grams, on the model in bfloat16; return both modes."""
    command = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--host",
        "{host}",
        "--port",
        "{port}",
    ]
    command += ["--model", str(write_float_model(model)), "--dtype", "bfloat16", "--max-model-len", "2048"]
    modes: dict[str, Mode] = {}
    for name, extra in (("plain", []), ("n-gram", ["--speculative-config", json.dumps(N_GRAM)])):
        extra = [part.replace("{", "{{").replace("}", "}}") for part in extra]
        server = stack.enter_context(Server([*command, *extra], folder / f"vllm-{name}.log"))
        modes[f"vLLM {name}"] = partial(server.tokens_per_second, fields={"temperature": temperature})
    return modes


def report(title: str, about: str, rates: Rates) -> str:
    """Return the page: medians, ranges and ratios over turns."""
    columns = ["streams", "mode", "tokens/s", "over plain", "first turn", "over the best of llama-server"]
    lines = [f"# {title}", "", about]
    for part, heading in (
        ("read", "Prompts read before"),
        ("unread", "Prompts unread, their reading included"),
    ):
        lines += ["", f"## {heading}", "", *head(columns, "prompts")]
        for kind, streams, mode in rates:
            in_kind = {
                m: [getattr(turn, part) for turn in turns]
                for (k, s, m), turns in rates.items()
                if (k, s) == (kind, streams)
            }
            lines.append(line(kind, [str(streams), mode, *_cells(mode, in_kind)]))
    return "\n".join(lines) + "\n"


def _cells(mode: str, rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a mode's cells: rate, gain over plain, of the first turn, over llama-server."""
    figures = rates[mode]
    gains = ratios(figures, rates[PLAIN])
    pace = f"{median(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"
    over, first = ("", "") if mode == PLAIN else (_ratio(gains), f"{gains[0]:.2f}x")
    peers = [of_peer for name, of_peer in rates.items() if LLAMA_SERVER in name]
    best = [max(turn) for turn in zip(*peers, strict=True)] if LLAMA_SERVER not in mode else []
    return [pace, over, first, _ratio(ratios(figures, best)) if best else ""]


def _ratio(gains: Sequence[float]) -> str:
    return f"{median(gains):.2f}x ({min(gains):.2f} to {max(gains):.2f})"


if __name__ == "__main__":
    typer.run(main)
