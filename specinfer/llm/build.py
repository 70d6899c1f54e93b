"""Build an `LLM`'s engine from options: model, speculators, limits, planner."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from specinfer.drafters import Drafter
from specinfer.drafters.custom import CustomDrafter
from specinfer.drafters.draft import draft_group
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.pools import Flags, load_drafters, read_speculators
from specinfer.engine.host import Host
from specinfer.engine.local_pool import LocalPool
from specinfer.engine.step import StepMachine
from specinfer.errors import IncompatibleError, SettingError
from specinfer.hub import resolve_model
from specinfer.llm.engine import LocalEngine
from specinfer.llm.options import LLMOptions
from specinfer.model.memory import fitting_cache
from specinfer.model.options import RunnerOptions
from specinfer.model.parallel.layout import Layout
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.threads import limit_threads, pass_threads
from specinfer.model.weights.fingerprint import model_fingerprint
from specinfer.options.model_options import AUTO, AUTO_DRAFT, NO_DRAFT
from specinfer.planning.memory import PlannerMemory
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.planning.table_planner import TablePlanner
from specinfer.request.default_sampling import default_sampling
from specinfer.scheduling.limits import SchedulerLimits
from specinfer.scheduling.scheduler import Scheduler
from specinfer.scheduling.text import StopStrings
from specinfer.system.machine import processor_name
from specinfer.text.constraints.compiler import Compiler, compiler_of
from specinfer.text.tokenizer import Tokenizer
from specinfer.verification.acceptance import find_rule
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, checked_context
from specinfer.verification.pass_costs import known_costs

log = logging.getLogger(__name__)
Function: TypeAlias = Callable[..., object]
Speculators: TypeAlias = str | Sequence[str | Function]
Groups: TypeAlias = Sequence[Mapping[str, Drafter]]
"""Drafters by name; those of a group share contexts."""
_UNLIMITED = 2**31
"""Maximum waiting requests: practically unlimited, for long lists of prompts."""


def build_engine(
    model: str, draft: str | None, speculators: Speculators | None, options: LLMOptions
) -> tuple[LocalEngine, Tokenizer]:
    """Load everything; return the engine and the model's tokenizer.

    Args:
        draft: a value of `--draft`; None: "none" if `speculators` are given, else "auto".
        speculators: further groups of drafters.

    Raises:
        SettingError: for an invalid option.
        IncompatibleError: if a speculator has another tokenizer than the model.
    """
    find_rule(options.acceptance)
    specs = _specs(model, draft, speculators, options)
    directory = resolve_model(model)
    tokenizer, defaults = Tokenizer.load(directory), default_sampling(directory)
    tokenizer.parse_special_tokens = options.parse_special_tokens
    drafts = [spec for spec in specs if isinstance(spec, Mapping) and spec.get("model")]
    here = [spec for spec in drafts if spec.get("device", options.device) == options.device]
    runner, close = _runner(directory, here[0] if here else {}, options)
    try:
        fingerprint = model_fingerprint(
            directory, tokenizer.text_fingerprint(), options.dtype, runner.weights.blocks, options.kv_type
        )
        _keep_prefixes(runner, fingerprint, options)
        groups = [_drafters(spec, model, options) for spec in specs]
        engine = assemble(
            runner, tokenizer, groups, options, None, fingerprint if options.offload == "none" else ""
        )
    except BaseException:
        close()
        raise

    def end() -> None:
        try:
            runner.cache.pool.save_prefixes()
        finally:
            close()

    def groups_of(draft: str | None, speculators: Speculators | None) -> Groups:
        return [_drafters(spec, model, options) for spec in _specs(model, draft, speculators, options)]

    engine.on_close, engine.default_sampling, engine.groups_of = end, defaults, groups_of
    return engine, tokenizer


def assemble(
    runner: ModelRunner,
    tokenizer: Tokenizer,
    groups: Groups,
    options: LLMOptions,
    curve: PassCurve | None = None,
    fingerprint: str = "",
) -> LocalEngine:
    """Build the engine of a loaded model.

    Args:
        groups: drafters by name; the drafters of a group share contexts and draft one after another.
        curve: seconds of a pass by its number of tokens; None: see `known_costs`.
        fingerprint: fingerprint of the model's files and formats, for `known_costs`.

    Raises:
        IncompatibleError: if a drafter has another tokenizer than the model.
        SettingError: if a drafter reads hidden states that the model does not have.
    """
    verifier, compiler = _verifier(runner, tokenizer, options)
    limits = _limits(verifier, options)
    context_s = 0.0
    if curve is None:
        costs, context_s = known_costs(runner, fingerprint, limits.max_step_tokens)
        curve = PassCurve(costs)
    budget = derive_budget(
        curve,
        limits.max_batch,
        limits.max_tree_nodes,
        limits.max_step_tokens,
        options.tree_nodes,
        context_s=context_s,
    )
    scheduler = Scheduler(limits, budget, StopStrings(tokenizer))

    def host_of(groups: Groups) -> tuple[StepMachine, Host]:
        pool = _pool(runner, tokenizer, groups)
        machine = fingerprint, processor_name(), str(pass_threads())
        memory = PlannerMemory(machine, pool.names) if fingerprint else None
        planner = TablePlanner(curve, budget, options.adaptive, memory=memory)
        return StepMachine(scheduler, planner), Host(pool, verifier, compiler)

    engine = LocalEngine(*host_of(groups))
    engine.host_of = host_of
    return engine


def _pool(runner: ModelRunner, tokenizer: Tokenizer, groups: Groups) -> LocalPool:
    """Return the checked drafters of all groups."""
    engines = [(SpeculatorEngine(list(g.values()), idle_seconds=math.inf), list(g)) for g in groups]
    for engine, _ in engines:
        engine.check_tokenizer(tokenizer.fingerprint())
    runner.check_layers(
        sorted({layer for engine, _ in engines for layer in engine.description.feature_layers})
    )
    return LocalPool(engines, runner.config.hidden_size, runner.config.vocab_size)


def _specs(
    model: str, draft: str | None, speculators: Speculators | None, options: LLMOptions
) -> list[Flags | Function]:
    """Return the groups of drafters to load."""
    if isinstance(speculators, str):
        if speculators not in ("auto", "off"):
            raise SettingError("speculators", speculators, 'must be a list, "auto" or "off"')
        draft, speculators = draft or {"auto": AUTO_DRAFT, "off": NO_DRAFT}[speculators], []
    if draft is None:
        draft = AUTO_DRAFT if speculators is None else NO_DRAFT
    group = draft_group(model, draft, options)
    specs: list[Flags | Function] = [group] if group else []
    for spec in speculators or ():
        specs += (read_speculators([spec]) or {}).values() if isinstance(spec, str) else [spec]
    return specs


def _runner(directory: Path, draft: Flags, options: LLMOptions) -> tuple[ModelRunner, Callable[[], None]]:
    """Load the model in one or several processes; return runner and `close`.

    `draft` is loaded later on the same device, if it names a model; the cache leaves memory for it.
    """
    layout = Layout(options.tensor_parallel_size, options.pipeline_parallel_size)
    runner_options = RunnerOptions.of(options)
    if layout.ranks == 1:
        limit_threads()
        small = resolve_model(draft["model"]) if draft else None
        tokens = fitting_cache(directory, small, runner_options, draft_weights=draft.get("weights", AUTO))
        return load_checked(directory, replace(runner_options, kv_tokens=tokens)), lambda: None
    if layout.stages > 1:
        log.info(
            "with pipeline stages, rounding depends on the number of tokens in a pass, so speculation may change "
            "the choice among nearly equally probable tokens"
        )
    from specinfer.model.parallel.local import LocalRanks

    ranks = LocalRanks(directory, runner_options, layout)
    return ranks.runner, ranks.close


def _keep_prefixes(runner: ModelRunner, fingerprint: str, options: LLMOptions) -> None:
    """Open the prefix cache's directory, if set."""
    if not options.prefix_cache_directory:
        return
    limit = options.prefix_cache_megabytes * 1_000_000
    runner.keep_prefixes(Path(options.prefix_cache_directory).expanduser(), fingerprint, limit)


