"""All formats of `--weights`: choices, help texts and checks come from here."""

from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat, Format, GpuFormat, NumberFormat
from specinfer.model.formats.blocks import BLOCK_FORMATS

AUTO = "auto"
_NUMBERS = (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"))
FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format(AUTO, "as the model's file has them: the blocks of a GGUF file, --dtype of safetensors"),
        *(
            NumberFormat(name, f"numbers in {dtype}, which --dtype must be", dtype)
            for name, dtype in _NUMBERS
        ),
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
"""Former names, and the formats that took their place."""


def find_format(name: str) -> Format:
    """Return the format of this name.

    Raises:
        SettingError: if there is none.
    """
    if name in FORMATS:
        return FORMATS[name]
    raise SettingError("weights", name, unknown_format(name))


def unknown_format(name: str) -> str:
    """Return what to say of a name that no format has."""
    if name in _RENAMED:
        return f"is called {_RENAMED[name]} now"
    return f"must be one of {', '.join(FORMATS)}"


def weights_help() -> str:
    """Return the help of a setting: all formats by kind."""
    numbers, blocks, gpu = (
        ", ".join(name for name, each in FORMATS.items() if isinstance(each, kind))
        for kind in (NumberFormat, BlockFormat, GpuFormat)
    )
    return (
        f"auto, {FORMATS[AUTO].help}; {numbers}: numbers of that type, which --dtype must be; {blocks}: "
        "blocks of these GGUF types on a CPU, quantised while loading where the file has others, which makes "
        f"another model; {gpu}: with the gpu executor"
    )


def format_for_rows(chosen: BlockFormat, columns: int) -> BlockFormat | None:
    """Return the format of rows with this many weights: the chosen one or its fallback; None: numbers."""
    if columns % chosen.block == 0:
        return chosen
    if not chosen.fallback:
        return None
    fallback = FORMATS[chosen.fallback]
    assert isinstance(fallback, BlockFormat)
    return format_for_rows(fallback, columns)
