"""`specinfer train follow`: train a running speculator service's SSM on its requests.

    fetch new texts -> train for a round -> offer the weights -> again

The service judges offered weights by held-out texts, which it never sends, and uses better weights. Training is
distillation at the lowest priority; labels are the target's own choices. Frequent tokens of the texts are added to the
draft vocabulary.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import grpc
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from specinfer.drafters.heads_layers import output_head
from specinfer.drafters.pools import LEARNT
from specinfer.errors import FaultError, SettingError, UnavailableError
from specinfer.hub import resolve_model
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import (
    DraftModel,
    load_ssm,
    save_ssm,
    verifier_of,
)
from specinfer.model.weights.families import open_weights
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.service.channel import check_target, open_channel
from specinfer.service.tls import ClientTls
from specinfer.system.threads import LAST, give_way
from specinfer.v1 import learning_pb2, learning_pb2_grpc, speculator_pb2, speculator_pb2_grpc
from speculator_svc.learning.checkpoints import FILES
from speculator_svc.training.corpus import Continuation, Examples, Labels, batches
from speculator_svc.training.distil import console, ssm_loss, train_step
from speculator_svc.training.generate import in_draft_vocabulary
from speculator_svc.training.run import Device, Threads, place_for
from speculator_svc.training.student import Student

TOKENS_PER_BATCH = 1024
MIN_TEXTS = 16
"""Minimum number of texts to train a round."""
MAX_NEW_TOKENS = 2048
"""Maximum tokens added to the draft vocabulary."""
MIN_OCCURRENCES = 4
"""Minimum occurrences of an added token."""
REPLAY_TOKENS = 1_000_000
"""Maximum tokens of texts in this process; the newest are kept."""
CALLS_S = 900.0
"""Timeout of calls in seconds.

For each offer, the service decodes a hundred texts at the lowest priority.
"""
MOMENTARY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""gRPC statuses of calls that are retried."""
PART_BYTES = 2**20
REFUSALS = 5
"""Number of consecutive refusals before training restarts at the accepted weights."""


