"""A session that lost its lease is closed itself, never its successor at the same verifier."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.sessions import VerifierSessions
from gateway.store.protocol import VerifierLease


def session_of(fence: int) -> Any:
    link = SimpleNamespace(description="described", holder="me", address="v")
    return SimpleNamespace(lease=VerifierLease("v", fence), link=link)


class Leases:
    """Leases of a gateway; another session of the verifier begins while a claim is on its way."""

    gateway_id = "me"

    def __init__(self, answer: VerifierLease | str) -> None:
        self.answer, self.released = answer, list[VerifierLease]()
        self.sessions: Any = None
        self.successor: Any = None

    async def claim(self, instance_id: str) -> VerifierLease | str:
        self.sessions.start_closing(self.sessions.by_instance[instance_id])
        if self.successor is not None:
            self.sessions.by_instance[instance_id] = self.successor
        return self.answer

    async def release(self, lease: VerifierLease) -> None:
        self.released.append(lease)


@pytest.fixture(name="closed")
def closed_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    closed = list[Any]()
    monkeypatch.setattr(VerifierSessions, "_end", lambda self, session: closed.append(session))
    monkeypatch.setattr(VerifierSessions, "_in_background", lambda self, work: None)
    return closed


async def test_a_session_is_closed_once_and_not_in_place_of_its_successor(closed: list[Any]) -> None:
    sessions, old, new = VerifierSessions(Any), session_of(1), session_of(2)  # type: ignore[arg-type]
    sessions.by_instance["v"] = old
    sessions.start_closing(old)
    sessions.by_instance["v"] = new
    sessions.start_closing(old)
    assert (closed, sessions.by_instance) == ([old], {"v": new})


async def test_a_late_answer_of_a_claim_concerns_the_present_session(closed: list[Any]) -> None:
    old, new, leases = session_of(1), session_of(2), Leases("me")
    sessions = VerifierSessions(SimpleNamespace(store=leases))  # type: ignore[arg-type]
    leases.sessions, leases.successor = sessions, new
    sessions.by_instance["v"] = old
    await sessions.renew_lease("v")
    assert (closed, sessions.by_instance) == ([old], {"v": new}), "the successor has the lease"


async def test_a_lease_that_no_session_needs_any_more_is_released(closed: list[Any]) -> None:
    lease = VerifierLease("v", 7)
    leases = Leases(lease)
    sessions = VerifierSessions(SimpleNamespace(store=leases))  # type: ignore[arg-type]
    leases.sessions, sessions.by_instance["v"] = sessions, session_of(1)
    await sessions.renew_lease("v")
    assert leases.released == [lease]
