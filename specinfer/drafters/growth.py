"""Read the options of tree growth, and make the growth tasks of jobs."""

from collections.abc import Sequence
from dataclasses import replace

from specinfer.drafters import DrafterOptions, DraftJob
from specinfer.errors import SettingError
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import RunnerOptions
from specinfer.request.sampling import GREEDY
from specinfer.tree import ExpansionVector, ProposalKind, TreeLimits

_DRAFT_FORMAT = "q8_0"
"""Weight format of `auto` for a checkpoint without block formats."""
PROPOSALS = {kind.name.lower(): kind for kind in ProposalKind}
"""Values of the option `proposal`: kinds of children for sampled requests."""


def growth_task(
    shape: GrowthShape,
    job: DraftJob,
    sequence: KVSequence,
    delta: Sequence[int],
    limits: TreeLimits,
    offset: int = 0,
) -> GrowthTask:
    """Return a job's growth task, seeded for the drafter's or target's draws."""
    if shape.draws(job.sampling):
        sampling = replace(job.sampling, seed=job.draw_seed)
        return GrowthTask(sequence, delta, limits, sampling, offset=offset)
    if job.sees_noise or job.sampling.greedy:
        return GrowthTask(sequence, delta, limits, job.sampling, offset=offset)
    return GrowthTask(sequence, delta, limits, GREEDY, blind=job.sampling.temperature, offset=offset)


def runner_options(options: DrafterOptions) -> RunnerOptions:
    """Return the options for loading and running a drafter's model."""
    return RunnerOptions.of(options, numbers_as=_DRAFT_FORMAT)


def shape_of(options: DrafterOptions) -> GrowthShape:
    """Read the options of tree growth."""
    if options.proposal not in PROPOSALS:
        raise SettingError("proposal", options.proposal, f"must be one of {', '.join(PROPOSALS)}")
    expansion = ExpansionVector.parse(options.expansion) if options.expansion else None
    return GrowthShape(
        expansion=expansion,
        beam=options.beam,
        deepest=options.depth,
        min_path_probability=options.min_path_probability,
        kind=PROPOSALS[options.proposal],
    )
