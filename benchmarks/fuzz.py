"""Send corrupt messages to every interface ("door") of the system.

    python -m benchmarks.fuzz --messages 300000 --door all --seed 28

Nothing may crash, hang, leak, or change another request's text. Every door runs in its own process, so that its memory
can be measured. Exit code 1 if a fault was found; each finding names its seed and episode, and `--first EPISODE
--messages 1` runs the episode again. `--add` continues a report, so that a long campaign can be run in parts.
"""

import faulthandler
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from tests.fuzz.campaign import Campaign
from tests.fuzz.doors.registry import DOORS

_HUNG_S = 120.0
"""Timeout of an episode in seconds; an episode usually takes 0.1 s."""
_LINES = 20
"""Number of progress lines per door."""


def main(
    messages: Annotated[int, typer.Option(help="Corrupt messages per door.")] = 300_000,
    door: Annotated[str, typer.Option(help=f"One of {', '.join(DOORS)}, or all.")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 1,
    first: Annotated[int, typer.Option(help="Number of the first episode.")] = 0,
    processes: Annotated[int, typer.Option(help="Doors fuzzed at a time.")] = 2,
    add: Annotated[bool, typer.Option(help="Add to the report, after its last episodes.")] = False,
    json: Annotated[Path, typer.Option(help="The report; its .md is written, too.")] = RESULTS / "fuzz.json",
) -> None:
    """Fuzz doors and publish the findings."""
    if door != "all" and door not in DOORS:
        raise typer.BadParameter(f"{door}: must be all or one of {', '.join(DOORS)}", param_hint="--door")
    names = list(DOORS) if door == "all" else [door]
    before = _known(json, seed) if add else {}
    firsts = {name: before[name]["episodes"] if name in before else first for name in names}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {name: pool.submit(fuzz, name, seed, messages, firsts[name]) for name in names}
        reports = {name: running_door.result() for name, running_door in running.items()}
    doors = before | {name: together(before[name], f) if name in before else f for name, f in reports.items()}
    report = {
        "about": about_this_run("python -m benchmarks fuzz"),
        "seed": seed,
        "doors": [doors[n] for n in DOORS if n in doors],
    }
    json.write_text(dumps(report))
    publish(json.with_suffix(""), markdown(report))
    sys.exit(any(running_door["findings"] for running_door in reports.values()))


def _known(path: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Return the results by door of an existing report; {} without a file."""
    report: dict[str, Any] = loads(path.read_text()) if path.exists() else {"seed": seed, "doors": []}
    if report["seed"] != seed:
        raise typer.BadParameter(
            f"{seed}: the report to continue has seed {report['seed']}", param_hint="--seed"
        )
    return {door["door"]: door for door in report["doors"]}


def together(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Join the results of two parts of a campaign at one door."""
    summed = {name: before[name] + now[name] for name in ("messages", "episodes", "refused", "findings")}
    largest = {name: max(before[name], now[name]) for name in ("slowest_episode_s", "rss_growth_mib")}
    seconds = round(before["seconds"] + now["seconds"], 1)
    parts, memory = before.get("parts", 1) + 1, before["rss_mib"] + now["rss_mib"]
    return before | summed | largest | {"seconds": seconds, "parts": parts, "rss_mib": memory}


def fuzz(door: str, seed: int, messages: int, first: int) -> dict[str, Any]:
    """Fuzz one door; a hanging episode ends the process with a traceback."""
    torch.set_num_threads(1)  # two threads took twice the processor time, by spinning
    campaign = Campaign(door, seed)
    campaign.run(messages, _progress(campaign, messages), first)
    faulthandler.cancel_dump_traceback_later()
    return campaign.report()


def _progress(campaign: Campaign, messages: int) -> Callable[[int], None]:
    printed = 0

    def progress(done: int) -> None:
        nonlocal printed
        faulthandler.dump_traceback_later(_HUNG_S, exit=True)
        if done * _LINES // messages > printed:
            printed = done * _LINES // messages
            faults = f"{len(campaign.findings)} findings"
            print(
                f"{campaign.door}: {done:,} of {messages:,} messages, {faults}", file=sys.stderr, flush=True
            )

    return progress


def markdown(report: dict[str, Any]) -> str:
    """Return the report: a table, then the findings."""
    columns = [
        "spoilt messages",
        "episodes",
        "parts",
        "refused",
        "findings",
        "slowest episode, ms",
        "most memory, MiB",
        "growth, MiB",
    ]
    about = f"{origin(report['about'])}; seed {report['seed']}."
    growth = (
        "Growth is that of the resident memory from the second fifth of a part's messages to the last; "
        "of several parts, each a process, the largest."
    )
    lines = [
        "# Fuzzing",
        "",
        f"{about} {growth}",
        "",
        *head(columns, "door"),
        *(line(door["door"], _cells(door)) for door in report["doors"]),
    ]
    for door in report["doors"]:
        for finding in door["findings"]:
            lines += [
                "",
                f"- {door['door']}, episode {finding['episode']}: {finding['error']} ({finding['where']})",
            ]
    return "\n".join(lines) + "\n"


def _cells(door: dict[str, Any]) -> list[str]:
    memory = door["rss_mib"]
    return [
        f"{door['messages']:,}",
        f"{door['episodes']:,}",
        str(door.get("parts", 1)),
        f"{door['refused']:,}",
        str(len(door["findings"])),
        f"{1000 * door['slowest_episode_s']:.0f}",
        f"{max(memory):.0f}" if memory else "",
        f"{door['rss_growth_mib']:+.1f}",
    ]


if __name__ == "__main__":
    typer.run(main)
