"""Starts a verifier's ranks on this machine, with torchrun's API.

Imported only if `--tensor-parallel` or `--pipeline-parallel` is above 1.
"""

import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from specinfer.hub import resolve_model
from specinfer.model.parallel.layout import check_layout
from specinfer.model.parallel.ranks import LOST_GROUP
from specinfer.model.weights.config_files import load_config
from specinfer.system.threads import usable_processors
from verifier_svc.ranks import layout_of
from verifier_svc.settings import VerifierSettings

log = logging.getLogger(__name__)


def launch(settings: VerifierSettings, program: str) -> None:
    """Start all ranks on this machine with this process's flags; wait."""
    layout = layout_of(settings)
    check_layout(load_config(resolve_model(settings.model)), layout)  # report an error once, not per rank
    threads = max(1, usable_processors() // layout.ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # `_reason` gives a one-line summary
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=layout.ranks,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        shutdown_timeout=round(2 * settings.drain_seconds) + 1,
    )
    log.info("starting %d ranks: %s", layout.ranks, layout)
    try:
        elastic_launch(config, sys.executable)("-m", program, *sys.argv[1:])
    except SignalException:
        log.info("all ranks have ended")
    except ChildFailedError as error:
        log.critical("%s", _reason(error.failures))
        sys.exit(1)


def _reason(failures: Mapping[int, ProcessFailure]) -> str:
    """Describe the rank that ended first.

    Ranks that ended because another rank had have the exit code `LOST_GROUP`.
    """
    first = {rank: failed for rank, failed in failures.items() if failed.exitcode != LOST_GROUP}
    rank, failure = next(iter((first or failures).items()))
    how = (
        f"was ended by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode < 0
        else f"ended with code {failure.exitcode}"
    )
    return f"rank {rank} (process {failure.pid}) {how}; the verifier ends with all of its ranks"
