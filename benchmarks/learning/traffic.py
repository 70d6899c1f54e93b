"""Requests of the benchmark of learning: about functions of Python's standard library, or of random tokens."""

import ast
import random
import sysconfig
from pathlib import Path
from textwrap import dedent

from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.tokenizer import Tokenizer

REQUESTS = (
    "Explain what this Python function does:",
    "Write a unit test for this Python function:",
    "Rewrite this Python function with type annotations:",
    "Add a docstring to this Python function:",
)
LEAST_CHARACTERS, MOST_CHARACTERS = 200, 700


def functions() -> list[str]:
    """Functions of Python's standard library, one of each name, in an order of their own."""
    library, found = Path(sysconfig.get_paths()["stdlib"]), dict[str, str]()
    for path in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        if "test" in str(path.relative_to(library)):
            continue
        text = path.read_text(errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        lines = text.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                source = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if LEAST_CHARACTERS < len(source) < MOST_CHARACTERS:
                    found.setdefault(node.name, source)
    chosen = list(found.values())
    random.Random(7).shuffle(chosen)
    return chosen


def prompts(count: int) -> list[list[int]]:
    """So many requests, as tokens."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    return [
        tokenizer.encode_chat(
            [{"role": "user", "content": f"{REQUESTS[i % len(REQUESTS)]}\n\n```python\n{source}\n```"}]
        )
        for i, source in enumerate(functions()[:count])
    ]


def noise(count: int, length: int = 24) -> list[list[int]]:
    """Prompts of random tokens."""
    draw, vocabulary = random.Random(3), Tokenizer.load(resolve_model(DEFAULT_MODEL)).vocab_size
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
