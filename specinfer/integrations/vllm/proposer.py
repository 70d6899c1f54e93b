"""Propose tokens to vLLM by calling speculator services.

    rows -> requests (contexts.py) -> outcomes of their last drafts (calibration)
         -> trees of all services that answer in time (remote/pool.py) -> merged -> best path

vLLM verifies sequences, so one path of the merged tree is proposed. The choice does not depend on vLLM's random
numbers, and no draft distribution is sent, so vLLM's rejection sampling is exact.

An exception in `propose` would end vLLM's engine. So a fault is logged and counted, and the step has no drafts.
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
from specinfer.text.tokenizer import vocabulary_fingerprint
from specinfer.tree import TokenTree, merge_trees
from specinfer.tree.shape import best_path
from specinfer.tree.token_tree import Int32

log = logging.getLogger(__name__)


class SpeculatorProposer:
    """vLLM proposer whose tokens come from speculator services."""

    def __init__(self, vllm_config: Any) -> None:
        """Connect to the services in $SPECINFER_VLLM_SPECULATORS.

        Args:
            vllm_config: vLLM's `VllmConfig`.

        Raises:
            SettingError: naming the variable that is missing or invalid.
            IncompatibleError: if a service has another tokenizer than vLLM's model.
        """
        self._settings = VllmSettings.load()
        parallel = vllm_config.parallel_config
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._contexts = ContextTable(patience=2 * int(parallel.pipeline_parallel_size))
        self._calibration = Calibration()
        self.counters: Counter[str] = Counter()
        """Counts of steps ("rounds"), requests, proposed and accepted tokens, and faults."""
        self.client = ""
        """Client name that is sent to the services."""
        # vLLM broadcasts the drafts of a tensor-parallel group's first rank
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
            sampled_token_ids: [B] new tokens of each row; empty while its prompt is being read.
            num_tokens_no_spec: [B] number of tokens of each row, including the new ones.
            token_ids_cpu: [B or more, maximum length] tokens of all rows, padded on the right.
            slot_mappings: not used.
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
            log.exception("proposing tokens failed: %d rows get no drafts", len(rows))
        return proposed

    @property
    def outcomes(self) -> Counter[str]:
        """Counts of drafts by outcome (`DraftStatistics`), resyncs and missed messages.

        Missed messages are late, lost, or not sent because a service was unavailable or busy.
        """
        counts: Counter[str] = Counter()
        for service in self._speculators.pool.services if self._asks else ():
            counts.update(service.statistics.outcomes)
            counts.update(resync=service.statistics.resyncs, missed=service.missed)
        return counts

    def close(self) -> None:
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
            trust_draws=False,  # vLLM accepts no draft distribution, so drawn proposals are refused
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
        """Calibrate scores by comparing the latest drafts with the new tokens."""
        for number, tree in context.drafts:
            self._calibration.observe(number, tree, came)
        right = [drafted == token for drafted, token in zip(context.path, came, strict=False)]
        self.counters["accepted"] += right.index(False) if False in right else len(right)

    async def _draft(
        self, contexts: Sequence[Context], ended: list[str]
    ) -> dict[str, list[tuple[int, TokenTree]]]:
        """Return the trees of all available speculators, by request id."""
        self._speculators.release(ended)
        entries = [
            context.entry(self._max_tokens, room)
            for context in contexts
            if (room := self._room(context.tokens)) > 0
        ]
        pool = self._speculators.pool
        return (await pool.draft(entries, frozenset(range(len(pool.names))))).trees

    def _room(self, tokens: Int32) -> int:
        """Return the maximum number of tokens to propose after `tokens`."""
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
    """The pool, its channels and its background releases."""

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
        """Release requests at the services, in the background."""
        if request_ids:
            task = asyncio.get_running_loop().create_task(self.pool.release(request_ids))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self.pool.close()
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
