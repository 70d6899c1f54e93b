"""A speculator service learns from requests, without changing or delaying answers."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import grpc
import pytest
import torch

from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.errors import FaultError, SettingError, UnavailableError
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import save_ssm
from specinfer.model.weights.families import open_weights
from specinfer.service.api_keys import make_key, write_keys
from specinfer.service.channel import open_channel
from specinfer.service.threads import EngineThread
from specinfer.service.tls import ClientTls
from specinfer.training.online import judgement
from specinfer.training.online.checkpoints import Checkpoints
from specinfer.training.online.follow import LearningLink, parts_of, train_follow
from specinfer.training.online.learner import Learner, Weights
from specinfer.training.online.online_training import OnlineTraining
from specinfer.training.online.replay import Episode, Replay
from specinfer.training.online.trials import run_trials
from specinfer.training.student import Student
from specinfer.v1 import generation_pb2, learning_pb2, learning_pb2_grpc
from tests.support.models.saved_model import save_target
from tests.support.network.http_service import CHAT, http_service
from tests.support.oracle import greedy
from tests.support.system import (
    VOCABULARY,
    System,
    request_for,
    running_system,
    text_of,
    until,
)

TOKENS, MIN_TEXTS, BATCHES = 16, 4, 60
PROMPTS = [[5 + i, 41, 60 + i % 30, 7, 9 + i % 20] for i in range(5 * MIN_TEXTS)]


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "MIN_TEXTS", MIN_TEXTS)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def ssm(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SSM with a random head, whose drafts are wrong."""
    directory = tmp_path_factory.mktemp("ssm")
    config = load_config(target)
    weights = open_weights(target, config)
    student = Student.from_target(config, weights, range(config.layers), torch.arange(VOCABULARY))
    torch.manual_seed(1)
    tensors = {**student.tensors(), "lm_head.weight": torch.randn(VOCABULARY, config.hidden_size)}
    save_ssm(directory, tensors, torch.arange(VOCABULARY), student.config, target, str(target), {})
    return directory


class Learning:
    """System whose speculator learns, and its learner."""

    def __init__(self, system: System, learner: Learner) -> None:
        self.system, self.learner = system, learner

    @property
    def address(self) -> str:
        """Address of the speculator service."""
        (service,) = self.system.loop.pool.services
        return service.address

    async def serve(self, prompts: Sequence[Sequence[int]], **fields: object) -> None:
        """Run requests, and check their answers."""

        async def one(prompt: Sequence[int]) -> None:
            assert await self.system.tokens(prompt, max_new_tokens=TOKENS, **fields) == greedy(prompt, TOKENS)

        await asyncio.gather(*map(one, prompts))
        await until(lambda: not self.learner.replay._open)

    async def steps(self) -> int:
        """Run eight requests one after another; return their number of steps."""
        answers = [
            await self.system.generate(prompt, max_new_tokens=TOKENS, no_training=True)
            for prompt in PROMPTS[:8]
        ]
        return sum(replies[-1].summary.stats.steps for replies in answers)

    async def offer(self, parts: AsyncIterator[learning_pb2.CheckpointPart]) -> learning_pb2.OfferReply:
        async with open_channel(self.address) as channel:
            stub = learning_pb2_grpc.LearningStub(channel)  # type: ignore[no-untyped-call]
            reply: learning_pb2.OfferReply = await stub.Offer(parts)
            return reply

    async def refused(self, parts: AsyncIterator[learning_pb2.CheckpointPart]) -> grpc.StatusCode:
        """Check that an offer is refused and changes nothing; return the status."""
        version = self.learner.version
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.offer(parts)
        assert self.learner.version == version
        await self.serve(PROMPTS[:2])
        return caught.value.code()


@pytest.fixture
def learning(ssm: Path, redis_url: str, tmp_path: Path) -> Callable[..., object]:
    """Function that starts a system whose SSM learns.

    `trials` replace the trials in a separate process; `further` are more drafters of the service.
    """

    @asynccontextmanager
    async def start(
        trials: object = run_trials, further: Sequence[str] = (), **options: object
    ) -> AsyncIterator[Learning]:
        chosen = DrafterOptions(model=str(ssm), dtype="float32", kv_tokens=4096)
        made: list[Learner] = []

        def learner_of(engine: SpeculatorEngine, thread: EngineThread) -> Learner:
            draw = cycle([0.5, 0.5, 0.5, 0.5, 0.1]).__next__
            replay = Replay(100_000, 3600.0, asyncio.get_running_loop().time, draw=draw)
            checkpoints = Checkpoints(tmp_path / "learn")
            made.append(Learner(replay, engine, thread, 0, chosen, checkpoints, trials))  # type: ignore[arg-type]
            return made[-1]

        drafters = {name: make_drafter(name, chosen) for name in ("ssm", *further)}
        async with running_system(
            redis_url,
            drafters,
            learner_of=learner_of,
            one_service=True,
            **options,  # type: ignore[arg-type]
        ) as system:
            yield Learning(system, made[0])
        made[0].close()

    return start


