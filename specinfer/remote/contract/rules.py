"""Check the protocol's rules; each function returns a line for the report."""

from collections.abc import Awaitable, Callable

from specinfer.remote.contract.draws import draws_follow_q
from specinfer.remote.contract.examined import (
    ANY_TOKEN,
    CLIENT,
    ERROR,
    OK,
    RESYNC,
    BrokenContractError,
    Examined,
    NotApplicableError,
    expect_status,
)
from specinfer.tree.shape import depths
from specinfer.v1 import common_pb2, speculator_pb2

_LONGEST_NAME = 128


async def describes_itself(it: Examined) -> str:
    """Check the names of speculators, and their limits."""
    description = await it.describe()
    problems = {
        "speculators: must not be empty": not description.speculators,
        "max_nodes: must be at least 1": not description.max_nodes,
        "instance_id: must be drawn when the process starts": not description.instance_id,
        f"name: must have 1 to {_LONGEST_NAME} characters": any(
            not 0 < len(speculator.name) <= _LONGEST_NAME for speculator in description.speculators
        ),
        "vocab_size: required for speculators that draw": any(
            e.draws and not e.vocab_size for e in description.speculators
        ),
        "feature_layers: must ascend": list(description.feature_layers)
        != sorted(set(description.feature_layers)),
        "feature_size: required with feature_layers": bool(description.feature_layers)
        and not description.feature_size,
    }
    broken = [problem for problem, present in problems.items() if present]
    if broken:
        raise BrokenContractError("; ".join(broken))
    return ", ".join(f"{speculator.name} ({speculator.drafter})" for speculator in description.speculators)


async def appends_deltas(it: Examined) -> str:
    """Check that contexts grow by deltas, and budget 0 drafts nothing."""
    tokens = it.context(12)
    await it.served(it.entry("grows", tokens[:6]))
    silent = await it.served(it.entry("grows", tokens[6:8], 6, node_budget=0))
    if any(len(draft.tree.token_ids) > 1 for draft in silent.drafts):
        raise BrokenContractError("a draft has nodes, but node_budget is 0")
    await it.served(it.entry("grows", tokens[8:], 8))
    return "cached_len is right after each"


async def asks_after_a_gap(it: Examined) -> str:
    """Check that a gap causes RESYNC, then base_len 0 starts over."""
    tokens = it.context(8)
    expect_status(await it.one(it.entry("unknown", tokens[4:], 4)), RESYNC, "an unknown request, base_len 4")
    await it.served(it.entry("gap", tokens[:4]))
    expect_status(await it.one(it.entry("gap", tokens[6:], 6)), RESYNC, "base_len 6 after 4 tokens")
    await it.served(it.entry("gap", tokens))
    expect_status(await it.one(it.entry("gap", tokens[4:], 4)), RESYNC, "base_len 4 after 8 tokens")
    await it.served(it.entry("gap", tokens[:6]))
    return "RESYNC, and base_len 0 starts over"


async def starts_over(it: Examined) -> str:
    """Check that base_len 0 replaces the cached context."""
    first, second = it.context(10), it.context(6)
    await it.served(it.entry("again", first))
    await it.served(it.entry("again", second))
    await it.served(it.entry("again", first[:1], 6))
    return "base_len 0 replaces the cached context"


async def forgets_what_is_released(it: Examined) -> str:
    """Check that Release removes known requests and ignores unknown ones."""
    tokens = it.context(6)
    for name in ("released", "kept"):
        await it.served(it.entry(name, tokens[:5]))
    known = await it.release(["released", "never heard of"])
    if known != 1:
        raise BrokenContractError(f"released is {known}, must be 1: one of two requests is known")
    expect_status(await it.one(it.entry("released", tokens[5:], 5)), RESYNC, "a released request")
    await it.served(it.entry("kept", tokens[5:], 5))
    return "others are kept"


async def keeps_clients_apart(it: Examined) -> str:
    """Check that equal request ids of two clients are separate."""
    tokens = it.context(8)
    await it.served(it.entry("shared", tokens[:6]))
    await it.served(it.entry("shared", tokens[:3]), "another client")
    await it.served(it.entry("shared", tokens[6:], 6))
    await it.release(["shared"], "another client")
    await it.served(it.entry("shared", tokens[:1], 8))
    return f"{CLIENT} and another"


