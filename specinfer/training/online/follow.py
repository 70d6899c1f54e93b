"""`specinfer train follow`: train a running speculator service's SSM on its requests.

    fetch new texts -> train for a round -> offer the weights -> again

The service compares offered weights with the served weights on held-out texts, and drafts with the better ones.
Training runs at the lowest priority (`OnlineTraining`).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grpc
import numpy as np
import typer

from specinfer.drafters.pools import LEARNT
from specinfer.errors import FaultError, SettingError, UnavailableError
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.service.channel import check_target, open_channel
from specinfer.service.tls import ClientTls
from specinfer.system.threads import LAST, give_way
from specinfer.training.distil import console
from specinfer.training.online.checkpoints import FILES
from specinfer.training.online.online_training import OnlineTraining
from specinfer.training.run import Device, Threads, place_for
from specinfer.v1 import learning_pb2, learning_pb2_grpc, speculator_pb2, speculator_pb2_grpc

MIN_TEXTS = 16
"""Minimum number of texts to train a round."""
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


def one_round(link: "LearningLink", training: OnlineTraining, out: Path, seconds: float) -> str:
    """Fetch new texts, train, offer the weights; return a log line."""
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
        """Return the given SSM; if empty, the SSM of the service's start."""
        async with open_channel(self.address, self.tls) as channel:
            stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
            with self._explained():
                description = await stub.Describe(speculator_pb2.DescribeSpeculatorRequest(), timeout=CALLS_S)
        if not description.learns:
            raise SettingError("ADDRESS", self.address, "the service must be started with --learn")
        return given or next(
            str(member.model) for member in description.speculators if member.drafter == LEARNT
        )

    async def texts(self, after: int) -> list[learning_pb2.Episode]:
        """Return the texts with numbers above `after`."""
        async with open_channel(self.address, self.tls) as channel:
            stub = learning_pb2_grpc.LearningStub(channel)  # type: ignore[no-untyped-call]
            with self._explained():
                request = learning_pb2.ReplayRequest(after=after)
                return [text async for text in stub.Replay(request, timeout=CALLS_S)]

    async def offer(self, directory: Path) -> learning_pb2.OfferReply:
        """Offer a checkpoint; return the service's answer."""
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
