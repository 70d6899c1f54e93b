"""`specinfer train corpus`: let the target continue given and invented prompts."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import (
    Continuation,
    finished_jobs,
    open_prompt,
    usable,
    whole_prompt,
    write_continuations,
)
from specinfer.training.distil import console, progress_bar
from specinfer.training.generate import LABEL_WIDTH, ContinuationJob, continue_prompts
from specinfer.training.run import Device, InterruptionError, pick_device

_INVENTION_TOKENS = 96


def make_corpus(
    prompts: Annotated[Path, typer.Option(help=r"JSONL file of objects with `turns: \[text]`.")],
    out: Annotated[Path, typer.Option(help="JSONL file of continuations; a rerun continues it.")],
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    limit: Annotated[int, typer.Option(help="Number of prompts to use, chosen at random; 0: all.")] = 0,
    invent: Annotated[int, typer.Option(help="Number of further prompts that the target invents.")] = 0,
    temperature: Annotated[
        float, typer.Option(help="Of every second continuation; the others are greedy.")
    ] = 0.8,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum tokens of a continuation.")] = 224,
    batch: Annotated[int, typer.Option(help="Continuations at once.")] = 48,
    seed: Annotated[int, typer.Option(help="Seed of the choice of prompts and of sampling.")] = 0,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the file --out and start again.")
    ] = False,
) -> None:
    """Let the target continue prompts: the corpus for training SSMs.

    Every continuation is written when it is finished, so the same command continues after SIGINT (Ctrl-C),
    SIGTERM or a crash.
    """
    inventions_path = out.with_suffix(".invented.jsonl")
    if overwrite:
        for path in (out, inventions_path):
            path.unlink(missing_ok=True)
    directory = resolve_model(model)
    tokenizer = Tokenizer.load(directory)
    texts = list(read_prompts(prompts))
    random.Random(seed).shuffle(texts)
    chosen = texts[:limit] if limit else texts
    options = RunnerOptions(kv_tokens=batch * 1024, device=pick_device(device))
    runner = load_checked(directory, options)
    maker = CorpusMaker(runner, batch, seed)
    invented = maker.invent(tokenizer, inventions_path, invent)
    asked = {f"prompt-{i}": text for i, text in enumerate(chosen)} | invented
    jobs = continuation_jobs(tokenizer, asked, temperature, seed)
    known = len(finished_jobs(out))
    written = maker.run("continuing", out, jobs, max_new_tokens, LABEL_WIDTH)
    if len(written) == known:
        raise SettingError("out", str(out), "is finished; --overwrite removes it and starts again")
    tokens = sum(len(item.output) for item in written.values())
    console.print(f"{out}: {len(written)} continuations, {tokens} tokens, {len(invented)} prompts invented")


def continuation_jobs(
    tokenizer: Tokenizer, texts: Mapping[str, str], temperature: float, seed: int
) -> list[tuple[str, tuple[int, ...], float]]:
    """Return one job per prompt, shuffled; every second job is greedy.

    Because of the random order, any part of the jobs is a random sample.
    """
    jobs = [
        (job_id, whole_prompt(tokenizer, text), temperature if i % 2 else 0.0)
        for i, (job_id, text) in enumerate(sorted(texts.items()))
    ]
    random.Random(seed).shuffle(jobs)
    return jobs


class CorpusMaker:
    """Run unfinished jobs, and write their results to a file."""

    def __init__(
        self,
        runner: ModelRunner,
        batch: int,
        seed: int,
        keep: Callable[[Continuation, NDArray[np.int16]], None] | None = None,
    ) -> None:
        """Create the maker; `batch` continuations run at once, `keep` as in `continue_prompts`."""
        self._runner, self._batch, self._seed, self._keep = runner, batch, seed, keep

    def invent(
        self, tokenizer: Tokenizer, path: Path, count: int, seconds: float = math.inf
    ) -> dict[str, str]:
        """Return the usable ones of at most `count` user turns that the model invents, by id."""
        stops = self._runner.config.eos_token_ids
        opening = open_prompt(tokenizer, stops)
        jobs = [(f"invented-{i}", opening, 1.0) for i in range(count)]
        inventions = self.run("inventing", path, jobs, _INVENTION_TOKENS, 0, seconds)
        return {
            i: tokenizer.decode(item.output)
            for i, item in inventions.items()
            if usable(tokenizer, item.output, stops)
        }

    def run(
        self,
        what: str,
        path: Path,
        jobs: Sequence[tuple[str, tuple[int, ...], float]],
        max_new_tokens: int,
        label_width: int = 0,
        seconds: float = math.inf,
    ) -> dict[str, Continuation]:
        """Return the results by id, in the order of the jobs.

        Jobs that did not start within `seconds` have no result.
        """
        done = finished_jobs(path)
        for job_id, prompt, _ in jobs:
            if job_id in done and done[job_id].prompt != prompt:
                reason = f"has another prompt for {job_id}; --overwrite removes the file and starts again"
                raise SettingError("out", str(path), reason)
        missing = [
            ContinuationJob(job_id, prompt, temperature, _job_seed(self._seed, job_id))
            for job_id, prompt, temperature in jobs
            if job_id not in done
        ]
        max_len = min(self._runner.cache.capacity_tokens // self._batch, self._runner.config.max_positions)
        fitting = [job for job in missing if len(job.prompt) + max_new_tokens <= max_len]
        if len(fitting) < len(missing):
            left_out = len(missing) - len(fitting)
            console.print(f"{what}: left out {left_out} prompts over {max_len - max_new_tokens} tokens")
        try:
            write_continuations(path, self._results(what, fitting, max_new_tokens, label_width, seconds))
        except KeyboardInterrupt as error:
            rest = f"{len(finished_jobs(path))} of {len(done) + len(fitting)} are in {path}"
            how = "the same command without --overwrite continues"
            raise InterruptionError(f"while {what} prompts, {rest}; {how}") from error
        results = finished_jobs(path)
        return {job_id: results[job_id] for job_id, _, _ in jobs if job_id in results}

    def _results(
        self,
        what: str,
        jobs: Sequence[ContinuationJob],
        max_new_tokens: int,
        label_width: int,
        seconds: float,
    ) -> Iterator[tuple[str, Continuation]]:
        stops = self._runner.config.eos_token_ids
        with progress_bar() as bar:
            timed, began = math.isfinite(seconds), time.monotonic()
            task = bar.add_task(what, total=seconds if timed else len(jobs))

            def over() -> bool:
                passed = time.monotonic() - began
                if timed:
                    bar.update(task, completed=passed)
                return passed >= seconds

            for job, item in continue_prompts(
                self._runner, jobs, self._batch, max_new_tokens, stops, label_width, over, self._keep
            ):
                yield job.job_id, item
                if not timed:
                    bar.advance(task)


def _job_seed(seed: int, job_id: str) -> int:
    return random.Random(f"{seed}/{job_id}").getrandbits(63)
