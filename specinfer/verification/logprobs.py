"""Log-probabilities of returned tokens, and of the most probable ones beside them.

They are the model's own, before adjustments, temperature, top-k and top-p (as vLLM's by default): so they
do not depend on the request, and at the node that emitted a token they equal those of plain decoding.
"""

import torch

from specinfer.model.sampling.most_probable import most_probable
from specinfer.statuses import LogprobRow
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Verdict


def logprobs_of(tree: TokenTree, verdict: Verdict, rows: torch.Tensor, top: int) -> list[LogprobRow]:
    """Return the log-probabilities of accepted and bonus tokens, by the logits [N, V] of a tree's nodes."""
    nodes = [0, *verdict.accepted]
    tokens = [*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus]
    logp = rows[nodes].log_softmax(-1)
    chosen = logp[torch.arange(len(nodes)), tokens].tolist()
    if not top:
        return [LogprobRow(value) for value in chosen]
    ids = most_probable(logp, top)
    lists = [
        list(zip(row, values, strict=True))
        for row, values in zip(ids.tolist(), logp.gather(1, ids).tolist(), strict=True)
    ]
    return [LogprobRow(value, best) for value, best in zip(chosen, lists, strict=True)]
