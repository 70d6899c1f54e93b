"""Every command in README and docs is accepted by its program, and is run or states why it is not."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, Block, blocks, commands, script
from tests.docs.ours import fault, is_ours, known_flags, unwrapped

SHELL, CODE, DATA = ("sh", "console"), ("python",), ("json", "text", "mermaid")
RUN = {
    "README.md": "tests/e2e/test_readme.py",
    "serving.md": "tests/docs/test_run.py",
    "http.md": "tests/docs/test_run.py",
}
"""Tests that run the commands of third-party programs, by page."""
RUN_CODE = {**RUN, "python.md": "tests/docs/test_run.py", "drafters.md": "tests/unit/drafters/test_custom.py"}
"""Tests that run the Python blocks, by page."""
BLOCKS = [block for page in PAGES for block in blocks(page)]
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OF_OTHERS = {"--logprobs-mode", "--node-rank", "--nproc-per-node", "--scale"}
"""Flags of third-party programs in prose: vLLM, torchrun, Docker Compose."""


def faults(text: str, foreign: bool) -> Iterator[str]:
    """Yield the errors of a script's commands.

    Args:
        foreign: the script may contain third-party programs.
    """
    for words in map(unwrapped, commands(text)):
        if is_ours(words):
            if problem := fault(words):
                yield f"{' '.join(words)}: {problem}"
        elif not foreign:
            yield f"{words[0]} is not run: run it, or say why in a comment, `# needs a cluster`"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in SHELL], ids=str)
def test_commands_are_what_programs_take(block: Block) -> None:
    foreign = block.needs is not None or block.page in RUN
    assert list(faults(script(block), foreign)) == []


def test_blocks_say_what_they_are() -> None:
    """The checks would skip a command in an indented block."""
    strange = [str(b) for b in BLOCKS if b.language not in (*SHELL, *CODE, *DATA, "")]
    hidden = [
        str(b) for b in BLOCKS if not b.language and re.search(r"^ *(\$|specinfer|python) ", b.text, re.M)
    ]
    assert strange + hidden == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in CODE], ids=str)
def test_python_blocks_are_run_and_import_what_exists(block: Block) -> None:
    assert block.page in RUN_CODE
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_in_prose_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    faults = {span: fault_of_span(span) for span in CODE_SPAN.findall(prose)}
    assert {span: problem for span, problem in faults.items() if problem} == {}


def fault_of_span(span: str) -> str | None:
    """Return the error of code in prose: a flag, or a command of the project, which may lack arguments."""
    if re.match(r"(specinfer [a-z]|python -m |make [a-z]|pip )", span):
        problems = [fault(words, partial=True) for words in commands(span) if is_ours(words)]
        return next(filter(None, problems), None)
    if flag := re.match(r"(--[a-z][\w-]*)(\*?)", span):
        known = known_flags() | OF_OTHERS
        if not any(
            known_flag.startswith(flag[1]) if flag[2] else known_flag == flag[1] for known_flag in known
        ):
            return "no program has it"
    return None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("specinfer up --modle x", "No such option: --modle"),
        ("specinfer upp", "No such command 'upp'"),
        ("specinfer up --dtype float3", "is not one of"),
        ("specinfer exact", "Missing argument"),
        ("specinfer up --speculator ssm,beem=3", "beem"),
        ("specinfer up --speculator sssm", "there is no drafter sssm"),
        ("specinfer up --draft ngram,beem=3", "beem"),
        ("specinfer train eagle --corpse x", "No such option: --corpse"),
        ("specinfer train scheduler --record x", "No such option: --record"),
        ("specinfer serve --modle x", "modle"),
        ("python -m gateway --lease-seconds soon", "lease_seconds"),
        ("A=b python -m verifier_svc --tensor-parallel 0 > log", "tensor_parallel"),
        ("docker run --rm specinfer-tools:1 generate --adress x hi", "No such option: --adress"),
        ("python -m benchmarks.suit --quick", "there is no module"),
        ("python -m benchmarks methods --quik", "has no --quik"),
        ("make tset", "the Makefile has no"),
        ("pip install 'specinfer[model]'", "is in no index"),
        ("pip install '.[modle]'", "there is no extra"),
        ("pip install '$WHEEL[http]'", "no page sets $WHEEL"),
        ("kind create cluster", "kind is not run"),
    ],
)
def test_faults_are_found(text: str, said: str) -> None:
    (problem,) = faults(text, foreign=False)
    assert said in problem
