"""THE table of a request's fields: name, type, default, values and help of each, said once.

Sampling parameters, options of clients, flags of commands, parameters of `LLM` and the messages derive from it.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from specinfer.options.model_options import Option

SPECULATIONS = ("tree", "sequence", "off", "always")
CONSTRAINTS = ("json_schema", "regex", "grammar", "choice")
"""Fields that constrain the text; at most one may be set."""
UINT32, INT32, UINT64 = range(2**32), range(-(2**31), 2**31), range(2**64)
"""Integers that a message can contain."""
TEXT, SAMPLING, SPECULATION = "Text", "Sampling", "Speculation"
"""Groups of fields in the help of commands."""


@dataclass(frozen=True, slots=True)
class NumberInterval:
    """Values of a number: finite, from `low` (excluded if `above`) to `high`."""

    low: float
    high: float = sys.float_info.max
    above: bool = False

    def __str__(self) -> str:
        if self.high == sys.float_info.max:
            return f"a finite number >= {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}]"


SHARE, SHIFT = NumberInterval(0, 1), NumberInterval(-2, 2)


@dataclass(frozen=True)
class SamplingFields:
    """Numbers that shape the target's distribution before sampling."""

    temperature: Annotated[
        float, NumberInterval(0), Option("Temperature; 0 takes the most probable token.", SAMPLING)
    ] = 1.0
    top_k: Annotated[int, UINT32, Option("Keep the k most probable tokens; 0 keeps all.", SAMPLING)] = 0
    top_p: Annotated[
        float,
        NumberInterval(0, 1, above=True),
        Option("Keep the most probable tokens up to this total probability.", SAMPLING),
    ] = 1.0
    min_p: Annotated[
        float,
        SHARE,
        Option("Minimum probability relative to the most probable token; 0 keeps all.", SAMPLING),
    ] = 0.0
    presence_penalty: Annotated[
        float, SHIFT, Option("Subtracted from the logits of tokens generated before, -2 to 2.", SAMPLING)
    ] = 0.0
    frequency_penalty: Annotated[
        float, SHIFT, Option("Subtracted from a logit for each earlier occurrence, -2 to 2.", SAMPLING)
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        NumberInterval(0.01, 100),
        Option("Divides positive logits of tokens in prompt and answer; 1 changes nothing.", SAMPLING),
    ] = 1.0
    typical_epsilon: Annotated[
        float,
        SHARE,
        Option(
            "Threshold of typical acceptance (Medusa; usual: 0.09): faster, not lossless; 0: off.",
            SPECULATION,
        ),
    ] = 0.0


@dataclass(frozen=True)
class GenerationFields(SamplingFields):
    """Fields that requests of clients and prompts of `LLM` have with the same defaults."""

    seed: Annotated[int | None, UINT64, Option("Seed of the random stream; not given: random.", SAMPLING)] = (
        None
    )
    ignore_eos: Annotated[bool, Option("Continue after the model's end-of-sequence token.", TEXT)] = False
    speculation: Annotated[
        str,
        Option(
            "Draft token trees, one branch (sequence), nothing (off), or trees even where they are slower (always).",
            SPECULATION,
            SPECULATIONS,
        ),
    ] = "tree"
    priority: Annotated[int, INT32, Option("Higher runs first.")] = 0
    deadline_seconds: Annotated[
        float | None, Option("Seconds after which the answer ends unfinished; not given: never.")
    ] = None


@dataclass(frozen=True)
class RequestFields(GenerationFields):
    """Fields of a client's request, with the client's defaults.

    A sampling parameter that is None has the model's default.
    """

    temperature: Annotated[float, Option("Temperature; 0 is greedy.", SAMPLING)] = 0.0
    chat: Annotated[bool, Option("True: answer a text as a chat; False: continue it.")] = True
    max_new_tokens: Annotated[int, INT32, Option("Maximum number of generated tokens.", TEXT)] = 128
    logit_bias: Annotated[
        Mapping[int, float] | None, Option("Added to logits, by token id, -100 to 100; None: nothing.")
    ] = None
    stop: Annotated[
        str | Sequence[str], Option("Generation ends before this text, or the first of several.", TEXT)
    ] = ()
    json_schema: Annotated[str | Mapping[str, Any] | None, Option("JSON schema of the text.")] = None
    regex: Annotated[str | None, Option("Regular expression of the text (Rust's notation).")] = None
    grammar: Annotated[str | None, Option("Grammar of the text (Lark's notation, rule `start`).")] = None
    choice: Annotated[Sequence[str] | None, Option("The text is one of these.")] = None
    references: Annotated[
        str | Sequence[str],
        Option("Texts that the answer may copy from: drafters search them, the model does not read them."),
    ] = ()
    logprobs: Annotated[bool, Option("Return the log-probability of every token.")] = False
    top_logprobs: Annotated[
        int, UINT32, Option("With logprobs: number of alternatives to return per token.")
    ] = 0
    no_training: Annotated[bool, Option("Speculators must not learn from the request.")] = False
    cache_salt: Annotated[
        str, Option("Only requests with the same text share cached prompts; empty: with all.")
    ] = ""
    request_id: Annotated[str, Option("Id of the request, for `attach` and `cancel`; empty: random.")] = ""