def _verifier(
    runner: ModelRunner, tokenizer: Tokenizer, options: LLMOptions
) -> tuple[VerifierEngine, Compiler | None]:
    """Return the model's verifier, and a compiler of constraints if possible."""
    longest = runner.config.max_positions
    limits = EngineLimits(
        max_requests=options.max_num_seqs,
        max_context_len=checked_context("max_model_len", options.max_model_len, longest),
        idle_seconds=math.inf,
    )
    try:
        compiler = compiler_of(tokenizer, runner.config.vocab_size, runner.config.eos_token_ids)
    except IncompatibleError as error:
        log.info("%s; requests with constraints are refused", error)
        compiler = None
    return VerifierEngine(runner, options.acceptance, limits, compiler=compiler), compiler


def _drafters(spec: Flags | Function, model: str, options: LLMOptions) -> dict[str, Drafter]:
    """Load one group's drafters, given flags or a function."""
    if not isinstance(spec, Mapping):
        name = getattr(spec, "__name__", "function")
        return {name: CustomDrafter(spec, name)}
    return load_drafters("speculators", spec, options.for_drafts(model))


def _limits(verifier: VerifierEngine, options: LLMOptions) -> SchedulerLimits:
    """Return the scheduler's limits, within the verifier's limits."""
    limits, cache = verifier.limits, verifier.runner.cache
    return SchedulerLimits(
        max_batch=options.max_num_seqs,
        max_context_len=limits.max_context_len,
        max_waiting=_UNLIMITED,
        tree_depth=limits.max_nodes,
        max_step_tokens=limits.max_step_tokens,
        kv_capacity_tokens=cache.capacity_tokens,
        kv_block_tokens=cache.block_tokens,
        max_tree_nodes=limits.max_nodes - 1,
    )
