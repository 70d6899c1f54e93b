"""Fuzzing targets by name."""

from collections.abc import Callable

from tests.fuzz.doors.bodies import BodyDoor
from tests.fuzz.doors.descriptions import DescriptionDoor
from tests.fuzz.doors.door import Door
from tests.fuzz.doors.generate import GenerateDoor
from tests.fuzz.doors.replies import ReplyDoor
from tests.fuzz.doors.requests import RequestDoor

DOORS: dict[str, Callable[[], Door]] = {
    "generate": GenerateDoor,
    "http-body": BodyDoor,
    "draft-reply": lambda: ReplyDoor("drafts"),
    "verify-reply": lambda: ReplyDoor("verdicts"),
    "describe-reply": DescriptionDoor,
    "verify-request": lambda: RequestDoor("verifier"),
    "draft-request": lambda: RequestDoor("speculator"),
}


def make_door(name: str) -> Door:
    return DOORS[name]()
