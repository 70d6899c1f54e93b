"""`specinfer train speculator`: make a corpus, train and report within a given time."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specinfer.errors import InvalidInputError, SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.llm.draft_gains import advice, compare
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.draft_checkpoint import fingerprint_in, target_config
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import finished_jobs, read_corpora
from specinfer.training.distil import console
from specinfer.training.feature_training import think_aloud
from specinfer.training.features import keeper
from specinfer.training.generate import LABEL_WIDTH
from specinfer.training.make_corpus import CorpusMaker, continuation_jobs
from specinfer.training.run import Device, Target, Threads, place_for
from specinfer.training.train_features import feature_layers, train_eagle, train_medusa
from specinfer.training.train_ssm import train_ssm

CORPUS_SHARE, TRAINING_SHARE = 1 / 3, 1 / 4
"""Share of time for the corpus, and the minimum share for training."""
MAX_NEW_TOKENS, MIN_NEW_TOKENS = 224, 32
"""Maximum tokens of a continuation; minimum that the time must allow."""
MIN_PROMPTS = 10
LARGE = 1e9
"""Minimum parameters of a target to choose EAGLE or heads."""
BATCH, BATCH_OF_LARGE = 48, 16
"""Continuations at once, limited by the memory of their caches."""
NO_EAGLE = ("opt", "gpt_neox")
"""Families without EAGLE: biased norms or learned positions."""


class SpeculatorMethod(StrEnum):
    """Kind of the speculator; `auto` chooses by the size of the target."""

    AUTO = "auto"
    SSM = "ssm"
    EAGLE = "eagle"
    MEDUSA = "medusa"


class ChosenMethod(NamedTuple):
    method: SpeculatorMethod
    reason: str


def parameters(config: ModelConfig) -> int:
    """Return the approximate number of parameters, without biases and norms."""
    attention = 2 * config.hidden_size * config.head_dim * (config.heads + config.kv_heads)
    mlp = (3 if config.gated else 2) * config.hidden_size * config.intermediate_size
    embeddings = (1 if config.tied_embeddings else 2) * config.vocab_size * config.hidden_size
    return config.layers * (attention + mlp) + embeddings


def choose_method(config: ModelConfig) -> ChosenMethod:
    """Choose a method by the size of the target.

    Small targets get an SSM, which had the best acceptance on the default target and needs no hidden states. For a
    large target, a reader of hidden states learns more in a short training than two layers of an SSM, and its cost is
    small compared to the target's pass.
    """
    size = f"{parameters(config) / 1e6:,.0f} M parameters"
    if parameters(config) < LARGE:
        return ChosenMethod(
            SpeculatorMethod.SSM, f"{size}, under {LARGE / 1e6:,.0f} M: an SSM of two target layers"
        )
    if config.family in NO_EAGLE:
        reason = f"{size}, and EAGLE has no layer of family {config.family}: heads on hidden states"
        return ChosenMethod(SpeculatorMethod.MEDUSA, reason)
    return ChosenMethod(
        SpeculatorMethod.EAGLE, f"{size}, at least {LARGE / 1e6:,.0f} M: a layer on hidden states"
    )


@dataclass(slots=True)
class RunProgress:
    """State of a run, stored in its work directory."""

    target: str
    """Hash of the target's embeddings."""
    prompts: str
    method: str
    minutes: float
    seed: int
    spent_s: float = 0.0
    """Seconds spent on corpus and features."""
    training_minutes: float | None = None
    """Minutes for training; None until corpus and features are finished."""

    @classmethod
    def resume(cls, work: Path, fresh: "RunProgress") -> "RunProgress":
        """Return an interrupted run's state; `fresh` if there is none."""
        path = work / "progress.json"
        if not path.is_file():
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            return fresh
        progress = cls(**json.loads(path.read_bytes()))
        for name in ("target", "prompts", "method", "minutes", "seed"):
            before, now = getattr(progress, name), getattr(fresh, name)
            if before != now:
                option = {"target": "model"}.get(name, name)
                reason = f"{work} has a run with {before}; --overwrite removes it and starts again"
                raise SettingError(option, now, reason)
        return progress

    def save(self, work: Path) -> None:
        """Write the state atomically."""
        partial = work / "progress.part"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(work / "progress.json")

    @contextmanager
    def timed(self, work: Path) -> Iterator[None]:
        """Add the context's duration to `spent_s`, even if interrupted."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent_s += time.monotonic() - began
            self.save(work)


_TRAINERS: Mapping[SpeculatorMethod, Callable[..., None]] = {
    SpeculatorMethod.SSM: train_ssm,
    SpeculatorMethod.EAGLE: train_eagle,
    SpeculatorMethod.MEDUSA: train_medusa,
}


def train_speculator(
    prompts: Annotated[Path, typer.Option(help=r"JSONL file of objects with `turns: \[text]`.")],
    model: Target = DEFAULT_MODEL,
    minutes: Annotated[float, typer.Option(help="Time for everything, a third of it for the corpus.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the checkpoint; not given: ./speculator-MODEL.")
    ] = None,
    method: Annotated[
        SpeculatorMethod, typer.Option(help="auto: an SSM under 1,000 M parameters, else EAGLE.")
    ] = SpeculatorMethod.AUTO,
    seed: Annotated[int, typer.Option(help="Seed of all sampling.")] = 0,
    threads: Threads = 0,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again, and replace --out at the end.")
    ] = False,
) -> None:
    """Train a speculator for your own target: corpus, features, training, report.

    SIGINT (Ctrl-C) and SIGTERM keep finished work next to --out; the same command continues from there.
    """
    directory = resolve_model(model)
    config = target_config(directory)
    texts = read_prompts(prompts)
    if len(texts) < MIN_PROMPTS:
        raise InvalidInputError(
            "prompts", str(prompts), f"has {len(texts)} prompts, {MIN_PROMPTS} or more are needed"
        )
    out = out or Path(f"speculator-{directory.name}")
    if not overwrite and is_draft_checkpoint(out):
        raise SettingError(
            "out", str(out), "has a finished speculator; --overwrite trains again and replaces it"
        )
    place = place_for(device, threads)
    chosen = (
        choose_method(config) if method is SpeculatorMethod.AUTO else ChosenMethod(method, "as asked for")
    )
    console.print(f"method: {chosen.method} ({chosen.reason})", highlight=False)
    work = out.with_name(f"{out.name}.work")
    if overwrite:
        _throw_away(work)
    fresh = RunProgress(fingerprint_in(directory), prompts.name, chosen.method, minutes, seed)
    progress = RunProgress.resume(work, fresh)
    corpus = work / "corpus.jsonl"
    if progress.training_minutes is None:
        _prepare(directory, config, texts, corpus, progress, place)
    else:
        console.print(f"corpus: {len(finished_jobs(corpus))} continuations are in {corpus}", soft_wrap=True)
    given: dict[str, Any] = {"corpus": [corpus], "out": out, "work": work, "model": model, "seed": seed}
    given |= {"minutes": progress.training_minutes, "threads": threads, "device": device}
    _TRAINERS[chosen.method](**given, overwrite=overwrite)
    (work / "progress.json").unlink()
    trained = json.loads((out / "config.json").read_bytes())["trained"]
    for line in report(chosen.method, out, work, trained):
        typer.echo(line)
    parts, held_out = read_corpora([corpus])
    tokens = sum(len(item.output) for part in (*parts, held_out) for item in part)
    console.print("measuring the speed with the new draft")
    for line in advice(model, compare(model, str(out), [item.prompt for item in held_out], place), tokens):
        typer.echo(line)


def _throw_away(work: Path) -> None:
    """Remove an earlier run's state. Features stay, since their names have hashes."""
    for path in (*work.glob("state*.pt"), work / "progress.json", work / "corpus.jsonl"):
        path.unlink(missing_ok=True)


