"""Streams on a gateway, from a process of their own.

    python -m benchmarks.serving.streams ADDRESS < orders        one JSON object per line: `Order`
                                                                 > one JSON list of `Outcome`s per order

Replies stay bytes but for their number and the first one's time: a client that reads them all would need
the core that the gateway is measured on.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import grpc

from specinfer.service.channel import channel_options
from specinfer.v1 import common_pb2, generation_pb2

_PROMPT = 40
"""A token of any vocabulary."""
_STREAMS_PER_CHANNEL = 100
"""One connection's streams share its flow control and its lock."""
_METHOD = "/specinfer.v1.Generation/Generate"


@dataclass(frozen=True, slots=True)
class Order:
    """Requests that are sent to the gateway at once."""

    streams: int
    new_tokens: int
    prompt_tokens: int = 16
    seconds: float = 0.0
    """A stream that ends begins again as long as this lasts; 0: each runs once."""
    key: str = ""
    """API key; empty for none."""
    delay_s: float = 0.0
    """After which it begins."""


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """The outcome of one request."""

    ttft_s: float
    total_s: float
    replies: int
    error: str = ""


async def run_orders(address: str, orders: list[Order]) -> list[list[StreamOutcome]]:
    """All orders beside each other; the outcomes of each."""
    return list(await asyncio.gather(*(_order(address, order) for order in orders)))


async def _order(address: str, order: Order) -> list[StreamOutcome]:
    await asyncio.sleep(order.delay_s)
    outcomes: list[StreamOutcome] = []
    channels = [_channel(address, i) for i in range(-(-order.streams // _STREAMS_PER_CHANNEL))]
    until = time.perf_counter() + order.seconds
    try:
        work = [_stream(channels[i % len(channels)], order, i, until, outcomes) for i in range(order.streams)]
        await asyncio.gather(*work)
    finally:
        for channel in channels:
            await channel.close()
    return outcomes


def _channel(address: str, index: int) -> grpc.aio.Channel:
    own = [("grpc.use_local_subchannel_pool", 1), ("specinfer.channel", index)]  # not one connection for all
    return grpc.aio.insecure_channel(address, options=[*channel_options(), *own])


async def _stream(
    channel: grpc.aio.Channel, order: Order, index: int, until: float, outcomes: list[StreamOutcome]
) -> None:
    generate = channel.unary_stream(
        _METHOD, request_serializer=generation_pb2.GenerateRequest.SerializeToString
    )
    while True:
        outcomes.append(await _request(generate, order, index))
        if time.perf_counter() >= until:
            return


async def _request(
    generate: "grpc.aio.UnaryStreamMultiCallable[generation_pb2.GenerateRequest, bytes]",
    order: Order,
    index: int,
) -> StreamOutcome:
    started, first, replies = time.perf_counter(), 0.0, 0
    metadata = (("authorization", f"Bearer {order.key}"),) if order.key else ()
    try:
        async for _ in generate(_message(order, index), metadata=metadata):
            first = first or time.perf_counter() - started
            replies += 1
    except grpc.aio.AioRpcError as error:
        return StreamOutcome(
            first, time.perf_counter() - started, replies, f"{error.code().name}: {error.details()}"
        )
    return StreamOutcome(first, time.perf_counter() - started, replies)


def _message(order: Order, index: int) -> generation_pb2.GenerateRequest:
    """Prompts differ, so that none is found in the cache of another."""
    ids = [_PROMPT + (index >> bit) % 2 for bit in range(order.prompt_tokens)]
    return generation_pb2.GenerateRequest(
        tokens=generation_pb2.TokenIds(ids=ids),
        max_new_tokens=order.new_tokens,
        sampling=common_pb2.SamplingParams(temperature=0.0),
        speculation=generation_pb2.SPECULATION_OFF,
        ignore_eos=True,
    )


if __name__ == "__main__":
    orders = [Order(**json.loads(line)) for line in sys.stdin]
    found = asyncio.run(run_orders(sys.argv[1], orders))
    json.dump([[asdict(outcome) for outcome in each] for each in found], sys.stdout)