async def keeps_to_budget_and_shape(it: Examined) -> str:
    """Check that trees are valid, and within the requested limits."""
    budgets = [(nodes, depth) for nodes in (1, 2, it.nodes) for depth in (1, 3) if nodes <= it.nodes]
    shapes = (speculator_pb2.TREE_SHAPE_TREE, speculator_pb2.TREE_SHAPE_SEQUENCE)
    largest = deepest = trees = 0
    for nodes, depth in budgets:
        entries = [
            it.entry(f"{name}-{shape}", it.context(12), node_budget=nodes, max_depth=depth, shape=shape)
            for shape in shapes
            for name in "ab"
        ]
        for entry, result in zip(entries, await it.ask(entries), strict=True):
            for tree in it.trees(entry, result).values():
                trees += 1
                largest = max(largest, len(tree) - 1)
                deepest = max(deepest, int(depths(tree.parents).max()))
    if not trees:
        raise BrokenContractError("0 trees: no speculator returned a tree for any entry")
    return f"{trees} trees, at most {largest} nodes and depth {deepest}"


async def drafts_only_who_is_asked(it: Examined) -> str:
    """Check that exactly the requested speculators draft."""
    count = len(it.description.speculators)
    entries = [it.entry(f"asks-{place}", it.context(12), speculators=[place]) for place in range(count)]
    for entry, result in zip(entries, await it.ask(entries), strict=True):
        it.trees(entry, result)
    return f"{count} requested one by one"


async def bad_entries_cost_themselves(it: Examined) -> str:
    """Check that a bad entry does not affect the others."""
    tokens, count = it.context(6), len(it.description.speculators)
    bad = {
        "an empty delta": it.entry("empty", []),
        f"node_budget over max_nodes = {it.description.max_nodes}": it.entry(
            "large", tokens, node_budget=it.description.max_nodes + 1
        ),
        f"speculator {count} of {count}": it.entry("nobody", tokens, speculators=[count]),
        "a request's second entry in a message": it.entry("good", tokens),
    }
    sizes = [speculator.vocab_size for speculator in it.description.speculators if speculator.vocab_size]
    if sizes:
        outside = [*tokens, min(min(sizes), ANY_TOKEN)]
        bad[f"a token outside of the vocabulary of {min(sizes)}"] = it.entry("foreign", outside)
    names, entries = list(bad), list(bad.values())
    good, *wrong = await it.ask([it.entry("good", tokens), *entries])
    expect_status(good, OK, "a good entry among bad ones")
    for name, result in zip(names, wrong, strict=True):
        expect_status(result, ERROR, name)
    await it.served(it.entry("good", tokens[:2], 6))
    return f"{len(bad)} kinds of bad entries"


async def sends_points_unless_it_draws(it: Examined) -> str:
    """Check that speculators without declared draws send only points."""
    quiet = [place for place, speculator in enumerate(it.description.speculators) if not speculator.draws]
    if not quiet:
        raise NotApplicableError("all speculators have `draws` in Describe")
    sampling = common_pb2.SamplingParams(temperature=1.0, seed=7)
    entry = it.entry("sampled", it.context(12), sampling=sampling, speculators=quiet)
    for place, tree in it.trees(entry, await it.served(entry)).items():
        if tree.has_draws:
            name = it.description.speculators[place].name
            raise BrokenContractError(f"{name} draws for sampled requests, but `draws` is false in Describe")
    return f"{len(quiet)} speculators"


Rule = Callable[[Examined], Awaitable[str]]
RULES: dict[str, Rule] = {
    "describes itself": describes_itself,
    "appends deltas": appends_deltas,
    "asks for everything after a gap": asks_after_a_gap,
    "starts over at base_len 0": starts_over,
    "forgets what is released": forgets_what_is_released,
    "keeps clients apart": keeps_clients_apart,
    "keeps to budget and shape": keeps_to_budget_and_shape,
    "drafts only for whom is asked": drafts_only_who_is_asked,
    "bad entries cost only themselves": bad_entries_cost_themselves,
    "sends points unless it draws": sends_points_unless_it_draws,
    "draws follow the q that is sent": draws_follow_q,
}
