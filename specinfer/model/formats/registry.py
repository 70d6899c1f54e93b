"""Lists all values of `--weights`, with their help texts and checks."""

from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat, Format, GpuFormat, NumberFormat


def _block(type_name: str, size: int, use: str) -> BlockFormat:
    return BlockFormat(type_name.lower(), f"{size / 4:g} bits a weight; {use}", type_name, 32, size)


BLOCK_FORMATS = (
    _block("Q8_0", 34, "hardly differs from bfloat16"),
    _block("Q5_1", 24, "slightly less error than q5_0"),
    _block("Q5_0", 22, "half the error of q4_0"),
    _block("Q4_1", 20, "slightly less error than q4_0"),
    _block("Q4_0", 18, "the smallest"),
)
"""Formats to which the `gguf` package quantises. Files may have blocks of more types."""
AUTO = "auto"
_NUMBERS = (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"))
FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        Format(AUTO, "the format of the model's file: the blocks of a GGUF file, --dtype for safetensors"),
        *(NumberFormat(name, f"{dtype}, which --dtype must be, too", dtype) for name, dtype in _NUMBERS),
        *BLOCK_FORMATS,
        GpuFormat("int8", "8 bits a weight, a scale for each row", "q8_0"),
        GpuFormat("fp8", "8 bits a weight in floating point", "q8_0"),
    )
}
_RENAMED = {
    "converted": "bf16",
    "native": AUTO,
    "native-a8": AUTO,
    "int4": "q4_1",
    "w8a8": "q8_0",
}
"""Former name of a format -> present name."""
_OF_FILES = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_nl": "q4_0",
    "iq4_xs": "q4_0",
}
"""Type that only files have -> format of a similar size."""


def find_format(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    raise SettingError("weights", name, unknown_format(name))


def unknown_format(name: str) -> str:
    if name in _RENAMED:
        return f"is called {_RENAMED[name]} now"
    if name in _OF_FILES:
        return f"is read from GGUF files, not made: use auto with such a file, or {_OF_FILES[name]}"
    return f"must be one of {', '.join(FORMATS)}"


def weights_help() -> str:
    numbers, blocks, gpu = (
        ", ".join(name for name, format_ in FORMATS.items() if isinstance(format_, kind))
        for kind in (NumberFormat, BlockFormat, GpuFormat)
    )
    return (
        f"auto, {FORMATS[AUTO].help}; {numbers}: that type, not quantised; --dtype must be the same; {blocks}: "
        "blocks of these GGUF types on a CPU; matrices of other types are quantised while loading, which "
        f"changes the output; {gpu}: with the gpu executor"
    )
