"""Log lines and waiting times while a service is unavailable."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.persist import Persistence
from gateway.store.protocol import Written
from specinfer.errors import UnavailableError
from specinfer.remote.policy import PoolPolicy
from specinfer.service.outage import Outage, backoff


def test_the_first_failure_is_logged_then_one_every_five_seconds_then_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, error = Outage(), RuntimeError("gone")
    for tenths in range(121):
        assert outage.failed(error, 100 + tenths / 10) == pytest.approx(tenths / 10)
    outage.over(112.3)
    outage.over(112.4)
    assert outage.since is None
    assert outage.failed(error, 113.0) == 0.0
    assert [record.getMessage() for record in caplog.records] == [
        "the verifier does not answer (for 0 s): gone",
        "the verifier does not answer (for 5 s): gone",
        "the verifier does not answer (for 10 s): gone",
        "the verifier answers again after 12.3 s",
        "the verifier does not answer (for 0 s): gone",
    ]


@given(st.integers(0, 10**9), st.floats(0.001, 10), st.floats(0.001, 100))
def test_a_pause_grows_to_its_bound_after_any_number_of_failures(
    failures: int, first_s: float, longest_s: float
) -> None:
    pause = backoff(first_s, failures, longest_s)
    assert pause == min(longest_s, first_s * 2**failures if failures < 64 else longest_s)
    assert backoff(first_s, failures + 1, longest_s) >= pause
    assert PoolPolicy(100, "", retry_s=first_s, longest_retry_s=longest_s).retry_after(failures) == pause


async def test_an_outage_of_thousands_of_attempts_loses_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.session.persist._LONGEST_PAUSE_S", 0.0)
    attempts = 0

    class Store:
        async def append(self, *_: object) -> dict[str, Written]:
            nonlocal attempts
            attempts += 1
            if attempts <= 1100:
                raise UnavailableError("away")
            return []

    persistence = object.__new__(Persistence)
    persistence._store, persistence._outage, persistence._patience_s = Store(), Outage("Redis"), 1e9  # type: ignore[assignment]
    persistence._names, persistence._model, persistence._clock = [], "", time.monotonic
    assert await persistence._write([]) == {}
    assert attempts == 1101
