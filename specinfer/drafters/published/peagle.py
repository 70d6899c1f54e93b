"""Read P-EAGLE drafts: EAGLE-3's layers predict all depths in one pass.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), as in EAGLE-3; the last row predicts t_{n+1}
    row n + i                     (mask_hidden, mask), temporary: sees all earlier rows, predicts t_{n+1+i}

Predictions do not depend on each other, so trees grow as with heads (`heads.py`). In a layer with a window, a row sees
only this number of context positions before it; a mask always sees row n - 1. Tensors:

    fc.weight                        [hidden, layers read * hidden]; before fc: input_norm, or fc_norm.n per layer
    layers.0.*                       as in EAGLE-3: its attention reads [2 * hidden], with hidden_norm
    layers.i.*, norm.weight          further decoder layers; the final norm
    lm_head.weight, d2t, t2d         as in EAGLE-3; absent: the target's head
    embed_tokens.weight              [V, hidden], absent: the target's embeddings
    mask_hidden                      [1, 1, layers read * hidden]: hidden states of the masks
"""

from pathlib import Path

from specinfer.drafters.published.config import (
    EAGLE_LAYERS,
    PublishedConfig,
    Shapes,
    layer_shapes,
    must_be,
    read_published,
)
from specinfer.drafters.published.tensors import HEAD, OWN_EMBEDDING, PublishedSource, read_draft
from specinfer.errors import naming

_FIELDS = {
    "draft_vocab_size": None,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "target_hidden_size": None,
    "embed_requires_grad": True,
    EAGLE_LAYERS: None,
    "mask_token_id": None,
}


class PEagleSource(PublishedSource):
    algorithm = "peagle"


def load_peagle(directory: Path, target_directory: Path) -> PEagleSource:
    """Read a checkpoint."""
    with naming(directory):
        config = read_published(directory, target_directory, PEagleSource.algorithm, _FIELDS)
        must_be(config.fields, {"norm_output": False})
        vocabulary, hidden = config.draft_vocabulary, config.target.hidden_size
        return read_draft(
            PEagleSource,
            config,
            _shapes(config),
            {OWN_EMBEDDING: (config.target.vocab_size, hidden), HEAD: (vocabulary, hidden)},
            layers=config.read_layers(EAGLE_LAYERS),
            ahead=config.tokens,
            mask=config.token("mask_token_id"),
            norm_before_residual=config.flag("norm_before_residual"),
        )


def _shapes(config: PublishedConfig) -> Shapes:
    hidden, read = config.target.hidden_size, len(config.read_layers(EAGLE_LAYERS))
    shapes: Shapes = {"fc.weight": (hidden, read * hidden), "mask_hidden": (1, 1, read * hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("layers.0.hidden_norm", "norm")}
    if config.flag("norm_before_fc"):
        must_be(config.fields, {"fc_norm": False})
        shapes["input_norm.weight"] = (read * hidden,)
    if config.flag("fc_norm"):
        shapes |= {f"fc_norm.{place}.weight": (hidden,) for place in range(read)}
    normed = config.layers.config.qk_norm
    for index in range(config.layers.config.layers):
        shapes |= layer_shapes(f"layers.{index}.", config.layers, normed, width=1 if index else 2)
    return shapes
