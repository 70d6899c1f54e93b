"""Drafts from a datastore of texts: the suffix array against a plain search, trees by frequency."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.retrieval import (
    RetrievalDrafter,
    likely_tree,
    read_datastore,
)
from specinfer.drafters.search import LONGEST_SORTED, SuffixArray
from specinfer.errors import InvalidInputError, SettingError
from specinfer.request.sampling import Sampling
from specinfer.tree import TokenTree, TreeLimits, check_tree
from tests.support.system import ascii_tokenizer
from tests.support.trees import paths

TEXTS = [[1, 2, 3, 4, 5, 6], [9, 1, 2, 3, 7, 8], [1, 2, 3, 4, 5, 9], [0, 2, 3, 4]]


def make() -> RetrievalDrafter:
    return RetrievalDrafter(TEXTS, DrafterDescription(), 2)


def draft(drafter: RetrievalDrafter, context: list[int], limits: TreeLimits, name: str = "r") -> TokenTree:
    (tree,) = drafter.draft([DraftJob(name, context, limits, Sampling(temperature=0))])
    assert isinstance(tree, TokenTree)
    check_tree(tree, 100, limits.nodes + 1)
    return tree


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=4), st.lists(st.integers(0, 2), max_size=24)
)
def test_the_longest_match_equals_that_of_a_plain_search(texts: list[list[int]], context: list[int]) -> None:
    array = SuffixArray(texts)
    flat = array.tokens.tolist()
    expected: tuple[int, list[int]] = (0, [])
    for length in range(min(LONGEST_SORTED, len(context)), 0, -1):
        end = context[len(context) - length :]
        ends = [at + length for at in range(len(flat)) if flat[at : at + length] == end]
        if ends:
            expected = length, ends
            break
    length, places = array.longest_match(context, 1)
    assert (length, sorted(places.tolist())) == expected


def test_continuations_are_ranked_by_frequency() -> None:
    tree = draft(make(), [5, 1, 2, 3], TreeLimits(4, 3))
    assert paths(tree) == {(3,), (3, 4), (3, 4, 5), (3, 7), (3, 7, 8)}
    by_path = {tree.sequence_of(node): float(tree.scores[node]) for node in range(len(tree))}
    assert by_path[(3, 4)] == pytest.approx(0.5 * 2 / 3)
    assert by_path[(3, 7)] == pytest.approx(0.5 / 3)
    assert by_path[(3, 4, 5)] == pytest.approx(0.5)


def test_nothing_crosses_the_end_of_a_text() -> None:
    tree = draft(make(), [5, 4, 5, 6], TreeLimits(8, 4))
    assert paths(tree) == {(6,)}
    assert len(draft(make(), [50, 51], TreeLimits(8, 4))) == 1


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
)
def test_trees_keep_their_limits(
    continuations: list[list[int]], nodes: int, depth: int, width: int | None
) -> None:
    limits = TreeLimits(nodes, depth, width)
    tree = likely_tree(0, [c[:depth] for c in continuations], limits, 0.5)
    check_tree(tree, 10, nodes + 1)
    parents = tree.parents.tolist()
    assert width is None or all(parents.count(node) <= width for node in range(len(tree)))
    known = {()} | {tuple(c[:end]) for c in continuations for end in range(len(c) + 1)}
    assert all(tree.sequence_of(node)[1:] in known for node in range(len(tree)))


def test_a_datastore_is_text_or_jsonl(tmp_path: Path) -> None:
    tokenizer = ascii_tokenizer()
    text, rows = tmp_path / "notes.txt", tmp_path / "rows.jsonl"
    text.write_text("red button")
    rows.write_text(json.dumps({"text": "lever"}) + "\n" + json.dumps({"p": [3], "o": [4, 5]}) + "\n")
    texts = list(read_datastore(f"{text}:{rows}", tokenizer))
    assert texts == [tokenizer.encode("red button"), tokenizer.encode("lever"), [3, 4, 5]]
    rows.write_text('{"o": [1]}\n')
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl:1"):
        list(read_datastore(str(rows), tokenizer))
    with pytest.raises(SettingError, match="no such file"):
        list(read_datastore("/nowhere.txt", tokenizer))
    with pytest.raises(SettingError, match="must name files, separated by colons"):
        RetrievalDrafter.from_options(DrafterOptions())


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_of_a_file_is_no_text(tmp_path: Path, name: str) -> None:
    tokenizer, path = ascii_tokenizer(), tmp_path / name
    text = "abc" if name.endswith("txt") else json.dumps({"text": "abc"}) + "\n"
    data = b"\xef\xbb\xbf" + text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert list(read_datastore(str(path), tokenizer)) == [tokenizer.encode("abc")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"\xff"),
        ("a.jsonl", b"\xff"),
        ("a.jsonl.gz", b"abc"),
        ("a.jsonl.gz", gzip.compress(b"abc" * 99, mtime=0)[:-9]),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match=str(path)):
        list(read_datastore(str(path), ascii_tokenizer()))
