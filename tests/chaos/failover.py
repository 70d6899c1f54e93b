"""Two Redis servers that change roles as a managed Redis does: nothing is lost, nobody is disconnected."""

import asyncio

from redis.asyncio import Redis

_PATIENCE_S = 30.0


class RedisRoles:
    """Roles of the two: one is the primary."""

    def __init__(self, primary: int, standby: int) -> None:
        """Both are ports of loopback."""
        self.primary, self.standby = primary, standby

    async def change(self) -> None:
        """Lets the standby catch up, then promotes it; the old primary stays up as its replica."""
        async with _client(self.primary) as old, _client(self.standby) as new, asyncio.timeout(_PATIENCE_S):
            await new.execute_command("REPLICAOF", "127.0.0.1", self.primary)
            while not await _in_step(new):  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)
            await old.execute_command("FAILOVER", "TO", "127.0.0.1", self.standby)
            while (await new.info("replication"))["role"] != "master":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            self.primary, self.standby = self.standby, self.primary
            while (await old.info("replication"))["role"] != "slave":  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def _in_step(replica: Redis) -> bool:
    """Return True if it has its primary's data, and has them in its append-only file, if it keeps one."""
    link, file = await replica.info("replication"), await replica.info("persistence")
    written = not (file["aof_rewrite_in_progress"] or file["aof_rewrite_scheduled"])
    return link.get("master_link_status") == "up" and written


def _client(port: int) -> Redis:
    return Redis(host="127.0.0.1", port=port, decode_responses=True)
