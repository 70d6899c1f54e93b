"""Checks verdicts: an inconsistent one fails its entry only. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specinfer.errors import MalformedTreeError
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedOutputs
from specinfer.statuses import EntryStatus, LogprobRow
from specinfer.tree import TokenTree, check_tree
from specinfer.v1 import common_pb2, verifier_pb2
from specinfer.wire.tree_codec import decode_tree

_STATUSES = frozenset(int(status) for status in EntryStatus)


def sound_verdicts(
    entries: Sequence[StepEntry],
    trees: Mapping[str, TokenTree],
    answers: Sequence[verifier_pb2.Verdict],
    vocab_size: int,
    wanted: WantedOutputs = NOTHING_WANTED,
) -> dict[str, VerdictEntry]:
    """Return a verdict per entry, from answers in the same order.

    Args:
        entries: entries of the step.
        trees: verified trees by request.
        answers: results of the verifier.
        vocab_size: the bonus token must be smaller.
        wanted: outputs of the target that were requested.
    """
    verdicts: dict[str, VerdictEntry] = {}
    for index, entry in enumerate(entries):
        if index >= len(answers):
            verdicts[entry.request_id] = _error("the verifier did not answer this entry")
            continue
        tree = trees.get(entry.request_id)
        wrong = _contradiction(entry, tree, answers[index], vocab_size)
        nodes = len(tree) if tree is not None else 0
        wrong = wrong or wanted.contradiction(entry.request_id, nodes, answers[index])
        verdicts[entry.request_id] = _error(wrong) if wrong else _verdict(entry, answers[index])
    return verdicts


def made_trees(
    entries: Sequence[StepEntry],
    sent: Mapping[str, TokenTree],
    answers: Sequence[verifier_pb2.Verdict],
    vocab_size: int,
) -> tuple[dict[str, TokenTree], dict[str, VerdictEntry]]:
    """Return the verified trees, and the error of each invalid one.

    They are the verifier's where it made one, else those that were sent, else a root: plain decoding.
    """
    made: dict[str, TokenTree] = {}
    broken: dict[str, VerdictEntry] = {}
    for entry, answer in zip(entries, answers, strict=False):
        request_id = entry.request_id
        if answer.request_id == request_id and answer.HasField("tree"):
            try:
                made[request_id] = tree = decode_tree(answer.tree)
                check_tree(tree, vocab_size, len(tree))
            except MalformedTreeError as error:
                broken[request_id] = _error(f"the verifier made a tree that is none: {error.for_logs}")
    for entry in entries:
        if entry.final and entry.request_id not in made:
            made[entry.request_id] = sent.get(entry.request_id) or TokenTree.root_only(entry.delta[-1])
    return made, broken


def following_entries(entries: Sequence[StepEntry], verdicts: Mapping[str, VerdictEntry]) -> list[StepEntry]:
    """Return the entries of the next granted step.

    There are none if any verdict is not OK: the grant ends there.
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
    """Return an answer's contradiction to its entry; empty if none."""
    if answer.request_id != entry.request_id:
        return "the verifier answered for another request in its place"
    if int(answer.status) not in _STATUSES:
        return f"the verifier answered with unknown status {answer.status}"
    if answer.status != int(EntryStatus.OK):
        return ""
    accepted = list(answer.accepted_nodes)
    if accepted and (tree is None or not _is_path(tree, accepted)):
        return f"the verifier accepted nodes {accepted[:16]}, which are no path from the root"
    held_len = entry.context_len + len(accepted)
    if entry.read_limit:  # the last token is never taken: without one to send, the request would wait forever
        if not entry.base_len < answer.held_len < held_len:
            return f"the verifier holds {answer.held_len} tokens instead of fewer than {held_len}"
    elif answer.held_len != held_len:
        return f"the verifier holds {answer.held_len} tokens instead of {held_len}"
    if answer.cached_tokens > len(entry.delta):
        return f"the verifier found {answer.cached_tokens} of {len(entry.delta)} tokens in its cache"
    if tree is not None and answer.bonus_token_id >= vocab_size:
        return f"the verifier added token {answer.bonus_token_id} of a vocabulary of {vocab_size}"
    if answer.finished and entry.state.request.constraint is None:
        return "the verifier says that a constraint is finished where there is none"
    wanted = len(accepted) + 1 if entry.state.request.logprobs and tree is not None else 0
    if wanted and len(answer.logprobs) != wanted:
        return f"the verifier returned {len(answer.logprobs)} log-probabilities instead of {wanted}"
    top = entry.state.request.top_logprobs if wanted else 0
    if top and not _are_tops(answer.top_logprobs, wanted, top, vocab_size):
        return f"the verifier did not return {top} log-probabilities beside each of {wanted}"
    return ""


def _are_tops(rows: Sequence[common_pb2.TopLogprobs], wanted: int, top: int, vocab_size: int) -> bool:
    """Return whether each token has a valid row of `top` alternatives."""
    return len(rows) == wanted and all(
        len(row.token_ids) == len(row.logprobs) == top and max(row.token_ids) < vocab_size for row in rows
    )


def _is_path(tree: TokenTree, nodes: Sequence[int]) -> bool:
    """Return whether nodes are a path from the root's children downwards."""
    if not all(0 < node < len(tree) for node in nodes):
        return False
    parents = tree.parents.tolist()
    return [parents[node] for node in nodes] == [0, *nodes[:-1]]


def _verdict(entry: StepEntry, answer: verifier_pb2.Verdict) -> VerdictEntry:
    return VerdictEntry(
        EntryStatus(answer.status),
        answer.message,
        tuple(answer.accepted_nodes),
        answer.bonus_token_id,
        _logprobs(answer, entry.state.request.top_logprobs),
        answer.held_len,
        answer.features_start,
        answer.features,
        tuple(answer.top_k_token_ids),
        answer.finished,
        answer.cached_tokens,
    )


def _logprobs(answer: verifier_pb2.Verdict, top: int) -> tuple[LogprobRow, ...]:
    if not top:
        return tuple([LogprobRow(value) for value in answer.logprobs])
    tops = [tuple(zip(row.token_ids, row.logprobs, strict=True)) for row in answer.top_logprobs]
    return tuple([LogprobRow(*row) for row in zip(answer.logprobs, tops, strict=True)])


def _error(message: str) -> VerdictEntry:
    return VerdictEntry(EntryStatus.ERROR, message)
