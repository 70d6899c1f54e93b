"""Systems over the turns in which they were measured."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Measured = Mapping[str, Mapping[str, Any]]


def over_turns(turns: Sequence[Measured], rates: Sequence[str]) -> dict[str, Any]:
    """Return every system's medians over turns, and the range of each of these rates.

    What is text comes from the last turn; a system missing in any turn is missing.
    """
    systems: dict[str, dict[str, Any]] = {}
    spread: dict[str, dict[str, list[float]]] = {}
    for name in {**turns[0], **turns[-1]}:
        found = [turn[name] for turn in turns if name in turn]
        reasons = [each["missing"] for each in found if "missing" in each]
        systems[name] = {"missing": reasons[0]} if reasons else _medians(found)
        if not reasons:
            spread[name] = {
                rate: [min(each[rate] for each in found), max(each[rate] for each in found)]
                for rate in rates
                if rate in found[0]
            }
    return {"systems": systems, "spread": spread}


def _medians(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, str) else median(each[key] for each in found if key in each)
        for key, value in found[-1].items()
    }


def settings_list(systems: Measured) -> list[str]:
    """Return a line for each system that says how its weights are held and its flags."""
    return [f"- {name}: {system['settings']}" for name, system in systems.items() if "settings" in system]
