"""Token-tree speculation in one process, without gRPC and Redis: `LLM`, `AsyncLLM`."""

from specinfer.llm.background import AsyncLLM
from specinfer.llm.driver import TextDelta
from specinfer.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from specinfer.llm.params import SamplingParams
from specinfer.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "TextDelta",
]