async def sent(parts: object) -> AsyncIterator[learning_pb2.CheckpointPart]:
    for part in parts:  # type: ignore[attr-defined]
        yield part


class Scripted:
    """Trials with given numbers of steps for the served and the offered weights."""

    def __init__(self, served: int, offered: int) -> None:
        self.steps = served, offered

    async def __call__(
        self, drafter: str, options: DrafterOptions, models: Sequence[str], episodes: Sequence[Episode]
    ) -> list[Sequence[int]]:
        served, offered = self.steps
        rest = [served] * (len(models) - 1)
        return [[*rest, offered] for _ in episodes]


async def test_learnt_weights_draft_while_requests_continue(
    learning: Callable[..., object], ssm: Path, tmp_path: Path
) -> None:
    async with learning() as service:  # type: ignore[attr-defined]
        await service.serve(PROMPTS)
        assert len(service.learner.replay.held_out(0, 100)) == MIN_TEXTS
        before = await service.steps()
        link, training = (
            LearningLink(service.address, ClientTls()),
            OnlineTraining(str(ssm), tmp_path / "offered", 3e-3, "cpu"),
        )

        async def follow() -> None:
            """Train and offer until an offer is accepted."""
            while not service.learner.counts.swaps:
                training.add(await link.texts(training.newest))
                for _ in range(BATCHES):  # a number, as a busy machine trains little in a given time
                    await asyncio.to_thread(training.train, 0.0)
                training.save()
                reply = await link.offer(tmp_path / "offered")
                training.note(reply.taken, reply.version)

        following = asyncio.create_task(follow())
        while not following.done():  # requests continue during offers and swaps
            await service.serve(PROMPTS[:4], no_training=True)
        await following
        assert service.learner.counts.swaps >= 1
        assert await service.steps() < before
        (row,) = (await service.system.stub.Status(generation_pb2.StatusRequest())).speculators
        assert row.learning == service.learner.state
        assert row.learning.version == service.learner.version >= 1
        assert row.learning.held_out_tokens_per_step > 1


async def test_requests_without_consent_are_not_stored(
    learning: Callable[..., object], redis_url: str, tmp_path: Path
) -> None:
    keys = {"alice": make_key("alice"), "bob": make_key("bob", no_training=True)}
    write_keys(tmp_path / "keys", [key for _, key in keys.values()])
    async with learning(api_keys=str(tmp_path / "keys")) as service:  # type: ignore[attr-defined]
        replay = service.learner.replay

        async def ask(caller: str, **fields: object) -> int:
            """Run a request; return the number of stored texts."""
            metadata = (("authorization", f"Bearer {keys[caller][0]}"),)
            async for _ in service.system.stub.Generate(request_for(PROMPTS[0], **fields), metadata=metadata):
                pass
            await until(lambda: not replay._open)
            return len(replay.training(0))

        assert await ask("alice", no_training=True) == 0
        assert await ask("bob") == 0
        assert await ask("alice", temperature=1.5, seed=1) == 0
        async with http_service(service.system.address) as http:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}
            bearer = {"authorization": f"Bearer {keys['alice'][0]}"}
            for headers, extra in (({"X-No-Training": "true"}, {}), ({}, {"no_training": True})):
                answer = await http.plain.post(CHAT, json=body | extra, headers=bearer | headers)
                assert answer.status_code == 200, answer.text
                assert await ask("bob") == 0
            refused = await http.plain.post(CHAT, json=body, headers=bearer | {"X-No-Training": "maybe"})
            assert refused.status_code == 400
            assert "X-No-Training" in refused.text
            assert "maybe" in refused.text
        assert await ask("alice") == 1
        assert await ask("alice", temperature=1.0, seed=1) == 2
        callers = {text.caller for text in replay.training(0)}
        assert len(callers) == 1
        (kept, _) = replay.training(0)
        assert kept.tokens[: kept.prompt_len] == tuple(PROMPTS[0])
        assert "alice" not in text_of(kept.tokens)


