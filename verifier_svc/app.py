"""Creates the parts of a verifier: model, engine, resident speculators, servicer."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from specinfer.drafters.draft import draft_group
from specinfer.drafters.pools import Flags
from specinfer.engine.host import Host
from specinfer.errors import IncompatibleError
from specinfer.hub import model_name, resolve_model
from specinfer.model.memory import fitting_cache
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.options.model_options import AUTO
from specinfer.request.default_sampling import default_sampling
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import Tracer
from specinfer.system.machine import is_cuda
from specinfer.text.constraints.compiler import Compiler, compiler_of
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, checked_context
from specinfer.verification.pass_costs import known_costs, warm_up
from verifier_svc.identity import Identity
from verifier_svc.metrics import VerifierMetrics
from verifier_svc.ranks import join, layout_of
from verifier_svc.resident import LoadedDrafters, ResidentSpeculators, load_drafters_of
from verifier_svc.servicer import VerifierServicer
from verifier_svc.settings import VerifierSettings

WINDOWED_CONTEXT = 2**20
"""Maximum context in tokens with `--kv-window`: windowed models have no other limit."""
log = logging.getLogger(__name__)


def load_runner(settings: VerifierSettings) -> ModelRunner:
    """Load the model, or this rank's part of it."""
    options = RunnerOptions.of(settings)  # checks before the model is looked for
    return load_checked(resolve_model(settings.model), options, join(settings))


class LoadedModels(NamedTuple):
    """A verifier's model and its drafters."""

    runner: ModelRunner
    drafters: LoadedDrafters


def load_models(settings: VerifierSettings) -> LoadedModels:
    """Load the model and, next to it, the drafters of `--draft`.

    With several ranks they are loaded one after the other, and on a GPU, where graphs are captured alone.
    """
    flags = draft_group(settings.model, settings.draft, settings)
    settings = settings.model_copy(update={"kv_tokens": _tokens(settings, flags)})
    if layout_of(settings).ranks > 1 or is_cuda(settings.device):
        return LoadedModels(load_runner(settings), load_drafters_of(settings, flags))
    with ThreadPoolExecutor(1, "drafts") as beside:
        drafters = beside.submit(load_drafters_of, settings, flags)
        return LoadedModels(load_runner(settings), drafters.result())


def _tokens(settings: VerifierSettings, flags: Flags | None) -> int | str:
    """Return `kv_tokens`, or what fits of its default; see `fitting_cache`."""
    if layout_of(settings).ranks > 1 and is_cuda(settings.device):
        return settings.kv_tokens
    flags = flags or {}
    here = flags.get("model") and flags.get("device", settings.device) == settings.device
    draft = resolve_model(flags["model"]) if here else None
    draft_weights = flags.get("weights", AUTO)
    options = RunnerOptions.of(settings)
    return fitting_cache(resolve_model(settings.model), draft, options, draft_weights=draft_weights) or AUTO


def build_engine(
    settings: VerifierSettings, runner: ModelRunner, compiler: Compiler | None
) -> VerifierEngine:
    longest = WINDOWED_CONTEXT if settings.kv_window else runner.config.max_positions
    if settings.kv_window:
        log.warning(
            "kv_window = %d: the cache drops context, so the output differs from the model's",
            settings.kv_window,
        )
    limits = EngineLimits(
        max_nodes=settings.max_nodes,
        max_step_tokens=settings.max_step_tokens,
        max_context_len=checked_context("max_context_len", settings.max_context_len, longest),
    )
    return VerifierEngine(runner, settings.acceptance, limits, compiler=compiler)


def keep_prefixes(settings: VerifierSettings, runner: ModelRunner, fingerprint: str) -> None:
    """Keep cached prefixes in `prefix_cache_directory`, if it is set."""
    if settings.prefix_cache_directory:
        directory = Path(settings.prefix_cache_directory).expanduser()
        limit = settings.prefix_cache_megabytes * 1_000_000
        kept = runner.keep_prefixes(directory, fingerprint, limit)
        log.info("prefix_cache_directory = %s: has %.0f MB of prefixes", directory, kept.total_bytes / 1e6)


def _compiler(tokenizer: Tokenizer, runner: ModelRunner) -> Compiler | None:
    """Return a compiler of constraints; None if the tokenizer supports none."""
    try:
        return compiler_of(tokenizer, runner.config.vocab_size, runner.config.eos_token_ids)
    except IncompatibleError as error:
        log.warning("requests with constraints are refused: %s", error)
        return None


