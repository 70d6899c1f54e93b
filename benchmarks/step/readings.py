"""Counters of a decoding step as they stand at a moment: seconds, processor time, messages, commands.

A reading is a flat mapping from a counter's name to its value since the start; what a turn used is the difference
of two. Names have a part before each point: `phase.verify`, `cpu.gateway`, `redis.evalsha`.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from specinfer.client import AsyncClient
from specinfer.llm import LLM

Reading: TypeAlias = Mapping[str, float]
_OWN_COMMANDS = ("info",)
"""Redis commands of a reading itself."""


def used(before: Reading, after: Reading) -> dict[str, float]:
    """The difference of two readings."""
    return {name: round(value - before.get(name, 0.0), 6) for name, value in after.items()}


def process_counters(name: str, pid: int | str) -> dict[str, float]:
    """Processor seconds of a process, its threads together, and how often one of them went to sleep."""
    seconds, sleeps = 0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        sleeps += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return {f"cpu.{name}": seconds / 1e9, f"sleeps.{name}": float(sleeps)}


def metric_values(port: int) -> dict[str, float]:
    """Counts of a service by sample; labels follow the name with points between."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return {
        ".".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def redis_counters(redis: "Redis") -> dict[str, float]:
    """Commands that Redis ran, by name, and its seconds in them; scripts count the commands that they run, too."""
    stats: dict[str, Any] = redis.info("commandstats")  # type: ignore[assignment]
    named = {key.removeprefix("cmdstat_"): value for key, value in stats.items()}
    found = {
        f"redis.{name}": float(value["calls"]) for name, value in named.items() if name not in _OWN_COMMANDS
    }
    scripts = named.get("evalsha", {"usec": 0})
    return found | {"redis_seconds": scripts["usec"] / 1e6}


async def service_counters(
    client: AsyncClient, pids: Mapping[str, int], ports: Mapping[str, int], redis: "Redis"
) -> dict[str, float]:
    """All counters of a system of services."""
    status = await client.status()
    found = {"wall": time.perf_counter(), "steps": float(status.steps), "tokens": float(status.new_tokens)}
    found |= {f"phase.{phase.name}": phase.seconds for phase in status.phases}
    for name, pid in pids.items():
        found |= process_counters(name, pid)
    found |= redis_counters(redis)
    verifier, gateway = metric_values(ports["verifier"]), metric_values(ports["gateway"])
    passes = [
        value for name, value in verifier.items() if name.startswith("specinfer_verifier_pass_seconds_sum")
    ]
    found["pass"] = sum(passes)
    found["verifier_step"] = verifier["specinfer_verifier_step_seconds_sum"]
    found["messages.verifier"] = 2 * verifier["specinfer_verifier_messages_total"]
    for name, value in gateway.items():
        if name.startswith("specinfer_wire_bytes_total."):
            peer = name.split(".")[1]
            found[f"bytes.{peer}"] = found.get(f"bytes.{peer}", 0.0) + value
        if name.startswith("specinfer_drafts_total."):
            found["messages.speculators"] = found.get("messages.speculators", 0.0) + value
    return found


def in_process_counters(llm: LLM, pass_cpu_s: float) -> dict[str, float]:
    """All counters of an `LLM` in this process, of whose processor time so much went into passes."""
    totals = {metric.name: metric.value for metric in llm.get_metrics()}
    return {
        "wall": time.perf_counter(),
        "steps": totals["steps"],
        "tokens": totals["generation_tokens"],
        "pass": totals["pass_seconds"],
        "pass_cpu": pass_cpu_s,
        **process_counters("process", "self"),
    }