def damaged(fault: str, ssm: Path) -> list[learning_pb2.CheckpointPart]:
    parts = list(parts_of(ssm))
    match fault:
        case "another file":
            parts.append(learning_pb2.CheckpointPart(file="../../evil", data=b"x"))
        case "a missing file":
            parts = parts[:1]
        case "no JSON":
            parts[0].data = b"\xff{"
        case "another kind":
            parts[0].data = parts[0].data.replace(b'"ssm"', b'"eagle3"')
        case "cut short":
            parts[-1].data = parts[-1].data[:-100]
        case "no head":
            parts[-1].data = parts[-1].data.replace(b"lm_head.weight", b"lm_haed.weight")
    return parts


async def test_an_offer_that_is_no_ssm_is_refused_and_changes_nothing(
    learning: Callable[..., object], ssm: Path
) -> None:
    async with learning(Scripted(20, 10)) as service:  # type: ignore[attr-defined]
        await service.serve(PROMPTS)
        for fault in ("another file", "a missing file", "no JSON", "another kind"):
            code = await service.refused(sent(damaged(fault, ssm)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, fault
        for fault in ("cut short", "no head"):
            code = await service.refused(sent(damaged(fault, ssm)))
            assert code is grpc.StatusCode.FAILED_PRECONDITION, fault


async def test_weights_are_withdrawn_if_worse_on_newer_texts(
    learning: Callable[..., object], ssm: Path, tmp_path: Path
) -> None:
    trials = Scripted(20, 25)
    async with learning(trials) as service:  # type: ignore[attr-defined]
        learner = service.learner
        few = await service.offer(sent(parts_of(ssm)))
        assert (few.taken, few.episodes) == (False, 0)
        await service.serve(PROMPTS)
        worse = await service.offer(sent(parts_of(ssm)))
        assert (worse.taken, worse.version) == (False, 0)
        trials.steps = 20, 10
        taken = await service.offer(sent(parts_of(ssm)))
        assert (taken.taken, taken.version, taken.episodes) == (True, 1, MIN_TEXTS)
        assert taken.tokens_per_step == 2 * taken.tokens_per_step_before > 0

        trials.steps = 20, 25
        await learner.look_back()  # there are no new held-out texts
        assert learner.version == 1
        await service.serve([[*prompt, 3] for prompt in PROMPTS])
        await learner.look_back()
        assert (learner.version, learner.counts.take_backs) == (0, 1)
        assert learner._checkpoints.current == 0  # a service that starts now does not use them
        assert learner._checkpoints.versions == []
        await service.serve(PROMPTS[:4])
        assert (await service.offer(sent(parts_of(ssm)))).version == 0
        trials.steps = 20, 10
        assert (await service.offer(sent(parts_of(ssm)))).version == 2

    engine, checkpoints = (
        SpeculatorEngine([learner._load(Weights(0, str(ssm)))]),
        Checkpoints(tmp_path / "learn"),
    )
    with pytest.raises(SettingError, match="learn = "):
        Checkpoints(tmp_path / "learn")
    first, thread = engine.drafters[0], EngineThread("again")
    again = Learner(learner.replay, engine, thread, 0, learner._options, checkpoints, run_trials)
    again.resume()
    assert again.version == 2
    assert engine.drafters[0] is not first
    (checkpoints.version(2) / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SettingError, match=r"learn = .*version-2"):
        Learner(learner.replay, engine, thread, 0, learner._options, checkpoints, run_trials).resume()
    checkpoints.close()
    thread.stop()


async def test_an_offer_that_cannot_be_written_changes_nothing(
    learning: Callable[..., object], ssm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with learning(Scripted(20, 10)) as service:  # type: ignore[attr-defined]
        await service.serve(PROMPTS)
        engine = service.learner._engine
        drafters = list(engine.drafters)
        for step in ("begin", "add", "keep", "mark"):
            with monkeypatch.context() as patch:
                patch.setattr(Checkpoints, step, full)
                code = await service.refused(sent(parts_of(ssm)))
            assert code is grpc.StatusCode.UNAVAILABLE, step
            assert engine.drafters == drafters, step
            assert service.learner._checkpoints.current == 0, step
            assert service.learner._checkpoints.versions == [], step
        assert (await service.offer(sent(parts_of(ssm)))).taken


async def test_the_command_names_services_that_it_cannot_follow(
    redis_url: str, ssm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    drafter = make_drafter("ssm", DrafterOptions(model=str(ssm), dtype="float32", kv_tokens=4096))
    async with running_system(redis_url, {"ssm": drafter}) as system:
        (service,) = system.loop.pool.services
        with pytest.raises(SettingError, match="--learn"):
            await asyncio.to_thread(train_follow, service.address, tmp_path / "out")
        with pytest.raises(FaultError, match="refused"):
            await LearningLink(service.address, ClientTls()).texts(0)
    with pytest.raises(UnavailableError, match="does not answer"):
        await asyncio.to_thread(train_follow, service.address, tmp_path / "out")
