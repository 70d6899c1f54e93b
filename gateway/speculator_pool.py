"""The speculators: asked in parallel, with a deadline, never waited for beyond it.

A late speculator keeps working on its message and is left out of the iterations until it is done; a
failed one is left out until it answers again. Per speculator the pool remembers how much of each
request's context it holds. Malformed trees are dropped and counted.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import grpc

from gateway.scheduler import StepEntry
from specinfer.entry_status import EntryStatus
from specinfer.errors import IncompatibleError, MalformedTreeError, UnavailableError
from specinfer.sampling import MAX_SEED
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree
from specinfer.tree.topology import depths
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.sampling_codec import encode_sampling
from specinfer.wire.tree_codec import decode_tree

log = logging.getLogger(__name__)

CONTEXT_CHUNK = 1024
"""Most context tokens sent to a speculator in one iteration."""
_RETRY_DESCRIBE_S = 1.0


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How the pool treats its speculators."""

    deadline_s: float
    vocab_size: int
    tokenizer_fingerprint: str
    """The verifier's; a speculator with another one is refused."""


@dataclass(slots=True)
class SpeculatorCounters:
    """What became of the drafts asked for."""

    answered: int = 0
    missed: int = 0
    malformed: int = 0


@dataclass(slots=True)
class Speculator:
    """One speculator service as the gateway sees it."""

    index: int
    address: str
    stub: speculator_pb2_grpc.SpeculatorStub
    stream: MessageStream[speculator_pb2.DraftRequest, speculator_pb2.DraftReply]
    description: speculator_pb2.DescribeSpeculatorReply | None = None
    held: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Requests this speculator answered with an error."""
    busy: bool = False
    last_seconds: float = 0.0
    """How long its last answer took."""
    counters: SpeculatorCounters = field(default_factory=SpeculatorCounters)

    @property
    def name(self) -> str:
        """Its own name, or its address until it has told."""
        return self.description.name if self.description else self.address


class Drafts(NamedTuple):
    """What the speculators answered in time."""

    trees: dict[str, list[tuple[int, TokenTree]]]
    """By request, (speculator index, tree) in pool order."""
    seconds: dict[int, float]
    """By speculator, how long it took."""


class SpeculatorPool:
    """All speculators of a gateway, in the order in which sequence speculation prefers them."""

    def __init__(self, channels: Sequence[tuple[str, grpc.aio.Channel]], policy: PoolPolicy) -> None:
        self._policy = policy
        self.speculators = [_speculator(i, address, channel) for i, (address, channel) in enumerate(channels)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._steps = 0

    async def connect(self) -> None:
        """Describes every speculator that can be reached and keeps trying the others in the background.

        Raises:
            IncompatibleError: if one has another tokenizer.
        """
        for speculator in self.speculators:
            try:
                await self._describe(speculator)
            except UnavailableError as error:
                log.warning("going on without %s for now: %s", speculator.address, error)
                self._spawn(self._keep_describing(speculator))

    def names(self) -> list[str]:
        """Names in pool order."""
        return [speculator.name for speculator in self.speculators]

    async def draft(self, entries: Sequence[StepEntry], chosen: Collection[int]) -> Drafts:
        """Trees of the chosen speculators that meet the deadline; chains are drafted by all."""
        self._steps += 1
        chains = [entry for entry in entries if entry.drafts and entry.limits.width == 1]
        asked = {
            s.index: [e for e in entries if e.drafts] if s.index in chosen else chains
            for s in self.speculators
        }
        trees: dict[str, list[tuple[int, TokenTree]]] = {}
        seconds: dict[int, float] = {}
        running = [
            self._spawn(self._ask(speculator, asked[speculator.index], trees, seconds))
            # whoever takes longest is asked first
            for speculator in sorted(self.speculators, key=lambda s: -s.last_seconds)
            if asked[speculator.index] and self._available(speculator)
        ]
        if running:
            await asyncio.wait(running, timeout=self._policy.deadline_s)
        late = [task for task in running if not task.done()]
        if late:
            log.debug("%d speculators missed the deadline", len(late))
        # what arrives from now on concerns an older step: hand out copies
        in_order = {name: sorted(found, key=lambda item: item[0]) for name, found in trees.items()}
        return Drafts(in_order, dict(seconds))

    async def release(self, request_ids: Sequence[str]) -> None:
        """Lets all speculators forget requests; their time-to-live covers lost calls."""
        for speculator in self.speculators:
            for request_id in request_ids:
                speculator.held.pop(request_id, None)
                speculator.refused.discard(request_id)
        await asyncio.gather(*(self._release(s, request_ids) for s in self.speculators if s.description))

    async def close(self) -> None:
        """Ends background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _available(self, speculator: Speculator) -> bool:
        if speculator.description is None or speculator.busy:
            speculator.counters.missed += 1
            return False
        return True

    async def _ask(
        self,
        speculator: Speculator,
        entries: list[StepEntry],
        trees: dict[str, list[tuple[int, TokenTree]]],
        seconds: dict[int, float],
    ) -> None:
        """One exchange with one speculator; adds its trees, and its time, when they arrive."""
        started = time.perf_counter()
        request, asked = self._request(speculator, entries)
        if not asked:
            return
        speculator.busy = True
        step = self._steps
        try:
            reply = await speculator.stream.exchange(request)
        except UnavailableError as error:
            log.warning("%s", error)
            speculator.counters.missed += 1
            speculator.description = None
            self._spawn(self._keep_describing(speculator))
            return
        finally:
            speculator.busy = False
        in_time = step == self._steps
        speculator.counters.answered += in_time
        speculator.counters.missed += not in_time
        for result in reply.entries:
            tree = self._accept(speculator, asked, result)
            if tree is not None and in_time:
                trees.setdefault(result.request_id, []).append((speculator.index, tree))
        speculator.last_seconds = seconds[speculator.index] = time.perf_counter() - started

    def _request(
        self, speculator: Speculator, entries: list[StepEntry]
    ) -> tuple[speculator_pb2.DraftRequest, dict[str, StepEntry]]:
        message = speculator_pb2.DraftRequest(step_id=self._steps)
        asked: dict[str, StepEntry] = {}
        for entry in entries:
            if entry.request_id not in speculator.refused:
                asked[entry.request_id] = entry
                message.entries.append(_encode(speculator, entry))
        return message, asked

    def _accept(
        self, speculator: Speculator, asked: dict[str, StepEntry], result: speculator_pb2.DraftResult
    ) -> TokenTree | None:
        """The tree of a result if it is sound; keeps the books in any case."""
        entry = asked.get(result.request_id)
        if entry is None or entry.state.finish is not None:
            return None
        if result.status == int(EntryStatus.RESYNC):
            speculator.held[result.request_id] = 0
            return None
        if result.status != int(EntryStatus.OK):
            log.warning("%s refused %s: %s", speculator.name, result.request_id, result.message)
            speculator.refused.add(result.request_id)
            return None
        speculator.held[result.request_id] = result.held_len
        if not result.HasField("tree"):
            return None
        try:
            tree = decode_tree(result.tree)
            tree.validate(self._policy.vocab_size, entry.limits.nodes + 1)
            _check_fits(tree, entry)
        except MalformedTreeError as error:
            log.warning("dropping a tree of %s: %s", speculator.name, error)
            speculator.counters.malformed += 1
            return None
        return tree

    async def _describe(self, speculator: Speculator) -> None:
        try:
            description = await speculator.stub.Describe(
                speculator_pb2.DescribeSpeculatorRequest(), timeout=5.0
            )
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"{speculator.address}: {error.details()}") from error
        theirs, ours = description.tokenizer_fingerprint, self._policy.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise IncompatibleError(
                f"speculator {description.name} at {speculator.address} has tokenizer {theirs}, "
                f"the verifier has {ours}"
            )
        speculator.held.clear()
        speculator.description = description
        log.info(
            "speculator %s (%s) at %s is ready", description.name, description.drafter, speculator.address
        )

    async def _keep_describing(self, speculator: Speculator) -> None:
        while speculator.description is None:
            await asyncio.sleep(_RETRY_DESCRIBE_S)
            try:
                await self._describe(speculator)
            except UnavailableError:
                continue  # still away; _available counts what it misses
            except IncompatibleError as error:
                log.error("%s; it stays out", error)
                return

    async def _release(self, speculator: Speculator, request_ids: Sequence[str]) -> None:
        try:
            await speculator.stub.Release(common_pb2.ReleaseRequest(request_ids=request_ids), timeout=5.0)
        except grpc.aio.AioRpcError as error:
            log.warning("%s could not release: %s", speculator.name, error.details())

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _speculator(index: int, address: str, channel: grpc.aio.Channel) -> Speculator:
    stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
    return Speculator(index, address, stub, MessageStream(address, lambda: stub.Draft()))


