"""THE table of model options: name, type, default, bounds and help of each, said once.

Settings of services, options of the library and flags of commands derive from these classes. A new option is one
line here, and the place that uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Le

from specinfer.errors import SettingError
from specinfer.system.machine import check_device
from specinfer.system.threads import THREADS_HELP

AUTO = "auto"
CACHE_TOKENS = 32768
"""Default capacity of a KV cache, in context tokens."""
AUTO_DRAFT, NO_DRAFT = AUTO, "none"
DTYPES = ("float32", "bfloat16", "float16")
KV_TYPES = (AUTO, "bf16", "q8_0")
"""Storage of keys and values; q8_0: bytes, one scale per token and head."""
EXECUTORS = (AUTO, "native", "torch", "generic", "gpu")
OFFLOADS = ("none", "host", "disk")
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_RULE = "traversal"


@dataclass(frozen=True, slots=True)
class Option:
    """Help of an option, accepted words (none: any), group in the help of commands."""

    help: str
    group: str | None = None
    choices: tuple[str, ...] = ()


Model: TypeAlias = Annotated[str, Option("Model: registry name, hub id, directory or GGUF file.")]
Dtype: TypeAlias = Annotated[str, Option("Numeric type: float32, bfloat16 or float16.", choices=DTYPES)]
Weights: TypeAlias = Annotated[
    str,
    Option(
        "Format of weights: auto, the format of the model's file: the blocks of a GGUF file, --dtype for "
        "safetensors (drafts: q4_0 for a GGUF file with more than 5 bits a weight, q8_0 for safetensors; drafts "
        "also have file: as the file); f32, f16, bf16: that type, not quantised; --dtype must be the same; q8_0, "
        "q5_1, q5_0, q4_1, q4_0: blocks of these GGUF types on a CPU; matrices of other types are quantised while "
        "loading, which changes the output; int8, fp8: with the gpu executor."
    ),
]
DRAFT_HELP = (
    "A smaller model with the same tokenizer, used with n-grams: registry name, hub id, directory or GGUF file. "
    "auto: a matching model in the cache; none; or drafters by name, DRAFTER[+DRAFTER...][,FLAG=VALUE...]."
)
Draft: TypeAlias = Annotated[str, Option(DRAFT_HELP)]
Acceptance: TypeAlias = Annotated[
    str, Option("Rule for sampled requests: traversal, multi_step, naive, or your function, MODULE:NAME.")
]
DraftModel: TypeAlias = Annotated[
    str, Option("ssm: model, as in the verifier; recycling, retrieval: model of the tokenizer.")
]
Offload: TypeAlias = Annotated[
    str,
    Option(
        "Place of the decoder layers: none (the device), host (pinned memory, for a GPU) or disk, from which each "
        "pass reads them. Needs the native or the torch executor.",
        choices=OFFLOADS,
    ),
]
Natural: TypeAlias = Annotated[int, Ge(0)]
Positive: TypeAlias = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class ModelOptions:
    """Options of every loaded model, the target's and a draft's."""

    group: ClassVar[str] = "Model"

    dtype: Dtype = "bfloat16"
    device: Annotated[str, Option("Torch device, for example cpu, cuda or cuda:1.")] = "cpu"
    weights: Weights = AUTO
    kv_type: Annotated[
        str,
        Option(
            "Storage of keys and values: q8_0 (8 bits, half the memory of bf16), bf16, or auto (the model's numeric "
            "type). Types that differ from the model's need the native executor.",
            choices=KV_TYPES,
        ),
    ] = AUTO

    def for_drafts(self, model: str) -> dict[str, str]:
        """Return flags of drafters: the target `model` and its options, apart from weights."""
        names = [field.name for field in fields(ModelOptions) if field.name != "weights"]
        return {"model": model, **{name: as_text(getattr(self, name)) for name in names}}


@dataclass(frozen=True)
class PassOptions(ModelOptions):
    """Options of a target's passes."""

    executor: Annotated[
        str,
        Option(
            "What runs passes: native, compiled CPU kernels; torch, torch operations; generic, any causal model of "
            "transformers; gpu, fused kernels for a GPU; auto, gpu on a GPU, else native; torch or generic for models "
            "that it cannot run.",
            choices=EXECUTORS,
        ),
    ] = AUTO
    offload: Offload = "none"


