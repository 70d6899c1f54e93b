"""The doors by name."""

from collections.abc import Callable

from tests.fuzz.bodies import BodyDoor
from tests.fuzz.descriptions import DescriptionDoor
from tests.fuzz.door import Door
from tests.fuzz.generate import GenerateDoor
from tests.fuzz.replies import ReplyDoor
from tests.fuzz.requests import RequestDoor

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
    """A fresh door."""
    return DOORS[name]()
