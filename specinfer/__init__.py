"""SpecInfer: lossless speculative inference with merged token trees (ASPLOS 2024)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specinfer.client import Answer as Answer
    from specinfer.client import AsyncClient as AsyncClient
    from specinfer.client import AsyncStream as AsyncStream
    from specinfer.client import BrokenStreamError as BrokenStreamError
    from specinfer.client import Client as Client
    from specinfer.client import ClientTls as ClientTls
    from specinfer.client import FinishReason as FinishReason
    from specinfer.client import InvalidInputError as InvalidInputError
    from specinfer.client import Patience as Patience
    from specinfer.client import Piece as Piece
    from specinfer.client import Prompt as Prompt
    from specinfer.client import RequestFailedError as RequestFailedError
    from specinfer.client import RequestOptions as RequestOptions
    from specinfer.client import Retry as Retry
    from specinfer.client import SpecInferError as SpecInferError
    from specinfer.client import Stream as Stream
    from specinfer.client import StreamLostError as StreamLostError
    from specinfer.client import UnavailableError as UnavailableError
    from specinfer.llm import LLM as LLM
    from specinfer.llm import AsyncLLM as AsyncLLM
    from specinfer.llm import CompletionOutput as CompletionOutput
    from specinfer.llm import RequestOutput as RequestOutput
    from specinfer.llm import SamplingParams as SamplingParams

__version__ = "0.1.0"
_CLIENT = """Answer AsyncClient AsyncStream BrokenStreamError Client ClientTls FinishReason InvalidInputError
Patience Piece Prompt RequestFailedError RequestOptions Retry SpecInferError Stream StreamLostError UnavailableError"""
_LLM = "LLM AsyncLLM CompletionOutput RequestOutput SamplingParams"
_MODULES = dict.fromkeys(_CLIENT.split(), "specinfer.client") | dict.fromkeys(_LLM.split(), "specinfer.llm")


def __getattr__(name: str) -> Any:
    """Import a public name on first use, to avoid unneeded libraries."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
