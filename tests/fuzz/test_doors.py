"""Short fuzzing campaigns at every target; `python -m tests.fuzz` sends 300,000 messages."""

from typing import Any

import pytest

import gateway.session.verifier
import specinfer.drafters.engine
import specinfer.engine.draft_group
import specinfer.verification.engine
from gateway.session.verdicts import _decoded
from specinfer.remote.service import SpeculatorService
from specinfer.scheduling.request import GenerationRequest
from tests.fuzz.campaign import Campaign
from tests.fuzz.doors.registry import DOORS

SEED = 28
MESSAGES = 300


def campaign(door: str, messages: int, most_findings: int = 20) -> Campaign:
    campaign = Campaign(door, SEED, most_findings=most_findings)
    campaign.run(messages)
    return campaign


@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_found(door: str) -> None:
    finished = campaign(door, MESSAGES)
    assert finished.messages >= MESSAGES
    assert not finished.findings, "\n\n".join(f.trace + f.message for f in finished.findings.values())


def test_a_campaign_is_reproducible() -> None:
    first, again = (campaign("generate", 200) for _ in range(2))
    assert first.refused == again.refused > 0


def _nothing(*_: Any, **__: Any) -> None: ...


@pytest.mark.parametrize(
    ("door", "where", "name", "fault"),
    [
        ("draft-reply", specinfer.engine.draft_group, "check_draft", _nothing),
        ("draft-reply", SpeculatorService, "forget", _nothing),
        (
            "verify-reply",
            gateway.session.verifier,
            "sound_verdicts",
            lambda entries, trees, answers, *more: {
                entry.request_id: _decoded(entry, len(trees.get(entry.request_id, ())), answer)
                for entry, answer in zip(entries, answers, strict=False)
            },
        ),
        ("verify-request", specinfer.verification.engine, "check_job", _nothing),
        ("draft-request", specinfer.drafters.engine, "check_entry", _nothing),
        ("generate", GenerationRequest, "check_against", _nothing),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_missing_check_is_found(
    door: str, where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, fault)
    assert campaign(door, 300, most_findings=1).findings