def _prepare(
    directory: Path,
    config: ModelConfig,
    texts: tuple[str, ...],
    corpus: Path,
    progress: RunProgress,
    place: str,
) -> None:
    """Make corpus and features; store the time left for training."""
    work, large = corpus.parent, parameters(config) >= LARGE
    batch = min(BATCH_OF_LARGE if large else BATCH, len(texts))
    tokenizer = Tokenizer.load(directory)
    runner = load_checked(directory, RunnerOptions(kv_tokens=max(batch * 1024, 8192), device=place))
    _check_time(runner, progress.minutes)
    if known := len(finished_jobs(corpus)):
        console.print(f"continuing with {known} continuations in {corpus}", soft_wrap=True, highlight=False)
    layers = _layers_read(SpeculatorMethod(progress.method), config)
    runner.keep_features(layers)
    asked = {f"prompt-{i}": text for i, text in enumerate(texts)}
    jobs = continuation_jobs(tokenizer, asked, 0.8, progress.seed)
    with progress.timed(work):
        left = CORPUS_SHARE * 60 * progress.minutes - progress.spent_s
        maker = CorpusMaker(runner, batch, progress.seed, keeper(work, layers) if layers else None)
        continuations = maker.run("corpus", corpus, jobs, MAX_NEW_TOKENS, LABEL_WIDTH, max(left, 0.0))
    tokens = sum(len(item.output) for item in continuations.values())
    console.print(f"corpus: {len(continuations)} continuations, {tokens} tokens", highlight=False)
    if len(continuations) < MIN_PROMPTS:
        reason = f"too few minutes: a third of them gave {len(continuations)} continuations, {MIN_PROMPTS} are needed"
        raise SettingError("minutes", progress.minutes, reason)
    runner.keep_features(())
    if layers:
        with progress.timed(work):
            parts, held_out = read_corpora([corpus])
            for part in (*parts, held_out):
                think_aloud(runner, part, layers, work)
    least = TRAINING_SHARE * progress.minutes
    progress.training_minutes = max(progress.minutes - progress.spent_s / 60, least)
    progress.save(work)


