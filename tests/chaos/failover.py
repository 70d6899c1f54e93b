"""Two Redis servers that swap roles like a managed Redis: no data is lost, no client is disconnected."""

import asyncio

from redis.asyncio import Redis

_PATIENCE_S = 30.0


class RedisRoles:
    """The roles of two servers: one is the primary."""

    def __init__(self, primary: int, standby: int) -> None:
        """Take the ports of both servers on loopback."""
        self.primary, self.standby = primary, standby

    async def change(self) -> None:
        """Promote the standby once it has all data; the old primary becomes its replica."""
        async with _client(self.primary) as old, _client(self.standby) as new, asyncio.timeout(_PATIENCE_S):
            await new.execute_command("REPLICAOF", "127.0.0.1", self.primary)
            while not await _in_step(old, new):  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)
            await old.execute_command("FAILOVER", "TO", "127.0.0.1", self.standby)
            while (await new.info("replication"))["role"] != "master":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            self.primary, self.standby = self.standby, self.primary
            while (await old.info("replication"))["role"] != "slave":  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def _in_step(primary: Redis, replica: Redis) -> bool:
    """Return whether a replica has its primary's data, also in its append-only file if it has one."""
    link, file = await replica.info("replication"), await replica.info("persistence")
    written = not (file["aof_rewrite_in_progress"] or file["aof_rewrite_scheduled"])
    known = (await primary.info("replication")).get("slave0", {}).get("state") == "online"
    return link.get("master_link_status") == "up" and written and known


def _client(port: int) -> Redis:
    return Redis(host="127.0.0.1", port=port, decode_responses=True)
