"""Describe a system that is ready, from a gateway's status."""

from specinfer.v1 import generation_pb2


def ready_line(url: str, status: generation_pb2.StatusReply, threads: int) -> str:
    """Return the last line of a start.

    Args:
        url: base URL of the HTTP service; empty without one.
        status: state of the system.
        threads: CPU threads of the model.
    """
    doors = f"chat page {url}/, API {url}/v1; " if url else ""
    return f"{doors}{target_words(status)}, {draft_words(status)}, context {status.max_context_len}, " + (
        f"{threads} thread{'s' if threads != 1 else ''}"
    )


def target_words(status: generation_pb2.StatusReply) -> str:
    """Return the target model and how it runs."""
    return (
        f"{status.model}, {status.executor} executor, {status.dtype}, {status.device}, "
        f"weights {status.weights}"
    )


def draft_words(status: generation_pb2.StatusReply) -> str:
    """Return the speculators and their models, or that there are none."""
    names = [name_of(speculator) for speculator in status.speculators]
    return f"draft {' + '.join(names)}" if names else "no draft"


def name_of(speculator: generation_pb2.SpeculatorState) -> str:
    """Return a speculator's name, with its model if it has one."""
    model = model_of(speculator)
    return f"{speculator.name} ({model})" if model else speculator.name


def model_of(speculator: generation_pb2.SpeculatorState) -> str:
    """Return the model of a speculator without its directory; empty without a model."""
    model = speculator.model
    return model.rstrip("/").rpartition("/")[2] if model.startswith("/") else model