def train_follow(
    address: Annotated[str, typer.Argument(help="Address of the speculator service, started with --learn.")],
    out: Annotated[Path, typer.Option(help="Directory of the last offered checkpoint.")],
    minutes: Annotated[float, typer.Option(min=0, help="Time after which to end; 0: until Ctrl-C.")] = 0.0,
    round_seconds: Annotated[float, typer.Option(min=1, help="Training time between two offers.")] = 60.0,
    learning_rate: Annotated[float, typer.Option(help="Constant learning rate.")] = 3e-4,
    start: Annotated[
        str,
        typer.Option(
            help="SSM to start from; not given: the one in --out, else the one that the service started with."
        ),
    ] = "",
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file of the service's authorities.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of a client certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Train the SSM of a running speculator service on its requests.

    The service must have been started with --learn, and may run on another machine. Training runs at the lowest
    priority.
    """
    check_target("ADDRESS", address)
    place = place_for(device, threads)
    give_way(LAST)
    link = LearningLink(address, ClientTls(tls_ca, tls_cert, tls_key))
    name = asyncio.run(link.model(start or (str(out) if is_draft_checkpoint(out) else "")))
    console.print(f"learning from {address}, starting at {name}")
    training = OnlineTraining(name, out, learning_rate, place)
    ends = time.monotonic() + 60 * minutes if minutes else np.inf
    while time.monotonic() < ends:
        try:
            line = one_round(link, training, out, min(round_seconds, ends - time.monotonic()))
        except UnavailableError as error:  # the service may be restarting
            line = f"{error}: trying again"
            time.sleep(min(round_seconds, max(0.0, ends - time.monotonic())))
        console.print(line)


def one_round(link: "LearningLink", training: "OnlineTraining", out: Path, seconds: float) -> str:
    """Fetch new texts, train, offer the weights; return a log line.

    Raises:
        UnavailableError: if the service does not answer.
    """
    training.add(asyncio.run(link.texts(training.newest)))
    if len(training.texts) < MIN_TEXTS:
        time.sleep(max(0.0, seconds))
        return f"{len(training.texts)} texts, {MIN_TEXTS} are needed: waiting"
    loss, seen = training.train(seconds)
    training.save()
    reply = asyncio.run(link.offer(out))
    if reply.taken or reply.tokens_per_step:  # the offer was judged
        training.note(reply.taken, reply.version)
    verdict = f"accepted as version {reply.version}" if reply.taken else f"refused: {reply.why}"
    rates = (
        f"{reply.tokens_per_step_before:.3f} -> {reply.tokens_per_step:.3f} tokens a step on {reply.episodes}"
    )
    return f"{len(training.texts)} texts, loss {loss:.3f}, {seen} tokens seen; {verdict} ({rates})"


@dataclass(frozen=True, slots=True)
class LearningLink:
    """Calls to a learning service."""

    address: str
    tls: ClientTls

    async def model(self, given: str) -> str:
        """Return the given SSM, or the one that the service started with.

        Raises:
            SettingError: if the service does not learn.
            UnavailableError: if the service does not answer.
        """
        async with open_channel(self.address, self.tls) as channel:
            stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
            with self._explained():
                description = await stub.Describe(speculator_pb2.DescribeSpeculatorRequest(), timeout=CALLS_S)
        if not description.learns:
            raise SettingError("ADDRESS", self.address, "was not started with --learn")
        return given or next(
            str(member.model) for member in description.speculators if member.drafter == LEARNT
        )

    async def texts(self, after: int) -> list[learning_pb2.Episode]:
        """Return the texts with numbers above `after`.

        Raises:
            UnavailableError: if the service does not answer.
        """
        async with open_channel(self.address, self.tls) as channel:
            stub = learning_pb2_grpc.LearningStub(channel)  # type: ignore[no-untyped-call]
            with self._explained():
                request = learning_pb2.ReplayRequest(after=after)
                return [text async for text in stub.Replay(request, timeout=CALLS_S)]

    async def offer(self, directory: Path) -> learning_pb2.OfferReply:
        """Offer a checkpoint; return the service's answer.

        Raises:
            UnavailableError: if the service does not answer.
            FaultError: if the service refuses the call or fails.
        """
        async with open_channel(self.address, self.tls) as channel:
            stub = learning_pb2_grpc.LearningStub(channel)  # type: ignore[no-untyped-call]
            with self._explained():
                reply: learning_pb2.OfferReply = await stub.Offer(parts_of(directory), timeout=CALLS_S)
        return reply

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if error.code() in MOMENTARY:
                reason = f"the speculator service at {self.address} does not answer: {error.details()}"
                raise UnavailableError(reason) from error
            raise FaultError(
                f"the service at {self.address} refused the call ({error.details()})", error
            ) from error


def parts_of(directory: Path) -> Iterator[learning_pb2.CheckpointPart]:
    """Yield the files of a checkpoint as messages of limited size."""
    for name in FILES:
        with (directory / name).open("rb") as file:
            while data := file.read(PART_BYTES):
                yield learning_pb2.CheckpointPart(file=name, data=data)


class OnlineTraining:
    """An SSM in training, and its texts."""

    def __init__(self, name: str, out: Path, learning_rate: float, place: str) -> None:
        """Start from a trained SSM; `place` is the torch device.

        Raises:
            SettingError: if the model is missing or not a trained SSM.
        """
        directory = resolve_model(name)
        self._target_name = verifier_of(directory)
        self._target = resolve_model(self._target_name)
        self._name, self._out, self._rate, self._place = name, out, learning_rate, place
        self._first = load_ssm(directory, self._target)
        self._accepted: dict[int, DraftModel] = {}
        """Last two accepted drafts by version: the service may revert one."""
        self._version: int | None = None
        """Version of the served weights, once known."""
        self._draft = self._first
        self._max_tokens = len(self._first.token_ids) + MAX_NEW_TOKENS
        self.texts: list[Continuation] = []
        self._expire: list[float] = []
        """Monotonic time at which each text expires."""
        self.newest = 0
        self._rng = np.random.default_rng(0)
        self._refusals = self._seen = 0
        self._begin()

    def add(self, episodes: Sequence[learning_pb2.Episode]) -> None:
        """Add texts; drop expired texts, and the oldest above `REPLAY_TOKENS`."""
        for episode in episodes:
            tokens = tuple(episode.token_ids)
            self.texts.append(Continuation(tokens[: episode.prompt_len], tokens[episode.prompt_len :]))
            self._expire.append(time.monotonic() + episode.expires_seconds)
            self.newest = episode.number
        size, now = sum(len(text.prompt) + len(text.output) for text in self.texts), time.monotonic()
        while self.texts and (size > REPLAY_TOKENS or self._expire[0] < now):
            oldest = self.texts.pop(0)
            self._expire.pop(0)
            size -= len(oldest.prompt) + len(oldest.output)

    def train(self, seconds: float) -> tuple[float, int]:
        """Train for `seconds`; return the mean loss and the number of tokens."""
        grown = with_frequent_tokens(self._current(), self.texts, self._target, self._max_tokens)
        if len(grown.token_ids) > len(self._draft.token_ids):
            self._draft = grown
            self._begin()
        examples = labelled(self.texts, self._draft.token_ids.numpy())
        ends, losses = time.monotonic() + seconds, list[float]()
        while not losses or time.monotonic() < ends:
            for _, batch in batches(examples, TOKENS_PER_BATCH, self._rng):
                losses.append(train_step(self._student, self._optimizer, batch, ssm_loss))
                self._seen += len(batch.next_tokens)
                if time.monotonic() >= ends:
                    break
        return float(np.mean(losses)), self._seen

    def save(self) -> None:
        """Write the SSM to `out`."""
        trained = {"command": f"specinfer train follow, from {self._name}", "tokens_seen": self._seen}
        config, tensors = self._student.config, self._student.tensors()
        token_ids = self._draft.token_ids
        save_ssm(self._out, tensors, token_ids, config, self._target, self._target_name, trained)

    def note(self, accepted: bool, version: int) -> None:
        """Note the service's answer to the last offer, and its version.

        Training restarts at the served weights if the service reverted weights, or refused `REFUSALS` offers in a
        row.
        """
        if accepted:
            self._accepted = dict([*self._accepted.items(), (version, self._current())][-2:])
            self._version, self._refusals = version, 0
            return
        taken_back = self._version is not None and version != self._version
        self._version, self._refusals = version, self._refusals + 1
        if taken_back or (self._accepted and self._refusals % REFUSALS == 0):
            self._draft, self._refusals = self._accepted.get(version, self._first), 0
            self._begin()

    def _begin(self) -> None:
        """Create student and optimizer from `self.draft`."""
        self._student = Student.from_draft(self._draft).to(self._place)
        self._optimizer = torch.optim.AdamW(
            self._student.parameters(), self._rate, weight_decay=0.01, fused=True
        )

    def _current(self) -> DraftModel:
        """Return a copy of the SSM in training."""
        tensors = {name: tensor.clone().cpu() for name, tensor in self._student.tensors().items()}
        return replace(self._draft, weights={**self._draft.weights, **tensors})


def labelled(texts: Sequence[Continuation], vocabulary: NDArray[np.int64]) -> Examples:
    """Label texts with the target's choices; `vocabulary`: ascending target ids."""
    labels = [
        Labels(np.array(text.output, np.int32)[:, None], np.ones((len(text.output), 1), np.float16))
        for text in texts
    ]
    return Examples(texts, [in_draft_vocabulary(text_labels, vocabulary) for text_labels in labels])


def with_frequent_tokens(
    draft: DraftModel, texts: Sequence[Continuation], target: Path, max_tokens: int
) -> DraftModel:
    """Extend an SSM's draft vocabulary by frequent tokens, to at most `max_tokens`.

    New rows of the head are copied from the target.
    """
    known = set(draft.token_ids.tolist())
    counts = Counter(token for text in texts for token in text.output if token not in known)
    room = max(0, max_tokens - len(known))
    new = [token for token, count in counts.most_common(room) if count >= MIN_OCCURRENCES]
    if not new:
        return draft
    config = load_config(target)
    rows = output_head(config, open_weights(target, config))[torch.tensor(new)]
    token_ids = torch.cat([draft.token_ids, torch.tensor(new)])
    head = torch.cat([draft.weights["lm_head.weight"].float(), rows.float()])
    order = token_ids.argsort()
    return replace(
        draft,
        config=replace(draft.config, vocab_size=len(token_ids)),
        weights={**draft.weights, "lm_head.weight": head[order]},
        token_ids=token_ids[order],
    )
