"""Top-k predictions of the target in a whole system, and token recycling, which uses them."""

import asyncio
from itertools import pairwise

from specinfer.drafters import DrafterDescription, DraftJob, TargetTopK
from specinfer.tree import TokenTree
from specinfer.wire.client_ids import request_id_of
from tests.support.oracle import default_target, first, greedy
from tests.support.system import ScriptedDrafter, running_system
from tests.support.tiny_models import reference_logits

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]


class Reader(ScriptedDrafter):
    """Drafter with two right tokens per tree; reads k predictions per node."""

    def __init__(self, k: int) -> None:
        super().__init__(self._tree)
        self.description = DrafterDescription(target_top_k=k)
        self.steps: list[tuple[str, list[int], TokenTree, TargetTopK | None]] = []
        """Request id, context, tree and predictions of each job."""

    def _tree(self, job: DraftJob) -> TokenTree:
        tree = first(2)(job)
        self.steps.append((request_id_of(job.request_id), list(job.context), tree, job.target_top_k))
        return tree


async def test_two_services_read_predictions_at_all_nodes(redis_url: str) -> None:
    """They are those of the last step's tree. Each service gets as many as it reads."""
    few, many, blind = Reader(2), Reader(5), ScriptedDrafter(first(2))
    async with running_system(redis_url, {"few": few, "many": many, "blind": blind}) as system:
        prompts = {"one": PROMPT, "two": PROMPT[::-1][:6]}
        texts = await asyncio.gather(
            *(system.tokens(prompt, request_id=name) for name, prompt in prompts.items())
        )
        assert texts == [greedy(prompt, 16) for prompt in prompts.values()]
    assert all(job.target_top_k is None for job in blind.jobs)
    for drafter, k in ((few, 2), (many, 5)):
        for name in prompts:
            steps = [step for step in drafter.steps if step[0] == name]
            assert steps[0][3] is None
            assert len(steps) > 4
            for (_, context, tree, _), (_, _, _, texts) in pairwise(steps):
                text = [*context, *tree.token_ids[1:].tolist()]
                rows = reference_logits(default_target(), text)[len(context) - 1 :]
                assert texts is not None
                assert texts.token_ids.tolist() == tree.token_ids.tolist()
                assert texts.top_k.tolist() == rows.topk(k).indices.tolist()
