"""Options of one request, in groups."""

from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.options.choices import SpeculationChoice
from specinfer.cli.options.shared import SAMPLING, SPECULATION, TEXT

PromptFile = Annotated[
    Path | None, typer.Option(help="Read the prompt from this file: UTF-8, without its last line break.")
]
Speculation = Annotated[
    SpeculationChoice, typer.Option(help="Draft trees, one branch or nothing.", rich_help_panel=SPECULATION)
]
TypicalEpsilon = Annotated[
    float,
    typer.Option(
        rich_help_panel=SPECULATION,
        help="Threshold of typical acceptance (Medusa; usual: 0.09) at temperatures above 0: faster, not "
        "lossless; 0: lossless.",
    ),
]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        help="Text file with passages that the answer may copy; may be repeated.",
        rich_help_panel=SPECULATION,
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Continue after the end of sequence.", rich_help_panel=TEXT)
]
LogProbs = Annotated[bool, typer.Option("--logprobs", help="Show log-probabilities (with --json).")]
RequestId = Annotated[
    str | None, typer.Option(help="Id of the request, for `attach` and `cancel`; not given: random.")
]
NoTraining = Annotated[
    bool, typer.Option("--no-training", help="Speculators must not learn from this request.")
]
DeadlineSeconds = Annotated[
    float | None, typer.Option(help="Seconds after which the request ends with the tokens generated so far.")
]
MaxNewTokens = Annotated[
    int,
    typer.Option(help="Maximum number of tokens to generate.", rich_help_panel=TEXT),
]
Temperature = Annotated[
    float,
    typer.Option(help="Temperature; 0 is greedy.", rich_help_panel=SAMPLING),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Keep tokens from this share of the highest probability on; 0 keeps all.",
        rich_help_panel=SAMPLING,
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        help="Divide logits of tokens in prompt and answer; 1 changes nothing.", rich_help_panel=SAMPLING
    ),
]
TopK = Annotated[
    int,
    typer.Option(help="Keep the k most probable tokens; 0 keeps all.", rich_help_panel=SAMPLING),
]
TopP = Annotated[
    float,
    typer.Option(help="Keep the most probable tokens up to this sum.", rich_help_panel=SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of sampling; not given: random.", rich_help_panel=SAMPLING),
]
PresencePenalty = Annotated[
    float,
    typer.Option(help="Subtract this from the logits of tokens generated before.", rich_help_panel=SAMPLING),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(help="Subtract this for each time that a token was generated.", rich_help_panel=SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Stop before this string; may be repeated.", rich_help_panel=TEXT),
]
