"""Agents that converse with a server until a given time, and record problems."""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.soak.checks import problems_of
from tests.soak.conversations import Body, openings
from tests.soak.doors import CHAT, ITEMS, Door, chosen_options

SILENCE_S = 900.0
"""Seconds without data after which an answer counts as never ending."""
_TURNS = 6
_SHOWN = 4000
"""Characters of a problem that are printed."""


@dataclass(slots=True)
class Report:
    """Outcome of a soak."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str, body: Body | None = None) -> None:
        """Record a problem with the request's body, and print it at once."""
        asked = "" if body is None else f"\n    {json.dumps(body, ensure_ascii=False)}"
        self.problems.append(problem + asked)
        print(self.problems[-1][:_SHOWN], file=sys.stderr, flush=True)


async def soak(base: str, model: str, agents: int, until: float, seed: int) -> Report:
    """Run `agents` agents concurrently until `until`, a value of `time.monotonic`."""
    report = Report()
    async with httpx.AsyncClient(base_url=base, timeout=httpx.Timeout(SILENCE_S)) as client:
        work = [
            _converse(client, model, until, random.Random(f"{seed} {number}"), report)
            for number in range(agents)
        ]
        await asyncio.gather(*work)
    return report


async def _converse(
    client: httpx.AsyncClient, model: str, until: float, choices: random.Random, report: Report
) -> None:
    while time.monotonic() < until:
        report.counts["conversations"] += 1
        door = choices.choice((CHAT, CHAT, ITEMS))
        history = door.begin(openings(choices), choices)
        for _ in range(choices.randint(1, _TURNS)):
            chosen = chosen_options(door, model, choices)
            body = door.body(history, chosen)
            try:
                answer = await _ask(client, door, body, choices, report)
            except httpx.HTTPError as error:
                report.add(f"{type(error).__name__}: {error}", body)
                break
            if answer is None or time.monotonic() > until:
                break
            chat = door.chat(answer)
            report.counts["answers"] += 1
            report.counts[f"answers of {door.path}"] += 1
            for problem in problems_of(chosen, chat):
                report.add(problem, body)
            if not chat["choices"]:
                break
            for choice in chat["choices"]:
                report.counts[f"ended by {choice.get('finish_reason')}"] += 1
                report.counts["calls"] += len(choice["message"].get("tool_calls") or ())
            history = door.go_on(history, answer, choices)


async def _ask(
    client: httpx.AsyncClient, door: Door, body: Body, choices: random.Random, report: Report
) -> Body | None:
    """Return the answer to a call; None if it failed, or if the agent disconnected."""
    if not body.get("stream"):
        reply = await client.post(door.path, json=body)
        if reply.status_code == httpx.codes.OK:
            return dict(reply.json())
        report.add(f"status {reply.status_code}: {reply.text[:300]}", body)
        return None
    hangs_up = choices.random() < 0.1
    async with client.stream("POST", door.path, json=body) as reply:
        if reply.status_code != httpx.codes.OK:
            report.add(f"status {reply.status_code}: {(await reply.aread())[:300]!r}", body)
            return None
        lines = list[str]()
        async for line in reply.aiter_lines():
            lines.append(line)
            if hangs_up and len(lines) > 6:
                report.counts["hung up"] += 1
                return None
    answer, problems = door.joined(lines)
    for problem in problems:
        report.add(problem, body)
    return answer
