"""Use our speculator services as a proposer of vLLM 0.32 (docs/drafters.md).

vLLM loads the class by its path:

speculative_config={"method": "custom_class", "num_speculative_tokens": 4,
                    "model": "specinfer.integrations.vllm.SpeculatorProposer"}
"""

from specinfer.integrations.vllm.proposer import SpeculatorProposer

__all__ = ["SpeculatorProposer"]
