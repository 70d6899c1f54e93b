"""Default format of a verifier's weights in memory: `--weights auto`."""

from pathlib import Path

from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.options import DTYPES, RunnerOptions, holds_blocks
from specinfer.model.weights.config import load_config
from specinfer.model.weights.source import KEPT_GGUF

AUTO = "auto"


def held_weights(directory: Path, options: RunnerOptions, shared: bool) -> str:
    """Return the meaning of `options.weights` for the model of a directory.

    "auto" is "native-a8" where the model came as a GGUF file and the compiled kernels will run it, else
    "converted": decided by what there is and never by a measurement, because all verifiers of a gateway must
    hold the same target. The blocks are a third of the bytes of bfloat16, so passes of every size take less
    time, and perplexity is that of the file's numbers in float32 (benchmarks/results/held-weights.md).

    Args:
        shared: several ranks share the model; they hold it as dtype says.
    """
    if options.weights != AUTO:
        return options.weights
    return "native-a8" if not shared and _keeps_blocks(directory, options) else "converted"


def _keeps_blocks(directory: Path, options: RunnerOptions) -> bool:
    from specinfer.model.native.model import check_supported

    if not (directory / KEPT_GGUF).is_file() or not holds_blocks(options.dtype, options.executor):
        return False
    try:
        check_supported(load_config(directory), DTYPES[options.dtype], options.device)
    except (UnavailableError, IncompatibleError, SettingError):
        return False  # loading says why
    return True
