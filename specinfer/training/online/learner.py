"""Serve offered weights that are better on held-out texts; revert worse weights.

    Offer -> DIR/offered -> trials next to the served weights -> better? -> swap between two drafts
    every half minute: held-out texts since the swap -> trials with the previous weights -> worse? -> revert

Requests continue: weights are swapped between two steps, and the new weights read a request's context at its next
draft. Drafts never change the verifier's text.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.pools import LEARNT
from specinfer.errors import ExhaustedError, InvalidInputError, SettingError, UnavailableError
from specinfer.hub import resolve_model
from specinfer.model.weights.draft_checkpoint import ALGORITHM, load_ssm, verifier_of
from specinfer.model.weights.source import KIND, algorithm_of
from specinfer.service.threads import EngineThread
from specinfer.training.online import judgement
from specinfer.training.online.checkpoints import Checkpoints
from specinfer.training.online.judgement import MAX_TEXTS, Judgement, Trial, judge, loses
from specinfer.training.online.replay import Episode, Replay
from specinfer.v1 import common_pb2, learning_pb2

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
RECEIVE_S = 120.0
"""Timeout of receiving an offer, in seconds."""
IDLE_S = 300.0
"""Idle seconds after which a request is treated like a finished one."""
Trials = Callable[[str, DrafterOptions, Sequence[str], Sequence[Episode]], Awaitable[list[Sequence[int]]]]


@dataclass(slots=True)
class LearningCounts:
    """Counts since the service started."""

    offers: int = 0
    swaps: int = 0
    take_backs: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    version: int
    """Number of the version; 0: the initial weights."""
    model: str
    """Name or directory of the checkpoint."""


class Learner:
    """Judge offers, and manage the served and the previous weights."""

    def __init__(
        self,
        replay: Replay,
        engine: SpeculatorEngine,
        thread: EngineThread,
        place: int,
        options: DrafterOptions,
        checkpoints: Checkpoints,
        run_trials: Trials,
    ) -> None:
        """Create the learner of the engine's drafter number `place`."""
        self.replay, self.counts = replay, LearningCounts()
        self._engine, self._thread, self._place = engine, thread, place
        self._options, self._checkpoints, self._run_trials = options, checkpoints, run_trials
        self._served = Weights(0, options.model)
        self._before: Weights | None = None
        self._swapped_at = 0
        """Number of the newest episode at the last swap."""
        self._newest_version = max(checkpoints.versions, default=0)
        self.held_out_rate = 0.0
        """Tokens per step of the served weights at their last judgement."""
        self._busy = asyncio.Lock()
        self._target_name = verifier_of(resolve_model(options.model))

    @property
    def state(self) -> common_pb2.LearningState:
        return common_pb2.LearningState(
            version=self._served.version,
            replay_tokens=self.replay.tokens,
            held_out_tokens_per_step=self.held_out_rate,
            swaps=self.counts.swaps,
            take_backs=self.counts.take_backs,
        )

    @property
    def version(self) -> int:
        return self._served.version

    async def offer(self, parts: AsyncIterator[learning_pb2.CheckpointPart]) -> learning_pb2.OfferReply:
        """Judge a checkpoint, and serve a better checkpoint."""
        if self._busy.locked():
            raise ExhaustedError("another offer is being evaluated: offer again later")
        async with self._busy:
            self.counts.offers += 1
            try:
                await self._receive(parts)
                judgement = await self._judged(self._checkpoints.offered)
                if judgement.better:
                    await unbroken(self._take(judgement))
            except OSError as error:
                raise UnavailableError(f"the offer cannot be written: {error.strerror or error}") from error
            finally:
                await asyncio.to_thread(self._checkpoints.drop)
            return learning_pb2.OfferReply(
                taken=judgement.better,
                why=judgement.why_not,
                version=self._served.version,
                tokens_per_step=judgement.offered,
                tokens_per_step_before=judgement.served,
                episodes=judgement.texts,
            )

    async def watch(self) -> None:
        """Revert weights that are worse on newer texts. Never returns."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.replay.end_idle(IDLE_S)
            try:
                await self.look_back()
            except Exception:  # the service continues, and compares later
                log.exception("comparing served and previous weights failed; trying again later")

    async def look_back(self) -> None:
        """Compare served and previous weights on enough texts since the swap."""
        async with self._busy:
            before, newer = self._before, self.replay.held_out(self._swapped_at, MAX_TEXTS)
            if before is None or len(newer) < judgement.MIN_TEXTS:
                return
            trials = await self._trials(before.model, self._served.model, newer)
            result = judge(trials)
            if loses(trials):
                await unbroken(self._take_back(before))
            self.held_out_rate = result.served if self._served is before else result.offered
            self._swapped_at = self.replay.newest

    async def _take_back(self, before: Weights) -> None:
        log.warning("reverted version %d of the weights: serving version %d", self.version, before.version)
        await self._swap(before)
        self.counts.take_backs += 1
        self._before = None
        self._checkpoints.keep_only(before.version)

    async def _receive(self, parts: AsyncIterator[learning_pb2.CheckpointPart]) -> None:
        checkpoints = self._checkpoints
        await asyncio.to_thread(checkpoints.begin)
        try:
            async with asyncio.timeout(RECEIVE_S):
                async for part in parts:
                    await asyncio.to_thread(checkpoints.add, part.file, part.data)
        except TimeoutError as error:
            raise UnavailableError(f"the offered files took over {RECEIVE_S:g} s: offer again") from error
        checkpoints.check_whole()
        await asyncio.to_thread(self._check, checkpoints.offered)

    def _check(self, offered: Path) -> None:
        """Check that a checkpoint is an SSM for our target.

        In its config.json, replace the target's name, which may be a path of another machine.
        """
        path = offered / "config.json"
        try:
            config = json.loads(path.read_bytes())
            kind = config[KIND]
            config["speculators_config"]["verifier"]["name_or_path"] = self._target_name
            if kind != ALGORITHM:
                raise InvalidInputError(f"config.json: {KIND}", kind, f"must be {ALGORITHM!r}")
            path.write_text(json.dumps(config))
            load_ssm(offered, resolve_model(self._target_name))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            reason = f"cannot be read: {type(error).__name__}: {error}"
            raise InvalidInputError("config.json", "", reason) from error

    async def _judged(self, offered: Path) -> Judgement:
        texts = self.replay.held_out(0, MAX_TEXTS)
        if len(texts) < judgement.MIN_TEXTS:
            return judge([Trial(text.caller, 0, 0, 0, 0) for text in texts])
        result = judge(await self._trials(self._served.model, str(offered), texts))
        self.held_out_rate = result.served
        return result

    async def _trials(self, served: str, offered: str, texts: Sequence[Episode]) -> list[Trial]:
        """Decode texts with the initial, the served and the offered weights."""
        models = list(dict.fromkeys([self._options.model, served, offered]))
        rows = await self._run_trials(LEARNT, self._options, models, texts)
        places = [models.index(model) for model in (self._options.model, served, offered)]
        return [
            Trial(text.caller, len(text.tokens) - text.prompt_len, *(steps[place] for place in places))
            for text, steps in zip(texts, rows, strict=True)
        ]

    async def _take(self, judgement: Judgement) -> None:
        self._newest_version += 1
        kept = await asyncio.to_thread(self._checkpoints.keep, self._newest_version)
        before = self._served
        try:
            await self._swap(Weights(self._newest_version, str(kept)))
        except Exception:
            self._checkpoints.remove(self._newest_version)
            raise
        self.held_out_rate = judgement.offered
        self._checkpoints.keep_only(before.version, self.version)
        self._before, self._swapped_at = before, self.replay.newest
        self.counts.swaps += 1
        log.info(
            "serving version %d of the weights: %.3f tokens per step on %d held-out texts, %.3f before",
            *(self._served.version, judgement.offered, judgement.texts, judgement.served),
        )

    def close(self) -> None:
        """Unlock the directory."""
        self._checkpoints.close()

    def resume(self) -> None:
        """Serve the last version in the directory, if any.

        Call this on the engine's thread, before any draft.
        """
        number = self._checkpoints.current
        if not number:
            return
        weights = Weights(number, str(self._checkpoints.version(number)))
        try:
            self._engine.replace(self._place, self._load(weights))
        except Exception as error:  # the operator must decide about unreadable files
            raise SettingError("learn", weights.model, f"cannot be loaded: {error}") from error
        self._served = weights
        log.info("serving version %d of the weights, which an earlier service learned", weights.version)

    async def _swap(self, weights: Weights) -> None:
        drafter = await asyncio.to_thread(self._load, weights)
        self._checkpoints.mark(weights.version)
        try:
            await self._thread.call(self._engine.replace, self._place, drafter)
        except Exception:
            self._checkpoints.mark(self._served.version)
            raise
        self._served = weights

    def _load(self, weights: Weights) -> Drafter:
        return make_drafter(LEARNT, replace(self._options, model=weights.model))


async def unbroken(work: Coroutine[Any, Any, None]) -> None:
    """Finish work even if its waiter is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def check_learnable(drafters: Sequence[str], model: str) -> None:
    """Check that a service with these drafters can learn."""
    if LEARNT not in drafters:
        raise SettingError("drafter", "+".join(drafters), "must include ssm for --learn")
    directory = resolve_model(model)
    if not (directory / "config.json").is_file() or algorithm_of(directory) != ALGORITHM:
        reason = "must be a trained SSM for --learn: make one with `specinfer train ssm`"
        raise SettingError("model", model, reason)
