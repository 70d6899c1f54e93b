"""Peers of the suite: what a program of somebody else's makes of the same prompts, as turns like ours."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite.perplexity import Scorer
from benchmarks.suite.plan import SuitePlan, runs_of
from benchmarks.suite.pools import ASSISTED
from specinfer.cli.bench import Turn
from specinfer.client import Answer, SpeculationStats, Summary
from specinfer.errors import UnavailableError


def measure_assisted(model: str, ssm: str, plan: SuitePlan, scorer: Scorer) -> list[dict[str, Any]]:
    """Hugging Face's assisted generation at batch 1, beside its own plain generation.

    Raises:
        UnavailableError: if it fails, with the last line that it wrote.
    """
    prompts = [scorer.prompt_tokens(prompt) for prompt in plan.prompts]
    task = {"model": model, "ssm": ssm, "prompts": prompts, "new_tokens": plan.size.new_tokens}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.suite.assisted"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["(no output)"])[-1]
        raise UnavailableError(f"{ASSISTED}: {last}")
    turns = {mode: [_turn(row) for row in rows] for mode, rows in json.loads(done.stdout).items()}
    return [
        {"pool": ASSISTED, **entry, "perplexity": scorer.perplexity(plan.prompts, turns[entry["mode"]])}
        for entry in runs_of(plan, 1, turns)
    ]


def _turn(row: Mapping[str, Any]) -> Turn:
    """One answer; what was drafted is not told, so its acceptance rate is none."""
    tokens: Sequence[int] = row["token_ids"]
    stats = SpeculationStats(steps=row["rounds"], accepted=len(tokens) - row["rounds"])
    tpot_s = (row["total_s"] - row["ttft_s"]) / max(1, len(tokens) - 1)
    summary = Summary(new_tokens=len(tokens), stats=stats)
    answer = Answer(token_ids=list(tokens), summary=summary, ttft_s=row["ttft_s"], tpot_s=tpot_s)
    return Turn([answer], row["total_s"])
