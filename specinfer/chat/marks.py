"""Marks that models write around calls of functions and around thoughts, in the families whose templates teach them.

Some tokenizers have them as special tokens, which are no text; answers need them, so they are text here in any case.
"""

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Marks around thoughts."""
CALLS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
"""Marks around calls."""
TEXT_MARKS = frozenset([*CALLS, *[mark for pair in THOUGHTS for mark in pair]])
"""Marks that are a part of an answer's text even if they are special tokens."""
