"""Skeleton-of-thought: what the model is asked, and what its answers mean. Pure.

    route      does the question have an answer of several independent points?
    skeleton   the points, a few words each
    point      each expanded in a sentence or two, all at the same time

The questions end alike but for their last lines, so that the cache holds what they have in common once.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

FEWEST, MOST = 2, 10
"""Points of a skeleton; with fewer the question is answered as usual."""
ROUTE_TOKENS, SKELETON_TOKENS = 4, 96


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


_POINT = re.compile(r"^\s*(\d{1,2})[.):]\s*(.+?)\s*$", re.MULTILINE)


def route(question: str) -> str:
    """Asks whether the question fits."""
    return (
        f"Question: {question}\n\nCan this question be answered with a list of several points that do not "
        "depend on each other? Questions of mathematics, code, a single fact or a step-by-step derivation "
        "cannot. Answer with yes or no only."
    )


def fits(answer: str) -> bool:
    """What the router's answer means."""
    return answer.strip().lower().startswith("yes")


def outline(question: str) -> str:
    """Asks for the skeleton."""
    return (
        f"Question: {question}\n\nWrite only the skeleton of the answer: a numbered list of {FEWEST + 1} to "
        f"{MOST} points, each of 3 to 5 words and nothing else, one on a line."
    )


def points(skeleton: str) -> list[str]:
    """The points of a skeleton, in order; a number that does not go on from the one before ends it."""
    found: list[str] = []
    for number, point in _POINT.findall(skeleton):
        if int(number) != len(found) + 1 or len(found) == MOST:
            break
        found.append(point)
    return found


def expand(question: str, skeleton: Sequence[str], index: int) -> str:
    """Asks for one point in full."""
    listed = "\n".join(f"{i + 1}. {point}" for i, point in enumerate(skeleton))
    return (
        f"Question: {question}\n\nThe skeleton of the answer:\n{listed}\n\nContinue the writing of one point "
        "only, in one or two short sentences. Do not write about the other points.\n"
        f"Point {index + 1}: {skeleton[index]}"
    )


def heading(index: int, point: str) -> str:
    """What is told before an expanded point."""
    return f"{chr(10) * 2 if index else ''}{index + 1}. {point.rstrip('.:')}: "
