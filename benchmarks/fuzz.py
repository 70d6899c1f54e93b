"""Spoilt messages at every door of the system: nothing may crash, hang, leak, or change anybody else's text.

    python -m benchmarks.fuzz --messages 300000 --door all --seed 28

Writes a report and its table. Every door runs in a process of its own, so that memory is its own. Exit
code 1 if anything was found; each finding names its seed and episode, and `--first EPISODE --messages 1`
runs that one again.
"""

import faulthandler
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from tests.fuzz.campaign import Campaign
from tests.fuzz.doors import DOORS

_HUNG_S = 120.0
"""An episode takes a tenth of a second."""
_LINES = 20
"""Of progress, per door."""


def main(
    messages: Annotated[int, typer.Option(help="Spoilt messages per door.")] = 300_000,
    door: Annotated[str, typer.Option(help=f"One of {', '.join(DOORS)}, or all.")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 1,
    first: Annotated[int, typer.Option(help="Number of the first episode.")] = 0,
    processes: Annotated[int, typer.Option(help="Doors fuzzed at a time.")] = 2,
    json: Annotated[Path, typer.Option(help="The report; a .md is written beside it.")] = RESULTS
    / "fuzz.json",
) -> None:
    """Fuzz doors and publish what came of it."""
    if door != "all" and door not in DOORS:
        raise typer.BadParameter(f"{door}: must be all or one of {', '.join(DOORS)}", param_hint="--door")
    names = list(DOORS) if door == "all" else [door]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(fuzz, name, seed, messages, first) for name in names]
        doors = [each.result() for each in running]
    report = {"about": about_this_run(), "messages": messages, "seed": seed, "doors": doors}
    publish(json.with_suffix(""), report, markdown(report))
    sys.exit(any(found["findings"] for found in doors))


def fuzz(door: str, seed: int, messages: int, first: int) -> dict[str, Any]:
    """One campaign; a message that hangs ends the process with a traceback of where."""
    campaign = Campaign(door, seed)
    campaign.run(messages, _progress(campaign, messages), first)
    faulthandler.cancel_dump_traceback_later()
    return campaign.report()


def _progress(campaign: Campaign, messages: int) -> Callable[[int], None]:
    told = 0

    def progress(done: int) -> None:
        nonlocal told
        faulthandler.dump_traceback_later(_HUNG_S, exit=True)
        if done * _LINES // messages > told:
            told = done * _LINES // messages
            found = f"{len(campaign.findings)} findings"
            print(f"{campaign.door}: {done:,} of {messages:,} messages, {found}", file=sys.stderr, flush=True)

    return progress


def markdown(report: dict[str, Any]) -> str:
    """The report as a table, its findings below."""
    columns = [
        "spoilt messages",
        "episodes",
        "refused",
        "findings",
        "slowest episode, ms",
        "memory, MiB",
        "growth, MiB",
    ]
    about = f"{origin(report['about'])}; seed {report['seed']}."
    growth = "Growth is that of the resident memory from the second fifth of the messages to the last."
    lines = [
        "# Fuzzing",
        "",
        f"{about} {growth}",
        "",
        *head(columns, "door"),
        *(line(found["door"], _cells(found)) for found in report["doors"]),
    ]
    for found in report["doors"]:
        for finding in found["findings"]:
            lines += [
                "",
                f"- {found['door']}, episode {finding['episode']}: {finding['error']} ({finding['where']})",
            ]
    return "\n".join(lines) + "\n"


def _cells(found: dict[str, Any]) -> list[str]:
    memory = found["rss_mib"]
    return [
        f"{found['messages']:,}",
        f"{found['episodes']:,}",
        f"{found['refused']:,}",
        str(len(found["findings"])),
        f"{1000 * found['slowest_episode_s']:.0f}",
        f"{memory[-1]:.0f}" if memory else "",
        f"{found['rss_growth_mib']:+.1f}",
    ]


if __name__ == "__main__":
    typer.run(main)
