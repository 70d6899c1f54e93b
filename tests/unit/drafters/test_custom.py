"""A user's function as drafter: the documented example, and functions that fail."""

import os
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specinfer.drafters import DrafterOptions, DraftJob, make_drafter
from specinfer.drafters.custom import CustomDrafter
from specinfer.errors import SettingError, SpecInferError
from specinfer.request.sampling import Sampling
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder, TreeLimits
from specinfer.tree.token_tree import distribution
from tests.support.trees import paths

DOCS = Path(__file__).parents[3] / "docs" / "drafters.md"


def job(context: list[int], nodes: int = 4) -> DraftJob:
    return DraftJob("r", context, TreeLimits(nodes, 3), Sampling(temperature=0))


def test_the_documented_example_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n# my_drafts\.py\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    (tmp_path / "my_drafts.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    drafter = make_drafter("custom", DrafterOptions(function="my_drafts:repeat_last"))
    (tree,) = drafter.draft([job([4, 7])])
    assert isinstance(tree, TokenTree)
    assert paths(tree) == {(7,), (7, 7), (7, 7, 7), (7, 7, 7, 7)}
    assert drafter.description.model == "my_drafts:repeat_last"


@pytest.mark.parametrize("place", ["working directory", "PYTHONPATH", "package"])
def test_where_the_file_may_be(place: str, tmp_path: Path) -> None:
    """The places that docs/drafters.md names, in a process of its own."""
    folder, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    package = folder / "drafts" if place == "package" else folder
    package.mkdir(parents=True)
    elsewhere.mkdir()
    (package / "my_drafts.py").write_text("def nothing(context, limits):\n    return None\n")
    function = "drafts.my_drafts:nothing" if place == "package" else "my_drafts:nothing"
    code = (
        "from specinfer.drafters import DrafterOptions, make_drafter; "
        f"print(make_drafter('custom', DrafterOptions(function={function!r})).description.model)"
    )
    there = place == "working directory"
    search = [str(DOCS.parents[1]), *([] if there else [str(folder)])]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        cwd=folder if there else elsewhere,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
    )
    assert done.stdout.strip() == function, done.stderr


def test_a_function_that_fails_costs_one_request_its_draft() -> None:
    def moody(context: Sequence[int], limits: TreeLimits) -> TokenTree | None:
        if context[-1] == 1:
            raise TypeError("no ones")
        if context[-1] == 2:
            return types.SimpleNamespace()
        if context[-1] == 3:
            import numpy as np

            tokens = np.array([3, 5, 5], np.int32)
            return TokenTree(tokens, np.array([-1, 0, 0], np.int32), (), np.ones(3, np.float32))
        return None

    raised, wrong, malformed, none = CustomDrafter(moody, "moody").draft([job([n]) for n in (1, 2, 3, 4)])
    assert isinstance(raised, SpecInferError)
    assert "moody failed: TypeError: no ones" in str(raised)
    assert raised.for_logs.startswith("moody failed: TypeError at test_custom.py:")
    assert isinstance(wrong, SpecInferError)
    assert "returned SimpleNamespace" in str(wrong)
    assert isinstance(malformed, SpecInferError)
    assert "siblings must" in str(malformed)
    assert isinstance(none, TokenTree)
    assert len(none) == 1


def test_a_function_may_draw_only_if_the_service_declares_it() -> None:
    """If one drafter draws, no drafter may see the target's noise, so a function that draws must be declared."""

    def draws(context: Sequence[int], limits: TreeLimits) -> TokenTree:
        builder = TreeBuilder(context[-1])
        builder.propose_samples(0, ProposalKind.WITHOUT_REPLACEMENT, [5], distribution([5, 6], [0.5, 0.5]))
        return builder.build()

    sampled = replace(job([4]), sampling=Sampling(temperature=1))
    undeclared, declared = CustomDrafter(draws, "draws"), CustomDrafter(draws, "draws", draws=True)
    (refused,), (accepted,) = undeclared.draft([sampled]), declared.draft([sampled])
    assert isinstance(refused, SpecInferError)
    assert "--proposal" in str(refused)
    assert isinstance(accepted, TokenTree)
    assert (undeclared.description.draws, declared.description.draws) == (False, True)
    greedy = undeclared.draft([job([4])])
    assert isinstance(greedy[0], TokenTree), "greedy requests are verified without q"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("", "MODULE:NAME"),
        ("nonsense", "MODULE:NAME"),
        ("no_such_module:f", "No module"),
        ("math:pi", "callable"),
    ],
)
def test_a_function_that_is_not_there_is_named(function: str, reason: str) -> None:
    with pytest.raises(SettingError, match=f"function = '{function}'.*{reason}"):
        CustomDrafter.from_options(DrafterOptions(function=function))
