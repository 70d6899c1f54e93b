"""Measures one pool: starts its services, lets the modes take turns, looks at what they hold."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from os import sysconf
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.suite.perplexity import Scorer
from benchmarks.suite.plan import SuitePlan, Turns, runs_of
from benchmarks.suite.pools import SuitePool
from specinfer.cli.bench import BenchPlan, take_turns, warm_up
from specinfer.cli.connection import Connection, describe_verifier
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.running import local_system
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.show import progress_bar

_DROPPED = "specinfer_verifier_window_dropped_tokens_total"
Entry = dict[str, Any]


def measure_pool(
    name: str, pool: SuitePool, options: LocalOptions, plan: SuitePlan, scorer: Scorer
) -> tuple[list[Entry], list[tuple[int, int]]]:
    """Its runs, and (tokens, microseconds) of its verifier's passes."""
    bench = plan.bench(pool.modes)
    (port,) = free_ports(1)
    with local_system(_with_metrics(options, port)) as system, progress_bar() as bar:
        task = bar.add_task(name, total=len(bench.prompts) * len(bench.modes) * len(bench.batches))

        def advance(label: str) -> None:
            bar.update(task, advance=1, description=f"{name}: {label}")

        batches = asyncio.run(_all_batches(system, port, bench, advance))
        passes = [(cost.tokens, cost.microseconds) for cost in describe_verifier(system.verifier).pass_costs]
    found = []
    for batch, (turns, held) in batches.items():
        for entry in runs_of(plan, batch, turns):
            perplexity = scorer.perplexity(plan.prompts, turns[entry["mode"]])
            found.append({"pool": name, **entry, "perplexity": perplexity, **held})
    return found, passes


async def _all_batches(
    system: LocalSystem, port: int, plan: BenchPlan, advance: Callable[[str], None]
) -> dict[int, tuple[Turns, Entry]]:
    """By batch size the turns, and what the services hold after them."""
    found: dict[int, tuple[Turns, Entry]] = {}
    async with Connection(system.address).client() as client:
        await warm_up(client, plan)
        for batch in plan.batches:
            before = _resident_mib(system), _dropped_tokens(port)
            turns = await take_turns(client, plan, batch, advance)
            after = _resident_mib(system), _dropped_tokens(port)
            found[batch] = (
                turns,
                {
                    "memory_mib": round(after[0], 1),
                    "memory_growth_mib": round(after[0] - before[0], 1),
                    "dropped_tokens": after[1] - before[1],
                },
            )
    return found


def _with_metrics(options: LocalOptions, port: int) -> LocalOptions:
    return replace(options, verifier={**options.verifier, "metrics-port": str(port)})


def _resident_mib(system: LocalSystem) -> float:
    """Memory of all services that is really there; what two of them share counts twice. 0 without /proc."""
    pages = sum(_resident_pages(child.pid for child in system.children.values()))
    return pages * sysconf("SC_PAGE_SIZE") / 2**20


def _resident_pages(pids: Iterable[int]) -> Iterable[int]:
    for pid in pids:
        with suppress(FileNotFoundError):
            yield int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def _dropped_tokens(port: int) -> int:
    """Context tokens that the verifier's windowed caches have dropped."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return int(sum(sample.value for sample in samples if sample.name == _DROPPED))