def _encode(speculator: Speculator, entry: StepEntry) -> speculator_pb2.DraftEntry:
    tokens, held = entry.state.tokens, speculator.held.get(entry.request_id, 0)
    if held >= len(tokens):
        held = 0  # never the case unless the service lies; RESYNC puts it right
    delta = tokens[held : held + CONTEXT_CHUNK]
    complete = held + len(delta) == len(tokens)
    most = speculator.description.max_nodes if speculator.description else 0
    shape = speculator_pb2.TREE_SHAPE_SEQUENCE if entry.limits.width == 1 else speculator_pb2.TREE_SHAPE_TREE
    sampling = entry.state.request.sampling
    return speculator_pb2.DraftEntry(
        request_id=entry.request_id,
        base_len=held,
        delta_token_ids=delta,
        node_budget=min(entry.limits.nodes, most) if complete else 0,
        max_depth=entry.limits.depth,
        shape=shape,
        sampling=encode_sampling(replace(sampling, seed=draft_seed(sampling.seed, speculator.index))),
    )


def draft_seed(seed: int, speculator: int) -> int:
    """A seed of its own for each speculator (SplitMix64): merged drafts must be independent draws."""
    z = (seed + (speculator + 1) * 0x9E3779B97F4A7C15) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return z ^ (z >> 31)


def _check_fits(tree: TokenTree, entry: StepEntry) -> None:
    """What only the gateway can know: the root, and how deep this tree may be."""
    if tree.root_token_id != entry.state.tokens[-1]:
        raise MalformedTreeError("tree.token_ids[0]", tree.root_token_id, "not the last committed token")
    depth = int(depths(tree.parents).max())
    if depth > entry.limits.depth:
        raise MalformedTreeError("tree.depth", depth, f"deeper than {entry.limits.depth}")
