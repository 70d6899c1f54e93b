"""Encode finished steps as `WatchReply` messages."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

from gateway.api.callers import Caller
from gateway.api.encode import encode_finish, planner_state
from gateway.api.watch.watches import Pace, Seen, Watches
from gateway.session.totals import PHASES
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.entries import Progress
from specinfer.text.detokenizer import Detokenizer
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import NOBODY, Proposal, ProposalKind, TokenTree
from specinfer.v1 import generation_pb2, tree_pb2

_MAX_KEPT = 100_000
"""Maximum cached token texts, about one vocabulary."""


class TokenTexts:
    """Cache of the texts of single tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._tokenizer.text_of_token(token_id)
            if len(self._texts) < _MAX_KEPT:
                self._texts[token_id] = text
        return text


class RequestText:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._read = 0

    def push(self, item: Progress) -> Sequence[str]:
        """Return the text that each new token completes."""
        prompt = len(item.state.request.prompt)
        self._detokenizer.push(item.state.tokens[prompt + self._read : prompt + item.start])  # dropped steps
        self._read = item.start + len(item.tokens)
        texts = [self._detokenizer.push([token]) for token in item.tokens]
        if item.final and texts:
            texts[-1] += self._detokenizer.flush()
        return texts


def reply_of(seen: Seen, dropped: int, texts: TokenTexts, text: RequestText) -> generation_pb2.WatchReply:
    """Return an event's message; `dropped` counts events dropped before."""
    item, finish = seen.item, seen.item.state.finish if seen.item.final else None
    step = None if item.counts is None else seen.step  # a failed entry has no verified tree
    return generation_pb2.WatchReply(
        request_id=item.request_id,
        step=None if step is None else _step(item, step, seen.names, texts, text),
        dropped=dropped,
        finish_reason=encode_finish(finish) if finish is not None else None,
    )


def _step(
    item: Progress, step: FinishedStep, names: Sequence[str], texts: TokenTexts, text: RequestText
) -> generation_pb2.WatchedStep:
    tree, verdict = step.trees[item.request_id], step.verdicts[item.request_id]
    reply = generation_pb2.WatchedStep(
        position=item.start,
        nodes=_nodes(tree, sorted(step.choice.speculators), step.drafts.get(item.request_id, ()), texts),
        accepted=verdict.accepted,
        bonus=generation_pb2.WatchedToken(token_id=verdict.bonus, text=texts.of(verdict.bonus)),
        planner=planner_state(step.choice, names),
        batch=len(step.entries),
        seconds=step.seconds,
        phases=[
            generation_pb2.PhaseState(name=name, seconds=seconds)
            for name, seconds in zip(PHASES, step.phases, strict=True)
        ],
    )
    for place, (token, completed) in enumerate(zip(item.tokens, text.push(item), strict=True)):
        picture = reply.tokens.add(token_id=token, text=completed)
        if item.state.request.logprobs:
            picture.logprob = item.logprobs[place].chosen
    return reply


def _nodes(
    tree: TokenTree, asked: Sequence[int], drafts: Sequence[tuple[int, TokenTree]], texts: TokenTexts
) -> Iterator[generation_pb2.WatchedNode]:
    """Yield the messages of a merged tree's nodes.

    `asked` has the numbers of the step's speculators; a proposal's `speculator` is an index into this list.
    """
    proposals = _proposals(
        tree, {number: index for index, number in enumerate(asked)}, _draft_scores(tree, drafts)
    )
    forced = tree.forced
    numbers = zip(tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist(), strict=True)
    for node, (token, parent, score) in enumerate(numbers):
        proposers = proposals.get(node, [])
        drawn = max((p.chance for p in proposers if p.kind != tree_pb2.PROPOSAL_KIND_POINT), default=0.0)
        yield generation_pb2.WatchedNode(
            token_id=token,
            text=texts.of(token),
            parent=parent,
            chance=score or drawn,
            proposals=proposers,
            forced=node in forced,
        )


def _proposals(
    tree: TokenTree, index: Mapping[int, int], draft_scores: Mapping[tuple[int, int], float]
) -> dict[int, list[generation_pb2.WatchedProposal]]:
    """Return the proposals by node; `index` maps speculator numbers to message indices."""
    proposals: dict[int, list[generation_pb2.WatchedProposal]] = {}
    for proposal in tree.proposals:
        if proposal.speculator == NOBODY:
            continue
        for node in dict.fromkeys(proposal.children):
            proposals.setdefault(node, []).append(
                generation_pb2.WatchedProposal(
                    speculator=index[proposal.speculator],
                    kind=int(proposal.kind),  # type: ignore[arg-type]  # the enums share their numbers
                    chance=_chance(proposal, node, tree, draft_scores),
                )
            )
    return proposals


def _chance(
    proposal: Proposal, node: int, tree: TokenTree, draft_scores: Mapping[tuple[int, int], float]
) -> float:
    """Return the speculator's own probability of a candidate."""
    if proposal.kind is ProposalKind.POINT:
        return draft_scores.get((proposal.speculator, node), 0.0)
    drawn = proposal.q_probabilities[proposal.q_token_ids == tree.token_ids[node]]
    return float(drawn.sum())


def _draft_scores(tree: TokenTree, drafts: Sequence[tuple[int, TokenTree]]) -> dict[tuple[int, int], float]:
    """Map (speculator, node of `tree`) to the speculator's uncalibrated score."""
    parents, tokens = tree.parents.tolist(), tree.token_ids.tolist()
    place_of = {(parents[node], tokens[node]): node for node in range(1, len(tree))}
    chances: dict[tuple[int, int], float] = {}
    for speculator, draft in drafts:
        places: list[int | None] = [0]
        above, theirs, scores = draft.parents.tolist(), draft.token_ids.tolist(), draft.scores.tolist()
        for node in range(1, len(draft)):
            parent = places[above[node]]
            place = None if parent is None else place_of.get((parent, theirs[node]))
            places.append(place)  # None: the node was cut, and so are all nodes below
            if place is not None:
                chances[speculator, place] = scores[node]
    return chances


class WatchReplies:
    """Creates the reply streams of `Watch` calls at one gateway."""

    def __init__(
        self, watches: Watches, tokenizer: Tokenizer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watches, self._tokenizer, self._clock = watches, tokenizer, clock
        self._pace, self._texts = Pace(), TokenTexts(tokenizer)

    async def of(self, request_id: str, caller: Caller) -> AsyncGenerator[generation_pb2.WatchReply, None]:
        """Yield the steps of one request, or of a caller's requests."""
        texts: dict[str, RequestText] = {}
        with self._watches.open(caller, request_id) as watch:
            yield generation_pb2.WatchReply()
            while True:
                await watch.wait()
                await asyncio.sleep(self._pace.turn(self._clock()))
                seen, dropped = watch.take()
                stepped_id = seen.item.request_id
                text = texts.setdefault(stepped_id, RequestText(self._tokenizer))
                yield reply_of(seen, dropped, self._texts, text)
                if seen.item.final:
                    del texts[stepped_id]
                    if request_id:
                        return
