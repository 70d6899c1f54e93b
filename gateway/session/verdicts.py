"""Check the verifier's verdicts; an invalid verdict fails only its request. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specinfer.errors import MalformedTreeError
from specinfer.request.statuses import EntryStatus, LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedOutputs
from specinfer.tree import TokenTree, check_tree
from specinfer.v1 import common_pb2, verifier_pb2
from specinfer.wire.codec import decode_tree

_STATUSES = frozenset(int(status) for status in EntryStatus)


def sound_verdicts(
    entries: Sequence[StepEntry],
    trees: Mapping[str, TokenTree],
    answers: Sequence[verifier_pb2.Verdict],
    vocab_size: int,
    wanted: WantedOutputs = NOTHING_WANTED,
) -> dict[str, Verdict]:
    """Return by request id the verdict, or an error if inconsistent.

    Args:
        entries: entries of the step.
        trees: verified trees by request id.
        answers: the verifier's verdicts, in the order of the entries.
        vocab_size: exclusive upper bound of the bonus token.
        wanted: requested outputs of the target.
    """
    verdicts: dict[str, Verdict] = {}
    for index, entry in enumerate(entries):
        if index >= len(answers):
            verdicts[entry.request_id] = _error("the verifier did not answer this entry")
            continue
        tree = trees.get(entry.request_id)
        wrong = _contradiction(entry, tree, answers[index], vocab_size)
        nodes = len(tree) if tree is not None else 0
        wrong = wrong or wanted.contradiction(entry.request_id, nodes, answers[index])
        verdicts[entry.request_id] = _error(wrong) if wrong else _decoded(entry, nodes, answers[index])
    return verdicts


def made_trees(
    entries: Sequence[StepEntry],
    sent: Mapping[str, TokenTree],
    answers: Sequence[verifier_pb2.Verdict],
    vocab_size: int,
) -> tuple[dict[str, TokenTree], dict[str, Verdict]]:
    """Return each request's verified tree, and an error for each invalid tree.

    A verified tree is the tree in the verifier's answer, else the sent tree, else only a root (plain decoding).
    """
    made: dict[str, TokenTree] = {}
    broken: dict[str, Verdict] = {}
    for entry, answer in zip(entries, answers, strict=False):
        request_id = entry.request_id
        if answer.request_id == request_id and answer.HasField("tree"):
            try:
                made[request_id] = tree = decode_tree(answer.tree)
                check_tree(tree, vocab_size, len(tree))
            except MalformedTreeError as error:
                broken[request_id] = _error(f"the verifier returned an invalid tree: {error.for_logs}")
    for entry in entries:
        if entry.final and entry.request_id not in made:
            made[entry.request_id] = sent.get(entry.request_id) or TokenTree.root_only(entry.delta[-1])
    return made, broken


def following_entries(entries: Sequence[StepEntry], verdicts: Mapping[str, Verdict]) -> list[StepEntry]:
    """Return entries of a grant's next step; [] after the grant's end.

    The grant ends with a step in which a verdict is not OK.
    """
    entries_after = []
    for entry in entries:
        verdict = verdicts[entry.request_id]
        if verdict.status is not EntryStatus.OK:
            return []
        entries_after.append(replace(entry, base_len=verdict.cached_len, delta=(verdict.bonus,)))
    return entries_after


def _contradiction(
    entry: StepEntry, tree: TokenTree | None, answer: verifier_pb2.Verdict, vocab_size: int
) -> str:
    """Return the reason why an answer contradicts its entry, or ""."""
    if answer.request_id != entry.request_id:
        return "the verifier answered for another request"
    if int(answer.status) not in _STATUSES:
        return f"the verifier answered with unknown status {answer.status}"
    if answer.status != int(EntryStatus.OK):
        return ""
    accepted = list(answer.accepted_nodes)
    if accepted and (tree is None or not _is_path(tree, accepted)):
        return f"the verifier accepted nodes {accepted[:16]}, which are not a path from the root"
    expected_len = entry.context_len + len(accepted)
    if entry.read_limit:  # the last token must stay pending, or no later entry would have a delta
        if not entry.base_len < answer.cached_len < expected_len:
            return f"the verifier cached {answer.cached_len} tokens instead of fewer than {expected_len}"
    elif answer.cached_len != expected_len:
        return f"the verifier cached {answer.cached_len} tokens instead of {expected_len}"
    if answer.cached_tokens > len(entry.delta):
        return f"the verifier found {answer.cached_tokens} of {len(entry.delta)} tokens in its cache"
    if tree is not None and answer.bonus_token_id >= vocab_size:
        return f"the verifier added token {answer.bonus_token_id} of a vocabulary of {vocab_size}"
    if answer.finished and entry.state.request.constraint is None:
        return "the verifier finished a constraint of a request without constraint"
    wanted = len(accepted) + 1 if entry.state.request.logprobs and tree is not None else 0
    if wanted and len(answer.logprobs) != wanted:
        return f"the verifier returned {len(answer.logprobs)} log-probabilities instead of {wanted}"
    top = entry.state.request.top_logprobs if wanted else 0
    if top and not _are_tops(answer.top_logprobs, wanted, top, vocab_size):
        return f"the verifier did not return {top} alternatives for each of {wanted} tokens"
    return ""


def _are_tops(rows: Sequence[common_pb2.TopLogprobs], wanted: int, top: int, vocab_size: int) -> bool:
    """Return whether `rows` has `top` valid alternatives for each of `wanted` tokens."""
    return len(rows) == wanted and all(
        len(row.token_ids) == len(row.logprobs) == top and max(row.token_ids) < vocab_size for row in rows
    )


def _is_path(tree: TokenTree, nodes: Sequence[int]) -> bool:
    """Return whether `nodes` are a path from a child of the root."""
    if not all(0 < node < len(tree) for node in nodes):
        return False
    parents = tree.parents.tolist()
    return [parents[node] for node in nodes] == [0, *nodes[:-1]]


def _decoded(entry: StepEntry, nodes: int, answer: verifier_pb2.Verdict) -> Verdict:
    k = len(answer.top_k_token_ids) // max(nodes, 1)
    return Verdict(
        EntryStatus(answer.status),
        answer.message,
        tuple(answer.accepted_nodes),
        answer.bonus_token_id,
        _logprobs(answer, entry.state.request.top_logprobs),
        answer.cached_len,
        answer.features_start,
        answer.features,
        tuple(
            [tuple(answer.top_k_token_ids[place * k : (place + 1) * k]) for place in range(nodes if k else 0)]
        ),
        answer.finished,
        answer.cached_tokens,
    )


def _logprobs(answer: verifier_pb2.Verdict, top: int) -> tuple[LogprobRow, ...]:
    if not top:
        return tuple([LogprobRow(value) for value in answer.logprobs])
    tops = [tuple(zip(row.token_ids, row.logprobs, strict=True)) for row in answer.top_logprobs]
    return tuple([LogprobRow(*row) for row in zip(answer.logprobs, tops, strict=True)])


def _error(message: str) -> Verdict:
    return Verdict(EntryStatus.ERROR, message)
