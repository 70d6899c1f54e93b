"""Start a speculator service: settings -> drafters -> engine -> servicer -> server."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specinfer.drafters import make_drafter
from specinfer.drafters.engine import SpeculatorEngine, warm_up
from specinfer.drafters.pools import LEARNT, MODEL_DRAFTERS
from specinfer.remote.description import describe
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics, service_registry
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import open_tracer
from specinfer.training.online.checkpoints import Checkpoints
from specinfer.training.online.replay import Replay
from specinfer.training.online.trials import run_trials
from specinfer.v1 import learning_pb2, learning_pb2_grpc, speculator_pb2, speculator_pb2_grpc
from speculator_svc.learning_servicer import LearningServicer
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from speculator_svc.settings import SpeculatorSettings

if TYPE_CHECKING:
    from specinfer.training.online.learner import Learner

_LEARN_TOKENS, _LEARN_SECONDS = 1_000_000, 3600.0
"""Maximum tokens and age in seconds of texts stored for training."""
PROGRAM = "speculator_svc"
SERVICE = speculator_pb2.DESCRIPTOR.services_by_name["Speculator"].full_name
LEARNING = learning_pb2.DESCRIPTOR.services_by_name["Learning"].full_name


def build_engine(settings: SpeculatorSettings) -> SpeculatorEngine:
    if MODEL_DRAFTERS & set(settings.drafters):
        from specinfer.model.threads import use_threads  # imports torch, which other drafters do not need

        use_threads(settings.threads)
    options = settings.drafter_options()
    drafters = [make_drafter(name, options) for name in settings.drafters]
    return SpeculatorEngine(drafters)


def build_learner(
    settings: SpeculatorSettings, engine: SpeculatorEngine, thread: EngineThread
) -> "Learner | None":
    """Return the learner of `--learn`; None without this option."""
    if not settings.learn:
        return None
    from specinfer.training.online.learner import Learner, check_learnable  # imports torch

    check_learnable(settings.drafters, settings.model)
    checkpoints = Checkpoints(Path(settings.learn))
    begins = round(1000 * time.time())
    replay = Replay(_LEARN_TOKENS, _LEARN_SECONDS, time.monotonic, begins=begins)
    place = settings.drafters.index(LEARNT)
    return Learner(replay, engine, thread, place, settings.drafter_options(), checkpoints, run_trials)


async def serve(settings: SpeculatorSettings) -> None:
    """Serve until signalled."""
    registry = service_registry()
    serve_metrics(registry, settings.metrics_host, settings.metrics_port)
    tracer = open_tracer(PROGRAM, settings)
    thread = EngineThread("speculator-engine")
    engine = await thread.call(build_engine, settings)
    # before `resume` loads learned weights, so that it names the model of the settings
    description = describe(engine, settings.names, settings.drafters, secrets.token_hex(8))
    learner = build_learner(settings, engine, thread)
    description.learns = learner is not None
    if learner is not None:
        await thread.call(learner.resume)
    await thread.call(warm_up, engine)
    server = ServiceServer(settings, [SERVICE, *([LEARNING] if learner is not None else [])])
    metrics = SpeculatorMetrics(registry, settings.names, learner)
    servicer = SpeculatorServicer(engine, thread, metrics, description, tracer, learner)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    async with contextlib.AsyncExitStack() as stack:
        if learner is not None:
            learning_pb2_grpc.add_LearningServicer_to_server(LearningServicer(learner), server.grpc)  # type: ignore[no-untyped-call]
            watching = asyncio.create_task(learner.watch())
            stack.callback(learner.close)
            stack.callback(watching.cancel)
        await run_until_signalled(server)
    thread.stop()
    if tracer is not None:
        tracer.close()


def main(argv: Sequence[str] | None = None) -> None:
    run_service(PROGRAM, SpeculatorSettings, argv, lambda settings: settings.name or settings.drafter, serve)


if __name__ == "__main__":
    main()