def describe(
    settings: VerifierSettings,
    engine: VerifierEngine,
    identity: Identity,
    pass_costs: Sequence[tuple[int, float]],
    context_s: float,
    resident: speculator_pb2.DescribeSpeculatorReply,
    defaults: common_pb2.SamplingParams | None = None,
) -> verifier_pb2.DescribeVerifierReply:
    """Return the reply to `Describe`.

    Args:
        pass_costs: (rows, seconds) of passes.
        context_s: seconds that each context token adds to each row of a pass.
        resident: description of the resident speculators.
        defaults: the model's defaults of sampling parameters.
    """
    config, limits = engine.runner.config, engine.limits
    return verifier_pb2.DescribeVerifierReply(
        model=model_name(settings.model),
        vocab_size=config.vocab_size,
        tokenizer_fingerprint=identity.tokenizer_fingerprint,
        max_context_len=limits.max_context_len,
        max_requests=limits.max_requests,
        max_nodes=limits.max_nodes,
        max_step_tokens=limits.max_step_tokens,
        kv_capacity_tokens=engine.runner.cache.capacity_tokens,
        eos_token_ids=config.eos_token_ids,
        acceptance=settings.acceptance,
        dtype=settings.dtype,
        kv_window_tokens=settings.kv_window,
        kv_block_tokens=engine.runner.cache.block_tokens,
        pass_costs=[verifier_pb2.PassCost(tokens=n, microseconds=round(s * 1e6)) for n, s in pass_costs],
        context_nanoseconds=context_s * 1e9,
        executor=engine.runner.executor_name,
        device=settings.device,
        weights=str(engine.runner.weights),
        instance_id=identity.instance_id,
        model_fingerprint=identity.model_fingerprint,
        text_fingerprint=identity.text_fingerprint,
        hidden_size=config.hidden_size,
        feature_layers=engine.runner.feature_layers,
        resident=resident if resident.speculators else None,
        default_sampling=defaults,
    )


def _pass_costs(engine: VerifierEngine, fingerprint: str) -> tuple[list[tuple[int, float]], float]:
    """Return the costs of passes and of context, as `describe` needs them; see `known_costs`."""
    warm_up(engine)
    costs = known_costs(engine.runner, fingerprint, engine.limits.max_step_tokens)
    parallel = engine.runner.parallel
    if parallel is not None and parallel.stage_seconds.busy:
        log.info(
            "pipeline stages were idle for %.0f %% of the measured passes' time",
            100 * parallel.stage_seconds.bubble,
        )
    return costs


async def make_servicer(
    settings: VerifierSettings,
    thread: EngineThread,
    models: LoadedModels,
    registry: CollectorRegistry,
    tracer: Tracer | None = None,
    tokenizer: Tokenizer | None = None,
) -> VerifierServicer:
    """Return the servicer for a loaded model; an unknown model's passes are measured first.

    Args:
        settings: settings of the verifier.
        thread: thread of the engine.
        models: the loaded model and drafters.
        registry: gets the verifier's metrics.
        tracer: exports traces; None: no tracing.
        tokenizer: the model's tokenizer, if it is loaded already.
    """
    directory, runner = resolve_model(settings.model), models.runner
    if tokenizer is None:
        tokenizer = await thread.call(Tokenizer.load, directory)
    identity = await thread.call(Identity.of, settings, directory, tokenizer, runner.weights.blocks)
    compiler = _compiler(tokenizer, runner)
    keep_prefixes(settings, runner, identity.model_fingerprint)
    engine = build_engine(settings, runner, compiler)
    fingerprint = identity.tokenizer_fingerprint
    resident = await thread.call(ResidentSpeculators.of, models.drafters, runner, fingerprint)
    fingerprint = identity.model_fingerprint if settings.offload == "none" else ""
    costs = await thread.call(_pass_costs, engine, fingerprint)
    defaults = common_pb2.SamplingParams(**default_sampling(directory))
    description = describe(settings, engine, identity, *costs, resident.description, defaults)
    metrics = VerifierMetrics(registry, [speculator.name for speculator in description.resident.speculators])
    return VerifierServicer(Host(resident.pool, engine, compiler), thread, metrics, description, tracer)
