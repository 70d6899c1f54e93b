"""Options of an `LLM`, with their defaults and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from specinfer.options.model_options import DEFAULT_RULE, HostOptions, Natural, Option, Positive, check_values
from specinfer.options.option_names import meant


@dataclass(frozen=True, kw_only=True)
class LLMOptions(HostOptions):
    """Options for loading and running the model of an `LLM`.

    Raises:
        SettingError: naming the option and its value.
    """

    max_num_seqs: Annotated[Positive, Option("Maximum requests in a batch; other requests wait.")] = 16
    max_model_len: Annotated[Natural, Option("Maximum context length in tokens; 0: the model's.")] = 0
    tensor_parallel_size: Annotated[
        Positive, Option("Number of local processes, including this one, that split every layer.")
    ] = 1
    pipeline_parallel_size: Annotated[
        Positive, Option("Number of pipeline stages, each of `tensor_parallel_size` processes.")
    ] = 1
    acceptance: Annotated[
        Any, Option("Rule for sampled prompts: traversal, multi_step, naive, MODULE:NAME or a function.")
    ] = DEFAULT_RULE
    tree_nodes: Annotated[Natural, Option("Maximum nodes of a tree; 0: the maximum tokens of a pass.")] = 0
    parse_special_tokens: Annotated[
        bool, Option("Parse names of special tokens in conversations as special tokens.")
    ] = False
    adaptive: Annotated[
        bool,
        Option("Choose speculators and nodes adaptively; False: all speculators, `tree_nodes` nodes."),
    ] = True

    def __post_init__(self) -> None:
        check_values(self)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "LLMOptions":
        """Read keyword arguments.

        Raises:
            TypeError: for an unknown option, with the most similar known one.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = meant(name, [*known, "draft", "speculators", "model"])
                hint = f", did you mean {close}?" if close else f": there are {', '.join(known)}"
                raise TypeError(f"LLM: unknown option {name!r}{hint}")
        return cls(**options)