def _layers_read(method: SpeculatorMethod, config: ModelConfig) -> tuple[int, ...]:
    """Return the layers whose hidden states a method reads."""
    return {
        SpeculatorMethod.EAGLE: feature_layers("", config),
        SpeculatorMethod.MEDUSA: (config.layers,),
    }.get(method, ())


def _check_time(runner: ModelRunner, minutes: float) -> None:
    """Check that the time suffices, by a pass of one token."""
    sequence = runner.open()
    pass_s = math.inf
    for _ in range(4):  # the first pass warms up; the fastest counts
        began = time.monotonic()
        runner.forward([Segment(sequence, (0,), want_last=True)])
        pass_s = min(pass_s, time.monotonic() - began)
    runner.cache.release(sequence)
    least = MIN_NEW_TOKENS * pass_s / CORPUS_SHARE / 60
    if minutes < least or minutes <= 0:
        pass_ms = f"{1000 * pass_s:.0f} ms"
        reason = f"must be over {least:.2g} minutes, as a pass of the target takes {pass_ms} here"
        raise SettingError("minutes", minutes, reason)


def report(method: SpeculatorMethod, out: Path, work: Path, trained: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report's lines: held-out success and the checkpoint's path."""
    given = (
        "if all guesses before were correct" if method is SpeculatorMethod.SSM else "after the correct tokens"
    )
    yield f"held out: the target's next token among the first k guesses of {method}, {given}"
    yield "depth   top 1   top 2   top 3   top 5"
    for depth, success in enumerate(trained["success_held_out"], 1):
        yield f"{depth:5}" + "".join(f" {100 * success[f'top{k}']:5.1f} %" for k in (1, 2, 3, 5))
    yield f"{trained['tokens_seen']:,} tokens seen; the checkpoint is {out}, and can be moved anywhere"
    yield f"{work} has the corpus and may be removed"
