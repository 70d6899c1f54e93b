"""Whether any gateway can work, by their health services."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specinfer.service.channel import open_channel
from specinfer.service.tls import ClientTls

_TIMEOUT_S = 2.0


class GatewayHealth:
    """Channels of its own to every gateway: health is asked without a key."""

    def __init__(self, addresses: tuple[str, ...], tls: ClientTls) -> None:
        self._addresses, self._tls = addresses, tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def problem(self) -> str:
        """Why no gateway can work; empty if one can."""
        problems = []
        for address in self._addresses:
            if address not in self._channels:  # opened on first use: a channel belongs to the running loop
                self._channels[address] = open_channel(address, self._tls)
            found = await _problem(self._channels[address])
            if not found:
                return ""
            problems.append(f"gateway at {address}: {found}")
        return "; ".join(problems)

    async def close(self) -> None:
        """Closes all channels."""
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
