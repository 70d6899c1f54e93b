"""Log lines of a speculator service whose drafter fails: few lines, without content of requests."""

import logging
from collections.abc import Callable

import pytest

from specinfer.drafters import DraftJob
from specinfer.drafters.custom import CustomDrafter
from specinfer.drafters.entries import DraftOutcome
from specinfer.drafters.ngram import NgramDrafter
from specinfer.errors import SpecInferError
from specinfer.remote.contract.examined import Examined
from specinfer.request.statuses import EntryStatus
from specinfer.service.channel import open_channel
from specinfer.system.log_lines import LOG_EVERY_S
from specinfer.tree import TokenTree
from speculator_svc.servicer import DraftFailures
from tests.support.services import speculator_service
from tests.support.system import ScriptedDrafter


def failed(*speculators: int) -> DraftOutcome:
    return DraftOutcome(
        "r", EntryStatus.OK, drafts=tuple((n, SpecInferError(f"no {n}")) for n in speculators), cached_len=1
    )


def test_the_first_failure_of_each_is_logged_then_one_every_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = DraftFailures(["ssm", "ngram"])
    for tenths in range(round(10 * LOG_EVERY_S) + 1):
        failures.note([failed(0), failed(0)], 7 + tenths / 10)
    failures.note([failed(0, 1)], 12.5)
    assert [record.getMessage() for record in caplog.records] == [
        "speculator ssm failed to draft (2 so far): no 0",
        "speculator ssm failed to draft (102 so far): no 0",
        "speculator ngram failed to draft (1 so far): no 1",
    ]


def _raises(_: object, __: object) -> object:
    raise ValueError("secret text")


def _scripted(job: DraftJob) -> TokenTree:
    raise KeyError("a drafter of ours")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: CustomDrafter(_raises, "mine:draft"), "mine:draft failed: ValueError at"),
        (lambda: ScriptedDrafter(lambda _: None), "the drafter ScriptedDrafter failed: it returned NoneType"),  # type: ignore[arg-type,return-value]
        (lambda: CustomDrafter(lambda *_: "no tree", "mine:draft"), "mine:draft returned str"),
        (lambda: ScriptedDrafter(_scripted), "the drafter ScriptedDrafter failed: KeyError at"),
    ],
)
async def test_a_service_logs_that_its_drafter_raises(
    make: Callable[[], CustomDrafter], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "speculator_svc"):
        async with (
            speculator_service({"bad": make(), "ngram": NgramDrafter()}) as (address, _),
            open_channel(address) as channel,
        ):
            examined = Examined(address, channel, 5.0)
            await examined.describe()
            for number in range(20):
                await examined.ask([examined.entry(f"r{number}", examined.context(12))])
            await examined.close()
    lines = [r.getMessage() for r in caplog.records if "failed to draft" in r.getMessage()]
    assert len(lines) == 1, "of twenty"
    assert lines[0].startswith(f"speculator bad failed to draft (1 so far): {reason}")
    assert "secret" not in lines[0]
