"""The right text of each request: plain decoding of the same target without gateway, faults or speculators."""

from collections.abc import Sequence
from random import Random
from typing import Any

from specinfer.engine.host import Host
from specinfer.engine.local_pool import LocalPool
from specinfer.engine.step import StepMachine
from specinfer.llm.engine import LocalEngine
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.table_planner import TablePlanner
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.request import GenerationRequest, Speculation
from specinfer.scheduling.scheduler import Scheduler
from specinfer.scheduling.text import StopStrings
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.verification.engine import VerifierEngine
from tests.simulation.plan import Ask
from tests.simulation.services import TOKENIZER, SimulatedMasks
from tests.simulation.target import target_compiler, target_runner

_known: dict[Ask, tuple[list[int], FinishReason]] = {}


def right_answers(asks: Sequence[Ask]) -> None:
    """Compute the answers of a world's requests, and forget those of earlier worlds."""
    _known.clear()
    masks = SimulatedMasks(lambda: 0.0, Random(0))
    for ask in asks:
        _known[ask] = _decode(ask.prompt, ask.fields, masks)


def right_answer(ask: Ask) -> tuple[list[int], FinishReason]:
    """Return the tokens of a request, and the reason for its end."""
    return _known[ask]


def _decode(
    prompt: tuple[int, ...], fields: dict[str, Any], masks: SimulatedMasks
) -> tuple[list[int], FinishReason]:
    limits, budget = SchedulerLimits(), NodeBudget(1, 1)
    scheduler = Scheduler(limits, budget, StopStrings(TOKENIZER))
    machine = StepMachine(scheduler, TablePlanner(PassCurve([(1, 0.001), (64, 0.002)]), budget, False))
    runner, compiler = target_runner(2048), target_compiler()
    verifier = VerifierEngine(runner, compiler=compiler, masks=masks)
    host = Host(LocalPool([], runner.config.hidden_size, runner.config.vocab_size), verifier, compiler)
    engine = LocalEngine(machine, host)
    sampling, constraint = fields["sampling"], fields.get("constraint")
    state = engine.submit(
        GenerationRequest(
            "r",
            prompt,
            fields["max_new_tokens"],
            Sampling(
                sampling.temperature,
                seed=sampling.seed,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
            ),
            stop_strings=tuple(fields.get("stop_strings", ())),
            speculation=Speculation.OFF,
            constraint=constraint and Constraint(ConstraintKind.REGEX, constraint.regex),
        )
    )
    while state.finish is None:
        engine.step()
    return state.tokens[len(prompt) :], state.finish
