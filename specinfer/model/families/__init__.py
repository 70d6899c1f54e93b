"""Lists the families that our decoder supports: one file each."""

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import Family, GgufLayout
from specinfer.model.families.gemma import GEMMA, GEMMA_2_3
from specinfer.model.families.gpt_neox import GPT_NEOX
from specinfer.model.families.granite import GRANITE
from specinfer.model.families.hybrid.falcon import FALCON_H1
from specinfer.model.families.hybrid.granite import GRANITE_HYBRID
from specinfer.model.families.hybrid.lfm2 import LFM2
from specinfer.model.families.hybrid.mamba import MAMBA_2
from specinfer.model.families.hybrid.qwen import QWEN_3_5, QWEN_3_NEXT
from specinfer.model.families.llama import LLAMA
from specinfer.model.families.mixtures import GPT_OSS, GRANITE_MOE, MIXTRAL, OLMOE, QWEN_MOE
from specinfer.model.families.olmo import OLMO
from specinfer.model.families.opt import OPT
from specinfer.model.families.phi import PHI
from specinfer.model.families.qwen import QWEN
from specinfer.model.families.smollm3 import SMOLLM3

_MIXTURES = (QWEN_MOE, MIXTRAL, OLMOE, GRANITE_MOE, GPT_OSS)
_HYBRIDS = (QWEN_3_5, QWEN_3_NEXT, GRANITE_HYBRID, LFM2, FALCON_H1, MAMBA_2)
_DENSE = (LLAMA, QWEN, GEMMA, GEMMA_2_3, PHI, SMOLLM3, GRANITE, OLMO, OPT, GPT_NEOX)
_ALL = (*_DENSE, *_HYBRIDS, *_MIXTURES)
FAMILIES: dict[str, Family] = {model_type: family for family in _ALL for model_type in family.model_types}
GGUF: dict[str, GgufLayout] = {
    architecture: layout for family in FAMILIES.values() for architecture, layout in family.gguf.items()
}


def family_of(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise IncompatibleError(f"model_type = {model_type!r}: supported are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def gguf_layout(architecture: str) -> GgufLayout:
    if architecture not in GGUF:
        raise IncompatibleError(f"GGUF architecture = {architecture!r}: supported are {', '.join(GGUF)}")
    return GGUF[architecture]
