"""`specinfer check`: services that keep the contract pass; each broken rule is named."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.custom import CustomDrafter
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.recycling import RecyclingDrafter
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.remote.contract import Finding, Outcome, check_contract
from specinfer.remote.contract.draws import chi_square_tail, merged
from specinfer.remote.contract.examined import Examined
from specinfer.service.channel import open_channel
from specinfer.system.cache_directory import cache_directory
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.v1 import common_pb2, speculator_pb2
from speculator_svc.servicer import SpeculatorServicer
from tests.support.services import speculator_service
from tests.support.system import ScriptedDrafter
from tests.support.tiny_models import runner_of, tiny_transformers

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/node"
Q = np.array([40, 41, 42, 43], np.int32), np.array([0.4, 0.3, 0.2, 0.1], np.float32)


class Drawing(ScriptedDrafter):
    """Drafter that draws two children without replacement from `truly`, and sends Q."""

    def __init__(self, truly: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)) -> None:
        super().__init__(self._tree)
        self._truly = np.array(truly)
        self.description = DrafterDescription(vocab_size=97, draws=True)

    def _tree(self, job: DraftJob) -> TokenTree:
        rng = np.random.default_rng(job.draw_seed)
        tokens = rng.choice(
            Q[0], min(2, job.limits.nodes, job.limits.width or 2), replace=False, p=self._truly
        )
        builder = TreeBuilder(job.context[-1])
        builder.propose_samples(0, ProposalKind.WITHOUT_REPLACEMENT, tokens.tolist(), Q)
        return builder.build()


async def findings(drafters: dict[str, Drafter]) -> dict[str, Finding]:
    async with (
        speculator_service(drafters, instance_id="here") as (address, engine),
        open_channel(address) as channel,
    ):
        by_rule = {f.rule: f async for f in check_contract(Examined(address, channel, patience_s=20.0))}
        assert engine.cached_requests == 0 or any(f.outcome is Outcome.BROKEN for f in by_rule.values())
    return by_rule


def broken(by_rule: dict[str, Finding]) -> set[str]:
    return {rule for rule, finding in by_rule.items() if finding.outcome is Outcome.BROKEN}


def ssm(kind: ProposalKind) -> SsmDrafter:
    runner, description = runner_of(tiny_transformers("llama")), DrafterDescription(vocab_size=97)
    return SsmDrafter(runner, description, GrowthShape(kind=kind, deepest=3))


async def test_our_services_keep_the_contract() -> None:
    reads = DrafterDescription(vocab_size=97, target_top_k=4)
    by_rule = await findings(
        {"ngram": NgramDrafter(1, 3, 2), "recycling": RecyclingDrafter(reads), "draws": Drawing()}
    )
    assert not broken(by_rule), by_rule
    assert "draws: " in by_rule["draws follow the q that is sent"].detail
    assert " 0 trees" not in by_rule["keeps to budget and shape"].detail


async def test_an_ssm_that_draws_keeps_the_contract() -> None:
    by_rule = await findings({"ssm": ssm(ProposalKind.WITHOUT_REPLACEMENT)})
    assert not broken(by_rule), by_rule
    assert "too " not in by_rule["draws follow the q that is sent"].detail


Request, Reply = speculator_pb2.DraftRequest, speculator_pb2.DraftReply


def _spoilt_request(change: Callable[[speculator_pb2.DraftEntry], None]) -> Callable[[Request], None]:
    def spoil(request: Request) -> None:
        for entry in request.entries:
            change(entry)

    return spoil


def _larger(entry: speculator_pb2.DraftEntry) -> None:
    if 0 < entry.node_budget < 8:
        entry.node_budget, entry.max_depth = 8, 8


def _any_shape(entry: speculator_pb2.DraftEntry) -> None:
    entry.shape = speculator_pb2.TREE_SHAPE_TREE


def _all_of_them(entry: speculator_pb2.DraftEntry) -> None:
    del entry.speculators[:]


def _one_client(request: Request) -> None:
    request.client = "all"


def _does_not_start_over(request: Request) -> None:
    """Let the service append an entry that should start over."""
    for entry in request.entries:
        if entry.request_id == "again" and entry.base_len == 0 and len(entry.delta_token_ids) == 6:
            entry.base_len = 10


def _long(reply: Reply) -> None:
    for result in reply.entries:
        result.cached_len += 1


def _never_asks(reply: Reply) -> None:
    for result in reply.entries:
        if result.status == common_pb2.ENTRY_STATUS_RESYNC:
            result.status = common_pb2.ENTRY_STATUS_OK


def _all_fail(reply: Reply) -> None:
    if any(result.status == common_pb2.ENTRY_STATUS_ERROR for result in reply.entries):
        for result in reply.entries:
            result.status = common_pb2.ENTRY_STATUS_ERROR


def _backwards(reply: Reply) -> None:
    entries = list(reply.entries)[::-1]
    del reply.entries[:]
    reply.entries.extend(entries)


def _replaced(reply: Reply) -> None:
    reply.instance_id = "elsewhere"


BEFORE: dict[str, tuple[Callable[[Request], None], str]] = {
    "is larger than asked for": (_spoilt_request(_larger), "keeps to budget and shape"),
    "sends trees for chains": (_spoilt_request(_any_shape), "keeps to budget and shape"),
    "drafts for all": (_spoilt_request(_all_of_them), "drafts only for whom is asked"),
    "knows no clients": (_one_client, "keeps clients apart"),
    "does not start over": (_does_not_start_over, "starts over at base_len 0"),
}
AFTER: dict[str, tuple[Callable[[Reply], None], str]] = {
    "counts wrong": (_long, "appends deltas"),
    "never asks for everything": (_never_asks, "asks for everything after a gap"),
    "lets good entries fail": (_all_fail, "bad entries cost only themselves"),
    "answers in another order": (_backwards, "bad entries cost only themselves"),
    "is another process": (_replaced, "appends deltas"),
}


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
async def test_each_broken_rule_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SpeculatorServicer._step

    def step(servicer: SpeculatorServicer, request: Request) -> Reply:
        if fault in BEFORE:
            BEFORE[fault][0](request)
        reply = original(servicer, request)
        if fault in AFTER:
            AFTER[fault][0](reply)
        return reply

    monkeypatch.setattr(SpeculatorServicer, "_step", step)
    by_rule = await findings({"a": NgramDrafter(1, 3, 3), "b": ssm(ProposalKind.POINT)})
    assert (BEFORE | AFTER)[fault][1] in broken(by_rule), by_rule


async def test_a_service_that_releases_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(*_: object) -> common_pb2.ReleaseReply:
        return common_pb2.ReleaseReply(released=1)

    monkeypatch.setattr(SpeculatorServicer, "Release", release)
    assert broken(await findings({"a": NgramDrafter()})) == {"forgets what is released"}


async def test_a_service_that_does_not_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def draft(*_: object) -> AsyncIterator[Reply]:
        raise NotImplementedError
        yield

    monkeypatch.setattr(SpeculatorServicer, "Draft", draft)
    by_rule = await findings({"a": NgramDrafter()})
    assert len(broken(by_rule)) == len(by_rule) - 2, "all but the description and a rule that does not apply"
    async with open_channel(f"127.0.0.1:{free_ports(1)[0]}") as channel:
        (finding,) = [f async for f in check_contract(Examined("nobody", channel, patience_s=1.0))]
    assert (finding.rule, finding.outcome) == ("describes itself", Outcome.BROKEN)


@pytest.mark.parametrize("truly", [(0.25, 0.25, 0.25, 0.25), (0.2, 0.5, 0.2, 0.1)])
async def test_draws_that_do_not_follow_their_q_are_found(truly: tuple[float, ...]) -> None:
    """False alarms: 1e-6. These distributions differ from Q by 0.2 in total variation."""
    by_rule = await findings({"liar": Drawing(truly)})
    assert broken(by_rule) == {"draws follow the q that is sent"}
    assert "liar: 800 draws do not follow q" in by_rule["draws follow the q that is sent"].detail


async def test_draws_that_are_not_announced_and_seeds_that_are_ignored_are_found() -> None:
    quiet, stubborn = Drawing(), Drawing()
    quiet.description = replace(quiet.description, draws=False)
    stubborn.script = lambda job: Drawing()._tree(replace(job, draw_seed=1))
    by_rule = await findings({"quiet": quiet, "stubborn": stubborn})
    assert broken(by_rule) == {"sends points unless it draws", "draws follow the q that is sent"}


def test_the_tail_of_chi_square() -> None:
    for degrees in (2, 4):
        for statistic in (0.0, 0.7, 5.0, 40.0):
            assert np.isclose(chi_square_tail(statistic, degrees), stats.chi2.sf(statistic, degrees))
    observed, expected = merged(np.array([9.0, 8, 7, 1, 1]), np.array([10.0, 8, 6, 2, 0]))
    assert (observed.tolist(), expected.tolist()) == ([9, 8, 9], [10, 8, 8])


def check(address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specinfer.cli", "check", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)


async def test_the_command_prints_what_is_broken_and_exits_with_1() -> None:
    async with speculator_service({"a": NgramDrafter()}) as (address, _):
        done = await asyncio.to_thread(check, address)
    assert done.returncode == 1
    assert "FAILED  describes itself: instance_id: must be drawn" in done.stdout
    assert "ok      appends deltas: " in done.stdout


def raising(_: object, __: object) -> object:
    raise ValueError("a bug of the user's")


async def test_a_service_whose_drafter_raises_fails_the_check_with_the_reason() -> None:
    drafters: dict[str, Drafter] = {"mine": CustomDrafter(raising, "mine:draft")}
    async with speculator_service(drafters, instance_id="here") as (address, _):
        done = await asyncio.to_thread(check, address)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "keeps to budget and shape" in line)
    assert line.startswith("FAILED")
    assert "speculator mine failed to draft: mine:draft failed: ValueError at" in line


async def test_a_service_that_never_drafts_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SpeculatorServicer._step

    def silent(servicer: SpeculatorServicer, request: Request) -> Reply:
        reply = original(servicer, request)
        for result in reply.entries:
            del result.drafts[:]
        return reply

    monkeypatch.setattr(SpeculatorServicer, "_step", silent)
    by_rule = await findings({"a": NgramDrafter()})
    assert by_rule["keeps to budget and shape"].detail.startswith("0 trees")
    assert "keeps to budget and shape" in broken(by_rule)


def node_modules() -> Path:
    """Return the example's packages, installed once in the cache; skip the test if npm fails."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock = EXAMPLE / "package-lock.json"
    home = cache_directory() / "node" / sha256(lock.read_bytes()).hexdigest()[:16]
    if not (home / "complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        for path in (lock, EXAMPLE / "package.json"):
            shutil.copy(path, home)
        install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(install, cwd=home, capture_output=True, text=True, timeout=180)
        if done.returncode:
            pytest.skip(f"npm cannot install what the example needs: {done.stderr.strip().splitlines()[-1:]}")
        (home / "complete").touch()
    return home / "node_modules"


@pytest.fixture
def node_service(tmp_path: Path) -> Iterator[str]:
    """Address of the example in JavaScript."""
    address, environment = f"127.0.0.1:{free_ports(1)[0]}", {"NODE_PATH": str(node_modules())}
    command = ["node", str(EXAMPLE / "speculator.js"), address]
    child = Child("node", command, tmp_path / "node.log", environment)
    wait_for_port(child, address, timeout_s=60)
    yield address
    child.terminate()
    child.join(timeout_s=5)


def test_a_speculator_in_javascript_keeps_the_contract(node_service: str) -> None:
    done = check(node_service)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      describes itself: last-time (bigram)" in done.stdout
    assert "keeps to budget and shape: 24 trees" in done.stdout
