"""The stages of `specinfer train speculator`; each continues where it was interrupted."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import typer

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import open_weights
from specinfer.model.weights.source import algorithm_of, is_draft_checkpoint
from specinfer.system.atomic_files import replacing
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import finished_jobs, read_corpora
from specinfer.training.distil import console
from specinfer.training.feature_training import FeatureFlags
from specinfer.training.generate import LABEL_WIDTH
from specinfer.training.make_corpus import CorpusMaker, continuation_jobs
from specinfer.training.reading.drafts import KeptTraining, active_units, read_units
from specinfer.training.reading.kept import HELD_OUT, KeptTexts
from specinfer.training.reading.reader import read_texts
from specinfer.training.reading.texts import pieces
from specinfer.training.reading.writer import BATCH, MAX_NEW_TOKENS, write_answers
from specinfer.training.speculator_method import SpeculatorMethod
from specinfer.training.train_features import feature_layers
from specinfer.training.train_ssm import train_ssm

CORPUS_SHARE, TRAINING_SHARE = 1 / 3, 1 / 4
"""Share of time for the corpus of an SSM, and the minimum share for training."""
READING_SHARE, INVENTING_SHARE, WRITING_SHARE, MEASURING_SHARE = 0.35, 0.03, 0.12, 0.05
"""Shares of time: read texts, invent prompts, write answers, compare."""
LEAST_TURNS, MOST_INVENTED = 200, 2000
"""Turns of texts that are asked if fewer prompts are invented; maximum inventions."""
EAGLE_SHARE = 0.7
"""EAGLE's share of the training time; the rest is for blockwise heads."""
MIN_NEW_TOKENS = 32
"""Tokens of a continuation that the time must allow."""
MIN_PROMPTS = 10
CORPUS_BATCH = 48
"""Continuations at once, limited by the memory of their caches."""
PROGRESS, UNITS, STARTED, ASKED = "progress.json", "units.json", "started", "prompts.jsonl"
"""Files of the work directory: state, inner units of EAGLE, start, prompts."""


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
        path = work / PROGRESS
        if not path.is_file():
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            (work / ASKED).unlink(missing_ok=True)  # of a run that is over
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
        with replacing(work / PROGRESS) as partial:
            partial.write_text(json.dumps(asdict(self)))

    @contextmanager
    def timed(self, work: Path) -> Iterator[None]:
        """Add the context's duration to `spent_s`, even if interrupted."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent_s += time.monotonic() - began
            self.save(work)


class TrainedDrafts(NamedTuple):
    drafts: list[str]
    """Values for `--draft`."""
    prompts: list[tuple[int, ...]]
    """Held-out prompts."""
    tokens: int
    """Tokens of the training data."""


@dataclass(slots=True)
class SpeculatorRun:
    """Stages of a run; each continues an interrupted one."""

    directory: Path
    config: ModelConfig
    asked: Sequence[str]
    """Prompts for the target."""
    places: Sequence[Path]
    """Files and folders of texts."""
    progress: RunProgress
    flags: FeatureFlags
    place: str
    """Torch device."""

    @property
    def work(self) -> Path:
        return self.flags.work

    def train_ssm(self) -> TrainedDrafts:
        """Train an SSM on answers of the target."""
        corpus, flags = self.work / "corpus.jsonl", self.flags
        if self.progress.training_minutes is None:
            self._write_corpus(corpus)
        else:
            known = len(finished_jobs(corpus))
            console.print(f"corpus: {known} continuations are in {corpus}", soft_wrap=True)
        minutes = self.progress.training_minutes
        assert minutes is not None
        given: dict[str, Any] = {"corpus": [corpus], "minutes": minutes, "work": self.work, "overwrite": True}
        given |= {name: getattr(flags, name) for name in ("out", "model", "seed", "threads", "device")}
        train_ssm(**given)
        trained = json.loads((flags.out / "config.json").read_bytes())["trained"]
        for line in report(flags.out, self.work, trained):
            typer.echo(line)
        parts, held_out = read_corpora([corpus])
        tokens = sum(len(item.output) for part in (*parts, held_out) for item in part)
        return TrainedDrafts([str(flags.out)], [item.prompt for item in held_out], tokens)

    def train_on_texts(self) -> TrainedDrafts:
        """Train EAGLE and heads on texts that the target reads, and on some answers."""
        layers = feature_layers("", self.config)
        kept = KeptTexts(self.work / "read", self.progress.target, layers)
        if self.progress.training_minutes is None:
            self._read_and_write(kept, layers)
        minutes = self.progress.training_minutes
        assert minutes is not None
        texts = [*kept.texts()]
        training = KeptTraining(self.directory, self.config, kept, self.flags, self.place)
        out = self.flags.out
        heads = out.with_name(f"{out.name}-blockwise")
        trained: list[str] = []
        if self.progress.method == SpeculatorMethod.EAGLE:
            if not self._is_trained(out):
                units = read_units(self.work / UNITS)
                training.eagle(out, EAGLE_SHARE * minutes, layers, units)
            trained.append(f"ngram+eagle,model={out}")
            minutes *= 1 - EAGLE_SHARE
        else:
            heads = out
        if not self._is_trained(heads):
            training.blockwise(heads, minutes)
        trained.append(f"ngram+blockwise,model={heads}")
        for path in (out, *([heads] if heads != out else [])):
            for line in report(path, self.work, json.loads((path / "config.json").read_bytes())["trained"]):
                typer.echo(line)
        prompts = [text.item.prompt for text in texts if text.kind == HELD_OUT]
        tokens = sum(text.item.tokens for text in texts)
        return TrainedDrafts(trained, prompts, tokens)

    def _is_trained(self, out: Path) -> bool:
        """Return whether this run has written a checkpoint."""
        path = out / "config.json"
        started = (self.work / STARTED).stat().st_mtime
        return is_draft_checkpoint(out) and path.stat().st_mtime >= started

    def _load(self, batch: int, layers: tuple[int, ...] = ()) -> ModelRunner:
        tokens = max(batch * 1024, 8192)
        runner = load_checked(self.directory, RunnerOptions(kv_tokens=tokens, device=self.place))
        runner.keep_features(layers)
        _check_time(runner, self.progress.minutes)
        return runner

    def _read_and_write(self, kept: KeptTexts, layers: tuple[int, ...]) -> None:
        """Read texts, answer prompts, and store the time left for training."""
        progress, tokenizer = self.progress, Tokenizer.load(self.directory)
        runner = self._load(BATCH, layers)
        (self.work / STARTED).touch()
        left = 60 * progress.minutes * READING_SHARE - progress.spent_s
        if left > 0:
            with progress.timed(self.work):
                found = pieces(self.places, progress.seed)
                read_texts(runner, tokenizer, found, kept, left)
        with progress.timed(self.work):
            asked = self._asked_of(runner, tokenizer)
            before_training = READING_SHARE + INVENTING_SHARE + WRITING_SHARE
            left = 60 * progress.minutes * before_training - progress.spent_s
            write_answers(runner, tokenizer, asked, kept, self.work, max(left, 0.0), progress.seed)
            if progress.method == SpeculatorMethod.EAGLE:
                read = (text.item for text in kept.texts())
                units = active_units(runner, open_weights(self.directory, self.config), read)
                (self.work / UNITS).write_text(json.dumps(units))
        over = progress.spent_s / 60 + MEASURING_SHARE * progress.minutes
        progress.training_minutes = max(progress.minutes - over, TRAINING_SHARE * progress.minutes)
        progress.save(self.work)

    def _asked_of(self, runner: ModelRunner, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the prompts of a file, else turns of texts and as many invented ones.

        The turns of texts are of few kinds; a draft trained on their answers guesses other answers badly.
        """
        path, progress = self.work / ASKED, self.progress
        if not path.is_file():
            progress.save(self.work)  # a run that has prompts is known to be one
            asked = list(self.asked)
            if not progress.prompts:
                maker = CorpusMaker(runner, BATCH, progress.seed)
                seconds = 60 * progress.minutes * INVENTING_SHARE
                invented = maker.invent(tokenizer, self.work / "invented.jsonl", MOST_INVENTED, seconds)
                asked = [*asked[: max(len(invented), LEAST_TURNS)], *invented.values()]
            with replacing(path) as partial:
                partial.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in asked))
        return read_prompts(path)

    def _write_corpus(self, corpus: Path) -> None:
        """Make an SSM's corpus; store the time left for training."""
        progress, batch = self.progress, min(CORPUS_BATCH, len(self.asked))
        runner, tokenizer = self._load(batch), Tokenizer.load(self.directory)
        if known := len(finished_jobs(corpus)):
            console.print(
                f"continuing with {known} continuations in {corpus}", soft_wrap=True, highlight=False
            )
        with progress.timed(self.work):
            asked = {f"prompt-{i}": text for i, text in enumerate(self._asked_of(runner, tokenizer))}
            jobs = continuation_jobs(tokenizer, asked, 0.8, progress.seed)
            left = CORPUS_SHARE * 60 * progress.minutes - progress.spent_s
            maker = CorpusMaker(runner, batch, progress.seed)
            continuations = maker.run("corpus", corpus, jobs, MAX_NEW_TOKENS, LABEL_WIDTH, max(left, 0.0))
        tokens = sum(len(item.output) for item in continuations.values())
        console.print(f"corpus: {len(continuations)} continuations, {tokens} tokens", highlight=False)
        if len(continuations) < MIN_PROMPTS:
            gave = f"a third of them gave {len(continuations)} continuations, {MIN_PROMPTS} are needed"
            raise SettingError("minutes", progress.minutes, f"too few minutes: {gave}")
        least = TRAINING_SHARE * progress.minutes
        progress.training_minutes = max(progress.minutes - progress.spent_s / 60, least)
        progress.save(self.work)


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


def report(out: Path, work: Path, trained: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report's lines: held-out success and the checkpoint's path."""
    method = algorithm_of(out)
    given = "if all guesses before were correct" if method == "ssm" else "after the correct tokens"
    yield f"held out: the target's next token among the first k guesses of {method}, {given}"
    yield "depth   top 1   top 2   top 3   top 5"
    for depth, success in enumerate(trained["success_held_out"], 1):
        yield f"{depth:5}" + "".join(f" {100 * success[f'top{k}']:5.1f} %" for k in (1, 2, 3, 5))
    yield f"{trained['tokens_seen']:,} tokens seen; the checkpoint is {out}, and can be moved anywhere"
    yield f"{work} has the training data and may be removed"
