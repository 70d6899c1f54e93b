"""`specinfer check` and `--explain`: test a service, explain automatic choices."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from specinfer.cli.local.options import LocalOptions
from specinfer.cli.options.shared import TlsFlags
from specinfer.cli.show import output
from specinfer.drafters.pools import Flags
from specinfer.service.channel import check_target, open_channel
from specinfer.service.tls import ClientTls
from specinfer.v1 import verifier_pb2

if TYPE_CHECKING:
    from specinfer.remote.contract import Finding


def check(
    address: Annotated[str, typer.Argument(help="Address of the speculator service, host:port.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="Timeout of an answer.")] = 10.0,
    *,
    access: TlsFlags,
) -> None:
    """Check a speculator service against the protocol; exit with 1 if broken."""
    target = check_target("address", address)
    broken = asyncio.run(_check(target, access.tls, seconds))
    if broken:
        raise typer.Exit(1)


async def _check(address: str, tls: ClientTls | None, patience_s: float) -> int:
    """Print each rule's result; return the number of broken rules."""
    from specinfer.remote.contract import Outcome, check_contract  # imports numpy
    from specinfer.remote.contract.examined import Examined

    broken = 0
    async with open_channel(address, tls) as channel:
        async for finding in check_contract(Examined(address, channel, patience_s)):
            output.print(_line(finding), markup=False, highlight=False, soft_wrap=True)
            broken += finding.outcome is Outcome.BROKEN
    return broken


def _line(finding: "Finding") -> str:
    return f"{finding.outcome:8}{finding.rule}" + (f": {finding.detail}" if finding.detail else "")


MAX_SIZES = 8
"""Maximum number of pass sizes that `passes_words` shows."""


def explanation(
    options: LocalOptions, description: verifier_pb2.DescribeVerifierReply
) -> list[tuple[str, str]]:
    """Return rows (name, automatic choice with its reason) for `--explain`."""
    return [
        ("weights", description.weights),
        ("passes", f"{passes_words(description)} (measured when the verifier started)"),
        ("speculators", pool_words(options)),
        (
            "each step",
            "chooses the speculators and nodes (or plain decoding) with the most expected tokens per second, "
            "by the measurements so far; `specinfer status --watch` shows them",
        ),
    ]


def passes_words(description: verifier_pb2.DescribeVerifierReply) -> str:
    """Describe passes by tokens: milliseconds, and ratio to one token."""
    costs = sorted((cost.tokens, cost.microseconds / 1000) for cost in description.pass_costs)
    if not costs:
        return "not measured"
    shown = [costs[0], *(cost for cost in costs[1:] if cost[0] & (cost[0] - 1) == 0)][:MAX_SIZES]
    first = shown[0][1]
    return ", ".join(f"{n} tokens {ms:.1f} ms ({ms / first:.1f}x)" for n, ms in shown)


def pool_words(options: LocalOptions) -> str:
    hosted = options.hosted
    pool = [f"{_members(options.services.values())} in services of their own"] if options.services else []
    pool = [f"{_members([hosted])} in the verifier's process", *pool] if hosted else pool
    shown = " and ".join(pool) or "none"
    if options.speculators is not None or options.draft is not None:
        return f"{shown}, as asked"
    if hosted and "model" in hosted:
        return f"{shown}: {hosted['model']} fits {options.model}"
    return f"{shown}: no draft for {options.model} on this machine; choose one with --draft"


def _members(groups: Iterable[Flags]) -> str:
    return ", ".join(flags["drafter"].replace("+", ", ") for flags in groups)
