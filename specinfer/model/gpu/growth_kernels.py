"""Kernels that score and choose a growing tree's candidates.

The rules are the same as in `specinfer.model.drafting.expansion`.

    favour      rates every token: by its logit, and by noise if the request is sampled
    extend      one program per tree: adds the candidates below the frontier, chooses the next frontier, and writes
                tokens and masks of the pass that scores the next frontier

The reference does not expand nodes that are too improbable for the tree. Here they are expanded, as the pass has their
rows in any case; their children are not more probable, so the tree is the same.

Candidates are in cells: cell (level * BEAM + f) * WIDTH + w is the w-th best token below node f of the level's
frontier. Cells are numbered in the order in which the reference adds nodes, so that equal candidates rank alike.
"""

import triton.language as tl

from specinfer.model.gpu.choice_kernels import exponential
from specinfer.model.gpu.launch import unspecialised


@unspecialised("size", "rows_of_task")
def favour(
    logits: tl.tensor,
    peaks: tl.tensor,
    temperatures: tl.tensor,
    greedy: tl.tensor,
    keys: tl.tensor,
    vocabulary: tl.tensor,
    favours: tl.tensor,
    size: tl.tensor,
    rows_of_task: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Compute (logit - row's maximum) / T for each column; add noise if sampled.

    Args:
        logits: [R, size] float32; peaks: [R] the maximum of each row. favours: [R, size] float32, the result.
        temperatures: float64, greedy: int32, keys: int64, [tasks]; a task has `rows_of_task` rows.
        vocabulary: [size] int32, target token of each column.
    """
    row = tl.program_id(0).to(tl.int64)
    task = row // rows_of_task
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    x = tl.load(logits + row * size + column, mask=inside, other=0.0)
    shifted = (x - tl.load(peaks + row)).to(tl.float64) / tl.load(temperatures + task)
    if tl.load(greedy + task) == 0:
        token = tl.load(vocabulary + column, mask=inside, other=0)
        shifted -= tl.log(exponential(tl.load(keys + task), token))
    tl.store(favours + row * size + column, shifted.to(tl.float32), mask=inside)


@unspecialised("level", "tasks", "front", "columns", "cells")
def extend(
    scores: tl.tensor,
    ids: tl.tensor,
    vocabulary: tl.tensor,
    depths: tl.tensor,
    widths: tl.tensor,
    least: tl.tensor,
    paths: tl.tensor,
    cell_scores: tl.tensor,
    tokens: tl.tensor,
    parents: tl.tensor,
    frontier_paths: tl.tensor,
    frontier_cells: tl.tensor,
    masks: tl.tensor,
    next_masks: tl.tensor,
    next_tokens: tl.tensor,
    level: tl.tensor,
    tasks: tl.tensor,
    front: tl.tensor,
    columns: tl.tensor,
    cells: tl.tensor,
    BEAM: tl.constexpr,
    WIDTH: tl.constexpr,
    FRONT: tl.constexpr,
    WORDS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """Add one level to one tree, and choose the next frontier.

    Args:
        scores, ids: [tasks * front, columns] float32 and int64: the best candidates below each frontier node, as
            columns of the vocabulary, best first.
        depths, widths: [tasks] int32, maximum levels of a tree, maximum children of a node.
        least: [tasks] float64, minimum path probability of expanded nodes.
        paths, cell_scores, tokens, parents: [tasks, cells] float64, float32, int32, int32: the tree so far.
        frontier_paths, frontier_cells: [levels + 1, tasks, BEAM] float64 and int32; a path of 0: no node.
        masks: [tasks * front, WORDS] masks of the frontier; next_masks, next_tokens: [tasks * BEAM, ...] of
            the pass that scores the next frontier.
        FRONT: a power of two >= front, the number of nodes of this frontier.
    """
    task = tl.program_id(0)
    f, w = tl.arange(0, FRONT), tl.arange(0, WIDTH)
    row, here = task * front + f, (level * tasks + task) * BEAM
    path = tl.load(frontier_paths + here + f, mask=f < front, other=0.0)
    origin = tl.load(frontier_cells + here + f, mask=f < front, other=-1)
    most = tl.minimum(tl.load(widths + task), columns)
    wanted = (f < front)[:, None] & (w < most)[None, :] & (level < tl.load(depths + task))
    at = row[:, None] * columns + w[None, :]
    score = tl.load(scores + at, mask=wanted, other=0.0)
    column = tl.load(ids + at, mask=wanted, other=0)
    token = tl.load(vocabulary + column, mask=wanted, other=0)
    below = path[:, None] * score.to(tl.float64)
    below = tl.where(below > 0, below, 0.0)  # a row with a NaN gives no candidate
    cell = (level * BEAM + f)[:, None] * WIDTH + w[None, :]
    place = task * cells + cell
    entered = (f < front)[:, None] & (w < WIDTH)[None, :]
    tl.store(paths + place, below, mask=entered)
    tl.store(cell_scores + place, score, mask=entered)
    tl.store(tokens + place, token, mask=entered)
    tl.store(parents + place, tl.broadcast_to(origin[:, None], FRONT, WIDTH), mask=entered)
    if not LAST:
        open_ = tl.reshape(below, FRONT * WIDTH)
        token = tl.reshape(token, FRONT * WIDTH)
        i, word = tl.arange(0, FRONT * WIDTH), tl.arange(0, WORDS)
        followed = tl.load(least + task)
        for k in range(BEAM):
            top = tl.max(open_, 0)
            pick = tl.min(tl.where(open_ == top, i, FRONT * WIDTH), 0)
            top = tl.where(top >= followed, top, 0.0)
            node, own = task * BEAM + k, level * BEAM + k
            tl.store(frontier_paths + here + tasks * BEAM + k, top)
            tl.store(frontier_cells + here + tasks * BEAM + k, level * BEAM * WIDTH + pick)
            tl.store(next_tokens + node, tl.sum(tl.where(i == pick, token, 0), 0))
            inherited = tl.where(
                top > 0, tl.minimum(level, 1) * WORDS, 0
            )  # only nodes have a mask to inherit, not the root
            origin_mask = (task * front + pick // WIDTH) * WORDS + word
            mask = tl.load(masks + origin_mask, mask=word < inherited, other=0)
            bit = tl.where(word == own // 32, tl.full([WORDS], 1, tl.int32) << (own % 32), 0)
            tl.store(next_masks + node * WORDS + word, mask | bit)
            open_ = tl.where(i == pick, 0.0, open_)
