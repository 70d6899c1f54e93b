"""Test a running speculator service against docs/protocol.md: `specinfer check`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

from specinfer.errors import SpecInferError
from specinfer.remote.contract.examined import Examined, NotApplicableError
from specinfer.remote.contract.rules import RULES


class Outcome(StrEnum):
    KEPT = "ok"
    BROKEN = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one rule, and its reason."""

    rule: str
    outcome: Outcome
    detail: str = ""


async def check_contract(examined: Examined) -> AsyncIterator[Finding]:
    """Check every rule in order; stop if `Describe` fails."""
    for rule, check in RULES.items():
        try:
            yield Finding(rule, Outcome.KEPT, await check(examined))
        except NotApplicableError as error:
            yield Finding(rule, Outcome.SKIPPED, str(error))
        except SpecInferError as error:  # the rule is broken, or no answer, or another process answers
            yield Finding(rule, Outcome.BROKEN, str(error))
        if not examined.described:
            return
    await examined.close()
