"""The proposer for vLLM: calls speculator services for rows of tokens.

    rows -> requests (contexts.py) -> outcomes of their last drafts (calibration)
         -> trees of all services that answer in time (remote/pool.py) -> merged -> best path

vLLM checks sequences, so of a merged tree one path is proposed. It is chosen without knowledge of the noise
by which vLLM samples, and sent without a distribution; so vLLM's rejection is exact, greedy or sampled.

An exception in `propose` would end the engine: a fault of ours costs drafts, is logged and counted.
"""

import asyncio
import atexit
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from specinfer.errors import SpecInferError
from specinfer.integrations.vllm.contexts import BatchRow, Context, ContextTable
from specinfer.integrations.vllm.settings import VllmSettings
from specinfer.planning.calibration import Calibration
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.pool import SpeculatorPool
from specinfer.service.channel import open_channel
from specinfer.service.threads import LoopThread
from specinfer.tokenizer import vocabulary_fingerprint
from specinfer.tree import TokenTree, merge_trees
from specinfer.tree.shape import best_path
from specinfer.tree.token_tree import Int32

log = logging.getLogger(__name__)


class SpeculatorProposer:
    """Proposes tokens that speculator services draft to vLLM."""

    def __init__(self, vllm_config: Any) -> None:
        """Connect to the services that $SPECINFER_VLLM_SPECULATORS names.

        Args:
            vllm_config: vLLM's `VllmConfig`.

        Raises:
            SettingError: naming the variable that is missing or bad.
            IncompatibleError: if a service has another tokenizer than vLLM's model.
        """
        self._settings = VllmSettings.load()
        parallel = vllm_config.parallel_config
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._contexts = ContextTable(patience=2 * int(parallel.pipeline_parallel_size))
        self._calibration = Calibration()
        self.counters: Counter[str] = Counter()
        """Rounds, requests, proposed and accepted tokens, faults. Services count `outcomes`."""
        self.client = ""
        """Name by which the services know us."""
        # vLLM takes the drafts of the first rank of a tensor-parallel group and gives them to all
        self._asks = int(parallel.rank) % int(parallel.tensor_parallel_size) == 0
        if self._asks:
            self._connect(vllm_config.model_config)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load nothing: vLLM's interface requires it."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: "np.ndarray[Any, Any]",
        token_ids_cpu: "np.ndarray[Any, Any]",
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return up to `num_speculative_tokens` tokens for each of B rows.

        Args:
            sampled_token_ids: [B] tokens that each row got in this step; none while its prompt is being read.
            num_tokens_no_spec: [B] tokens of each row, those included.
            token_ids_cpu: [B or more, longest] tokens of all rows.
            slot_mappings: places in vLLM's cache; not used.
        """
        proposed: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._asks:
            return proposed
        rows = {
            place: BatchRow(token_ids_cpu[place, : num_tokens_no_spec[place]].astype(np.int32), len(new))
            for place, new in enumerate(sampled_token_ids)
            if len(new)
        }
        try:
            for place, path in zip(rows, self._propose(list(rows.values())), strict=True):
                proposed[place] = path
        except Exception:
            self.counters["faults"] += 1
            log.exception("a fault cost the drafts of %d rows", len(rows))
        return proposed

    @property
    def outcomes(self) -> Counter[str]:
        """Drafts by outcome (`DraftStatistics`), resyncs and missed messages of services.

        Missed messages are late, lost, or not sent because a service was unavailable or busy.
        """
        counts: Counter[str] = Counter()
        for service in self._speculators.pool.services if self._asks else ():
            counts.update(service.statistics.outcomes)
            counts.update(resync=service.statistics.resyncs, missed=service.counters.missed)
        return counts

    def close(self) -> None:
        """End the connections."""
        if self._asks:
            outcomes, self._asks = self.outcomes, False
            atexit.unregister(self.close)
            self._thread.call(self._speculators.close())
            self._thread.stop()
            log.info("proposals: %s; drafts: %s", dict(self.counters), dict(outcomes))

    def _connect(self, model_config: Any) -> None:
        policy = PoolPolicy(
            int(model_config.get_vocab_size()),
            tokenizer_fingerprint(model_config),
            trust_draws=False,  # vLLM takes no distribution with a draft: speculators may only send points
        )
        self.client = policy.client
        self._thread = LoopThread("specinfer-speculators")
        try:
            self._speculators = self._thread.call(_connected(self._settings, policy))
        except SpecInferError:
            self._thread.stop()
            raise
        atexit.register(self.close)

    def _propose(self, rows: list[BatchRow]) -> list[list[int]]:
        contexts = self._contexts.match(rows)
        for context, row in zip(contexts, rows, strict=True):
            self.counters["requests"] += context.state is None
            self._learn(context, context.grow(row.tokens))
        drafts = self._thread.call(self._draft(contexts, self._contexts.ended()))
        for context in contexts:
            context.drafts = drafts.get(context.request_id, [])
            context.path = self._path(context.drafts, self._room(context.tokens))
        self.counters["rounds"] += 1
        self.counters["proposed"] += sum(len(context.path) for context in contexts)
        return [context.path for context in contexts]

    def _learn(self, context: Context, came: list[int]) -> None:
        """Compare the latest drafts with the tokens that came."""
        for number, tree in context.drafts:
            self._calibration.observe(number, tree, came)
        right = [drafted == token for drafted, token in zip(context.path, came, strict=False)]
        self.counters["accepted"] += right.index(False) if False in right else len(right)

    async def _draft(
        self, contexts: Sequence[Context], ended: list[str]
    ) -> dict[str, list[tuple[int, TokenTree]]]:
        """Return trees of all speculators that are there, by request."""
        self._speculators.release(ended)
        entries = [
            context.entry(self._max_tokens, room)
            for context in contexts
            if (room := self._room(context.tokens)) > 0
        ]
        pool = self._speculators.pool
        return (await pool.draft(entries, frozenset(range(len(pool.names))))).trees

    def _room(self, tokens: Int32) -> int:
        """Return the most tokens that may be proposed after these."""
        return min(self._max_tokens, self._longest - len(tokens) - 1)

    def _path(self, drafts: Sequence[tuple[int, TokenTree]], max_tokens: int) -> list[int]:
        if not drafts:
            return []
        merged = merge_trees([(number, self._calibration.correct(number, tree)) for number, tree in drafts])
        return best_path(merged, max_tokens)


def tokenizer_fingerprint(model_config: Any) -> str:
    """Return the fingerprint of the tokenizer that vLLM uses."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        model_config.tokenizer,
        revision=model_config.tokenizer_revision,
        trust_remote_code=model_config.trust_remote_code,
    )
    return vocabulary_fingerprint(tokenizer.get_vocab())


class _Speculators:
    """The pool with its channels, and the releases that nobody waits for."""

    def __init__(self, settings: VllmSettings, policy: PoolPolicy) -> None:
        self._settings = settings
        self._channels: list[grpc.aio.Channel] = []
        self._releases: set[asyncio.Task[None]] = set()
        self.pool = SpeculatorPool(settings.addresses, self._open_channel, policy)

    def _open_channel(self, address: str) -> grpc.aio.Channel:
        channel = open_channel(address, self._settings.tls)
        self._channels.append(channel)
        return channel

    def release(self, request_ids: Sequence[str]) -> None:
        """Begin to let the services forget requests."""
        if request_ids:
            task = asyncio.get_running_loop().create_task(self.pool.release(request_ids))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """End background work and connections."""
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self.pool.close()
        for service in self.pool.services:
            if service.stream is not None:
                service.stream.reset()
        for channel in self._channels:
            await channel.close()


async def _connected(settings: VllmSettings, policy: PoolPolicy) -> _Speculators:
    speculators = _Speculators(settings, policy)
    try:
        await speculators.pool.connect()
    except SpecInferError:
        await speculators.close()
        raise
    return speculators
