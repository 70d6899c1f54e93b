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
    SpeculationChoice, typer.Option(help="How to speculate.", rich_help_panel=SPECULATION)
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
        help="A text file from which the answer may copy; may be repeated.",
        rich_help_panel=SPECULATION,
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the end of sequence.", rich_help_panel=TEXT)
]
LogProbs = Annotated[bool, typer.Option("--logprobs", help="Return log-probabilities (with --json).")]
RequestId = Annotated[
    str | None, typer.Option(help="Id of the request, for `attach` and `cancel`; random if not given.")
]
NoTraining = Annotated[
    bool, typer.Option("--no-training", help="Speculators keep nothing of it to learn from.")
]
DeadlineSeconds = Annotated[
    float | None, typer.Option(help="End after so many seconds, with the tokens there are.")
]
MaxNewTokens = Annotated[
    int,
    typer.Option(help="Most tokens to generate.", rich_help_panel=TEXT),
]
Temperature = Annotated[
    float,
    typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Keep tokens with this part of the highest probability; 0 keeps all.", rich_help_panel=SAMPLING
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        help="Divides logits of tokens of prompt and answer; 1 changes nothing.", rich_help_panel=SAMPLING
    ),
]
TopK = Annotated[
    int,
    typer.Option(help="Keep the k most probable tokens; 0 keeps all.", rich_help_panel=SAMPLING),
]
TopP = Annotated[
    float,
    typer.Option(help="Keep the most probable tokens up to this mass.", rich_help_panel=SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed; drawn at random if not given.", rich_help_panel=SAMPLING),
]
PresencePenalty = Annotated[
    float,
    typer.Option(help="Off the logits of tokens generated before.", rich_help_panel=SAMPLING),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(help="The same, for each time they were.", rich_help_panel=SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Stop before this string; may be repeated.", rich_help_panel=TEXT),
]
