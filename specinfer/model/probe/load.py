"""Loads a model for use, after it was found to compute what `transformers` does with it."""

import logging
from pathlib import Path

from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions, check_options
from specinfer.model.parallel.ranks import Ranks
from specinfer.model.probe.early import checked_early
from specinfer.model.probe.records import record_path
from specinfer.model.runner import ModelRunner

log = logging.getLogger(__name__)


def load_checked(directory: Path, options: RunnerOptions, ranks: Ranks | None = None) -> ModelRunner:
    """Load a Hugging Face model directory; see `load_model`.

    Raises:
        IncompatibleError: if it does not compute what `transformers` does with it.
    """
    check_options(options)
    if ranks is None:
        with checked_early(directory, options) as checked:
            loaded = load_model(directory, options, accounted=checked)
    else:
        loaded, checked = load_model(directory, options, ranks), ranks.place.rank > 0
    if not checked and not record_path(directory, loaded.executor.name).is_file():
        from specinfer.model.probe.check import require_right  # loads the models of transformers

        require_right(directory, loaded)
    if ranks is None or ranks.place.rank == 0:
        log.info("%s: weights %s", directory.name, loaded.weights)
    return ModelRunner(*loaded)
