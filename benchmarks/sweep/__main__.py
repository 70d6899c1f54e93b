"""guidellm against `specinfer serve` and vLLM's server for CPUs, each plain and with its speculation.

    python -m benchmarks.sweep --prompts prompts.jsonl

Writes `benchmarks/results/sweep.json` and `.md`. All servers run at once and idle while another one is measured; they
take turns at every level of load, every second time in reverse order. A level's prompts are the same for all servers
and come once in a turn; the text is greedy and as long as asked for.
"""

import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.drafts.prompts import mixed_texts
from benchmarks.publish import RESULTS, publish
from benchmarks.runtime.float_model import write_float_model
from benchmarks.runtime.peers import PEERS
from benchmarks.sweep.reading import read_counters, read_guidellm, speculation
from benchmarks.sweep.servers import NAME, serving, ways
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.show import progress_bar
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.hub import DEFAULT_MODEL, resolve_model

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDELLM = PEERS / ".venvs" / "guidellm" / "bin" / "guidellm"
LEVELS = {1: 4, 4: 8, 16: 32}
"""Requests at once -> requests."""
LONGEST_S = 300
COLUMNS = {
    "tokens_per_second": ("tokens/s", "{:.0f}"),
    "latency_s": ("latency, s", "{:.2f}"),
    "latency_p95_s": ("95th percentile", "{:.2f}"),
    "ttft_ms": ("first token, ms", "{:.0f}"),
    "itl_ms": ("between tokens, ms", "{:.1f}"),
    "tokens_per_step": ("tokens a step", "{:.2f}"),
    "acceptance_rate": ("acceptance rate", "{:.2f}"),
}


def run_guidellm(
    url: str, streams: int, prompts: Sequence[str], new_tokens: int, folder: Path
) -> dict[str, float]:
    """Return what guidellm measures with these prompts, and what the server counted meanwhile."""
    data, out = folder / "prompts.jsonl", folder / "guidellm.json"
    rows = [{"prompt": prompt, "output_tokens_count": new_tokens} for prompt in prompts]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    backend = f"kind=openai_http,target={url},model={NAME},extras.body.temperature=0"
    command = [str(GUIDELLM), "run", "--disable-console", "--backend", backend]
    command += ["--profile", f"kind=concurrent,streams={streams}"]
    command += ["--constraint", f"kind=max_requests,count={len(prompts)}"]
    command += ["--tokenizer", f"kind=hf_auto,model={resolve_model(DEFAULT_MODEL)}"]
    command += ["--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={out}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    before = scrape(url)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environment
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["(no output)"])[-1]
        raise UnavailableError(f"guidellm ended with code {done.returncode}: {last}")
    return read_guidellm(json.loads(out.read_text())) | speculation(before, scrape(url))


def scrape(url: str) -> dict[str, float]:
    """Return a server's counters."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=LONGEST_S) as answer:
        return read_counters(answer.read().decode())


def measure(urls: dict[str, str], prompts: Sequence[str], turns: int, new_tokens: int) -> dict[str, Any]:
    """Return the figures of every turn by server and level."""
    found: dict[str, Any] = {name: {str(level): [] for level in LEVELS} for name in urls}
    needed = turns * sum(LEVELS.values())
    if len(prompts) < needed:  # one that comes again would be answered from the prefix caches
        raise InvalidInputError(
            "--prompts", f"{len(prompts)} prompts", f"{needed} are needed for {turns} turns"
        )
    unused = iter(prompts)
    with progress_bar() as bar, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("measuring", total=turns * len(LEVELS) * len(urls))
        for turn in range(turns):
            for level, count in LEVELS.items():
                own = [next(unused) for _ in range(count)]
                for name in list(urls)[:: -1 if turn % 2 else 1]:
                    bar.update(task, description=f"{name}, {level} at once")
                    figures = run_guidellm(urls[name], level, own, new_tokens, Path(folder))
                    found[name][str(level)].append(figures)
                    bar.update(task, advance=1)
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as a table for every level: medians over turns; throughput with its range."""
    lines = [
        "# guidellm beside vLLM",
        "",
        f"{origin(report['about'])}. {DEFAULT_MODEL}, greedy, {report['new_tokens']} new tokens, "
        f"{report['turns']} turns in which servers alternate: medians of turns, in brackets their range.",
        "",
        *(f"- {name}: {flags}" for name, flags in report["flags"].items()),
        "",
    ]
    for level in map(str, LEVELS):
        lines += [f"## {level} at once", "", *head([title for title, _ in COLUMNS.values()], "server")]
        for name, levels in report["servers"].items():
            lines.append(line(name, [cell(key, levels[level]) for key in COLUMNS]))
        lines.append("")
    return "\n".join(lines)


def cell(key: str, turns: Sequence[dict[str, float]]) -> str:
    """One figure over turns; empty where it was not measured."""
    values = [turn[key] for turn in turns if key in turn]
    if not values:
        return ""
    form = COLUMNS[key][1]
    between = f" ({form.format(min(values))} to {form.format(max(values))})" if len(values) > 1 else ""
    return form.format(median(values)) + (between if key == "tokens_per_second" else "")


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    turns: Annotated[int, typer.Option(min=1, help="Turns of all servers.")] = 1,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 64,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "sweep",
) -> None:
    """Measure the servers with guidellm."""
    if not GUIDELLM.exists():
        raise UnavailableError("guidellm is not installed: see benchmarks/peers/README.md")
    served = ways(write_float_model(DEFAULT_MODEL), max(LEVELS))
    report: dict[str, Any] = {"about": about_this_run(), "turns": turns, "new_tokens": new_tokens}
    report["flags"] = {one.name: one.flags for one in served}
    with tempfile.TemporaryDirectory() as logs, serving(served, Path(logs)) as urls:
        report["servers"] = measure(urls, mixed_texts(prompts), turns, new_tokens)
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
