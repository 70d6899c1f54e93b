"""Table of the benchmark of drafting ahead."""

from typing import Any

_MEANING = """\
Greedy, one request at a time, {texts} texts of {new_tokens} tokens by each way in turns, {trees} by the shipped SSM.
The verifier replays what the real target says to these prompts, after the stated time, in which it sleeps: the
processor is the speculator's, as if the target had a device of its own. The round trip is between gateway and
speculator.

Milliseconds of a token behind the first message, (least-most) over the texts. D: a step waits so long for drafts that
are made between passes; V: the rest of that step; h: drafts that were made ahead, of those used; f: the same where
misses go without. Promised as in `specinfer/planning/ahead.py`.
"""


def report(found: dict[str, Any]) -> str:
    """Markdown of a report."""
    about = found["about"]
    trees = "chosen by the planner" if found["adaptive"] else f"trees of {found['nodes']} nodes"
    meaning = _MEANING.format(texts=found["texts"], new_tokens=found["new_tokens"], trees=trees)
    where = f"`{about['command']}`, commit {about['commit']}, {about['cpu']}, {about['cores']} cores."
    columns = ["round trip", "pass", "plain", "trees", "D", "V"]
    if found["adaptive"]:
        columns += ["auto", "auto over trees", "h"]
    else:
        columns += ["ahead", "ahead over trees", "promised", "h"]
        columns += ["ahead only", "ahead only over trees", "promised", "f", "ahead only over plain"]
    rows = [_row(cell, found["adaptive"]) for cell in found["cells"]]
    lines = ["# Drafting ahead of verdicts", "", where, "", meaning, f"| {' | '.join(columns)} |"]
    return "\n".join([*lines, "|" + "---|" * len(columns), *rows, ""])


def _row(cell: dict[str, Any], adaptive: bool) -> str:
    ways, times = cell["ways"], cell["ms_per_token"]
    mean = {way: sum(values) / len(values) for way, values in times.items()}
    trees = ways["trees"]
    draft_ms, rest_ms = (1000 * trees[name] / trees["steps"] for name in ("draft_s", "rest_s"))
    parts = [
        f"{cell['round_trip_ms']:g}",
        f"{cell['pass_ms']:g}",
        f"{mean['plain']:.1f}",
        _spread(times["trees"]),
    ]
    parts += [f"{draft_ms:.1f}", f"{rest_ms:.1f}"]
    if adaptive:
        parts += [
            _spread(times["auto"]),
            f"{mean['trees'] / mean['auto']:.2f}x",
            f"{_hits(ways['auto']):.2f}",
        ]
        return f"| {' | '.join(parts)} |"
    whole, longer = draft_ms + rest_ms, max(draft_ms, rest_ms)
    each, hit, drafted = trees["tokens"] / trees["steps"], _hits(ways["ahead"]), _hits(ways["only"])
    promised = whole / (longer + (1 - hit) * draft_ms), whole / longer * (1 + drafted * (each - 1)) / each
    for way, share, expected in (("ahead", hit, promised[0]), ("only", drafted, promised[1])):
        gain = mean["trees"] / mean[way]
        parts += [_spread(times[way]), f"{gain:.2f}x", f"{expected:.2f}x", f"{share:.2f}"]
    parts.append(f"{mean['plain'] / mean['only']:.2f}x")
    return f"| {' | '.join(parts)} |"


def _hits(way: dict[str, Any]) -> float:
    return float(way["hits"] / max(1, way["hits"] + way["misses"]))


def _spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1f} ({min(values):.1f}-{max(values):.1f})"
