"""Record `specinfer run` in a terminal as the picture docs/run.svg: `python -m tests.docs.recording [MODEL]`.

The conversation is real: a pseudo terminal types the lines, and what the command prints becomes the picture.
"""

import os
import pty
import re
import select
import sys

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.docs.blocks import ROOT

PICTURE = ROOT / "docs" / "run.svg"
COLUMNS = 100
LINES = ("Write a Python function that returns the n-th Fibonacci number.", "Now without recursion.", "/bye")
COMMAND = ("run", "--max-new-tokens", "120")
_SPINNER = re.compile(r"\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|^.*\r(?!\n)", re.MULTILINE)
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""Fonts that the picture would load from another host."""


def record(model: str) -> str:
    """Return what the terminal shows while the lines are typed."""
    command = [sys.executable, "-m", "specinfer.cli", COMMAND[0], model, *COMMAND[1:]]
    child, terminal = pty.fork()
    if not child:
        size = {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        os.execve(command[0], command, {**os.environ, **size})
    shown, left = b"", [*LINES]
    while select.select([terminal], [], [], 120)[0]:
        try:
            shown += os.read(terminal, 2**16)
        except OSError:  # the command has ended
            break
        if left and shown.endswith(b">>> "):
            os.write(terminal, f"{left.pop(0)}\n".encode())
    os.waitpid(child, 0)
    text = _SPINNER.sub("", shown.decode().replace("\r\n", "\n"))
    return f"$ specinfer run {model}\n{text[text.index('also at') :].partition(chr(10))[2]}"


def picture(text: str) -> str:
    """Return the SVG of a terminal's text, with its colours."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(text.rstrip()))
    form = _FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    return console.export_svg(title="specinfer run", theme=MONOKAI, code_format=form, unique_id="run")


if __name__ == "__main__":
    PICTURE.write_text(picture(record(*(sys.argv[1:2] or ["qwen2.5-coder-1.5b"]))))
