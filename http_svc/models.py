"""Ask gateways for their model and their health."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc

from http_svc.errors import ApiError
from specinfer import __version__
from specinfer.client import AsyncClient
from specinfer.client.described import model_of
from specinfer.service.channel import open_channel
from specinfer.service.tls import ClientTls
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import generation_pb2

_TIMEOUT_S = 2.0


class GatewayHealth:
    """Check the health of gateways, over channels without a caller's key."""

    def __init__(self, addresses: tuple[str, ...], tls: ClientTls) -> None:
        self._addresses, self._tls = addresses, tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def problem(self) -> str:
        """Return the problems of all gateways; empty if any gateway is healthy."""
        checks = [asyncio.create_task(self._check(address)) for address in self._addresses]
        problems = []
        try:
            for check in asyncio.as_completed(checks):
                problem = await check
                if not problem:
                    return ""
                problems.append(problem)
        finally:
            for task in checks:
                task.cancel()
            await asyncio.gather(*checks, return_exceptions=True)
        return "; ".join(sorted(problems))

    async def _check(self, address: str) -> str:
        if address not in self._channels:  # opened on first use: a channel is bound to an event loop
            self._channels[address] = open_channel(address, self._tls)
        problem = await _problem(self._channels[address])
        return f"gateway at {address}: {problem}" if problem else ""

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


async def _problem(channel: grpc.aio.Channel) -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


_FRESH_S = 5.0
"""Seconds for which a gateway's reply is cached."""


class Models:
    """Cache of the served model's names and answer format."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        given: Sequence[str] = (),
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._asked_at = clock, -math.inf
        self._given, self._names = bool(given), tuple(given)
        self._wall_clock, self._created, self._served = wall_clock, 0, ""
        self.form = ChatForm()
        """Format of calls and reasoning, from a gateway's latest reply."""
        self._asking: asyncio.Future[generation_pb2.StatusReply] | None = None

    async def check(self, client: AsyncClient, name: str | None) -> str:
        """Check that a model is served; return its first name. None stands for any model."""
        if name is None:
            if not self._fresh:
                await self._ask(client)
            return self._names[0]
        if self._given:
            self._require(name)
        if not self._fresh or (not self._given and name not in self._names):
            await self._ask(client)
        self._require(name)
        return self._names[0]

    @property
    def _fresh(self) -> bool:
        return self._clock() < self._asked_at + _FRESH_S

    async def _ask(self, client: AsyncClient) -> None:
        """Query gateways for the model.

        Concurrent calls share one query. If it fails, the other calls query with their own keys.
        """
        if self._asking is not None:
            await asyncio.wait({self._asking})
            if self._fresh:
                return
        self._asking = asking = asyncio.ensure_future(client.status())
        try:
            self.remember(await asking)
        finally:
            if self._asking is asking:
                self._asking = None

    async def describe(self, client: AsyncClient, name: str | None = None) -> list[dict[str, Any]]:
        """Describe the model under one or all names, in OpenAI's format."""
        status = await client.status()
        self.remember(status)
        if name is not None:
            self._require(name)
        form = status.chat_form
        common = {
            "object": "model",
            "created": self._created,
            "owned_by": "specinfer",
            "max_model_len": status.max_context_len,
            "weights": status.weights,
            "drafts": [
                {"name": one.name, "drafter": one.drafter, "model": model_of(one)}
                for one in status.speculators
                if one.drafter
            ],
            "abilities": {
                "tools": form.tools,
                "reasoning": bool(form.reasoning_begin),
                "infill": form.infill,
            },
            "default_sampling_params": MessageToDict(
                status.default_sampling, preserving_proto_field_name=True
            ),
        }
        return [{"id": one} | common for one in (self._names if name is None else (name,))]

    async def props(self, client: AsyncClient) -> dict[str, Any]:
        """Describe the model in llama-server's format, with its drafts and abilities."""
        model, *_ = await self.describe(client)
        sampling = model["default_sampling_params"]
        return {
            "default_generation_settings": {"n_ctx": model["max_model_len"], "params": sampling},
            "model_alias": model["id"],
            "chat_template_caps": {"supports_tools": model["abilities"]["tools"]},
            **{name: model[name] for name in ("drafts", "abilities")},
            "build_info": f"specinfer {__version__}",
        }

    def _require(self, name: str) -> None:
        if name not in self._names:
            served = ", ".join(map(repr, self._names))
            reason = f"model = {name!r}: not served here, only {served}"
            raise ApiError(404, reason, "model_not_found", "model")

    def remember(self, status: generation_pb2.StatusReply) -> None:
        """Store the model's name and answer format from a gateway's reply."""
        if status.model != self._served:
            self._served, self._created = status.model, int(self._wall_clock())
        self._asked_at, form = self._clock(), status.chat_form
        self.form = ChatForm(
            form.calls,
            (form.reasoning_begin, form.reasoning_end),
            dict(form.mark_tokens),
        )
        if not self._given:
            self._names = (status.model,)
