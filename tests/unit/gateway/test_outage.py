"""What is logged while the verifier is away."""

import pytest

from gateway.clients.outage import Outage


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
