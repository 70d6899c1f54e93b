"""`specinfer check`: whether a running speculator service, in whatever language, keeps the contract."""

import asyncio
from typing import Annotated

import typer

from specinfer.cli.connection import client_tls
from specinfer.cli.options import TlsCa, TlsCert, TlsKey
from specinfer.cli.show import output
from specinfer.service.addresses import check_target
from specinfer.service.channel import open_channel
from specinfer.service.tls import ClientTls
from specinfer.speculators.contract import Finding, Outcome, check_contract
from specinfer.speculators.contract.examined import Examined


def check(
    address: Annotated[str, typer.Argument(help="The speculator service, host:port.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="Longest wait for an answer.")] = 10.0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Check a running speculator service against the contract; exit code 1 if it breaks a rule."""
    target = check_target("address", address)
    broken = asyncio.run(_check(target, client_tls(tls_ca, tls_cert, tls_key), seconds))
    if broken:
        raise typer.Exit(1)


async def _check(address: str, tls: ClientTls | None, patience_s: float) -> int:
    """How many rules it breaks; each is printed when it has been tried."""
    broken = 0
    async with open_channel(address, tls) as channel:
        async for finding in check_contract(Examined(address, channel, patience_s)):
            output.print(_line(finding), markup=False, highlight=False, soft_wrap=True)
            broken += finding.outcome is Outcome.BROKEN
    return broken


def _line(finding: Finding) -> str:
    return f"{finding.outcome:8}{finding.rule}" + (f": {finding.detail}" if finding.detail else "")