@dataclass(frozen=True)
class CacheOptions(ModelOptions):
    """Options of a target's KV cache."""

    kv_tokens: Annotated[
        Annotated[int, Ge(16)] | Literal["auto"],
        Option(
            "Capacity of the KV cache in context tokens, for all requests; auto: three quarters of the free memory "
            "of GPU, machine or container after loading."
        ),
    ] = CACHE_TOKENS
    prefix_cache_directory: Annotated[
        str,
        Option(
            "Directory for cached prompt prefixes: those that the cache evicts, and all at the end of the process. "
            "Needs the native executor. Empty: prefixes are not stored."
        ),
    ] = ""
    prefix_cache_megabytes: Annotated[
        Positive,
        Option("Maximum megabytes in the prefix directory; the least recently used ones are deleted."),
    ] = 4096


@dataclass(frozen=True)
class ServedOptions(CacheOptions):
    """Options of a target that a service serves."""

    model: Model = DEFAULT_MODEL
    draft: Draft = NO_DRAFT
    acceptance: Acceptance = DEFAULT_RULE
    threads: Annotated[Natural, Option(f"CPU threads of the model; {THREADS_HELP}.")] = 0
    max_context_len: Annotated[
        Natural, Option("Longest context served, in tokens; 0 takes the model's own limit.")
    ] = 0


@dataclass(frozen=True)
class HostOptions(CacheOptions, PassOptions):
    """Options of a target and of the verification by it."""

    acceptance: Acceptance = DEFAULT_RULE


@dataclass(frozen=True)
class DraftOptions(ModelOptions):
    """Options of drafters; each drafter reads some of them."""

    group: ClassVar[str] = "Drafters"

    model: DraftModel = ""
    target: Annotated[str, Option("dflash: target of a checkpoint that names none, as in the verifier.")] = ""
    vocabulary: Annotated[
        Natural, Option("Maximum draft vocabulary of a whole model, of its most frequent tokens; 0: all.")
    ] = 32768
    window: Annotated[
        Natural, Option("ssm: last tokens that a whole model reads of a longer prompt; 0: all.")
    ] = 512
    kv_tokens: Annotated[int, Ge(16), Option("ssm: context tokens in the KV cache.")] = CACHE_TOKENS
    expansion: Annotated[
        str,
        Option(
            'ssm: expansion vector, the children per node of each level, such as "1,1,3,1"; empty: best-first trees.'
        ),
    ] = ""
    beam: Annotated[Positive, Option("ssm: maximum nodes that a best-first tree expands per level.")] = 4
    depth: Annotated[Positive, Option("ssm: maximum levels of a best-first tree; each costs a pass.")] = 7
    min_path_probability: Annotated[
        float, Ge(0), Le(1), Option("ssm: minimum probability of a path that a best-first tree extends.")
    ] = 0.05
    proposal: Annotated[
        str,
        Option(
            "ssm: children for sampled requests: point (tokens favoured by the target's seed), or sampled "
            "with_replacement or without_replacement. custom: other values than point allow the function to sample."
        ),
    ] = "point"
    suffix_learn: Annotated[bool, Option("suffix: also draft from finished requests.")] = False
    datastore: Annotated[str, Option("retrieval: files of text or JSONL, separated by colons.")] = ""
    function: Annotated[str, Option("custom: function that drafts, MODULE:NAME.")] = ""


def check_values(options: object) -> None:
    """Check options by the bounds and choices of their annotations, and the device.

    Raises:
        SettingError: naming the option and its value.
    """
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        if (option := option_of(hint)) is None:
            continue
        value = getattr(options, name)
        if option.choices and value not in option.choices:
            raise SettingError(name, value, f"must be one of {', '.join(option.choices)}")
        _check_number(name, value, dict(_alternatives(hint)))
    if (device := getattr(options, "device", "cpu")) != getattr(type(options), "device", ""):  # given
        check_device(device)


def as_text(value: object) -> str:
    """Return a value as the text of a flag."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def described(options: type) -> dict[str, Option]:
    """Return the descriptions of a class's options by name."""
    hints = get_type_hints(options, include_extras=True)
    return {name: option for name, hint in hints.items() if (option := option_of(hint))}


def option_of(hint: Any) -> Option | None:
    """Return the description in an annotation; None without one."""
    return next((data for data in getattr(hint, "__metadata__", ()) if isinstance(data, Option)), None)


def _check_number(name: str, value: object, kinds: dict[Any, list[Any]]) -> None:
    words = [word for kind in kinds for word in get_args(kind)]
    if int not in kinds or value in words:
        return
    if not isinstance(value, int):
        raise SettingError(name, value, " or ".join(["must be a whole number", *map(repr, words)]))
    for bound in kinds[int]:
        if isinstance(bound, Ge) and not value >= cast(int, bound.ge):
            raise SettingError(name, value, f"must be at least {bound.ge}")


def _alternatives(hint: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the types of a union, each with its metadata."""
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _alternatives(part)
    else:
        yield kind, metadata
