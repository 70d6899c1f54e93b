"""Division of a model among ranks. Pure.

    rank = stage * tensor + place within the stage          tensor = 2, stages = 2:
                                                            stage 0   layers 0 .. L/2     ranks 0 1
                                                            stage 1   layers L/2 .. L     ranks 2 3

Within a stage every rank has some of the attention heads, some of the inside of each MLP and some rows of the
vocabulary. Key-value heads are repeated where there are fewer of them than ranks.
"""

from dataclasses import dataclass, replace

from specinfer.errors import SettingError
from specinfer.model.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of ranks that share a layer, and of such groups that follow each other."""

    tensor: int = 1
    stages: int = 1

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.tensor * self.stages

    def __str__(self) -> str:
        return f"TP {self.tensor} x PP {self.stages}"


@dataclass(frozen=True, slots=True)
class Place:
    """Position of one rank."""

    layout: Layout
    rank: int

    @property
    def stage(self) -> int:
        """Stage of its layers."""
        return self.rank // self.layout.tensor

    @property
    def tensor(self) -> int:
        """Place within the stage."""
        return self.rank % self.layout.tensor

    @property
    def is_first(self) -> bool:
        """True if its stage has the embeddings."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """True if its stage has the head."""
        return self.stage == self.layout.stages - 1

    def layers(self, count: int) -> range:
        """Return the layers of its stage, out of `count`.

        The first stages have one more where they cannot be equal, since the last one has the head.
        """
        each, more = divmod(count, self.layout.stages)
        start = self.stage * each + min(self.stage, more)
        return range(start, start + each + (self.stage < more))

    def share(self, count: int) -> range:
        """Return its part of `count` things that are divided within a stage.

        Parts are equal, or one that several ranks have.
        """
        ranks = self.layout.tensor
        if count < ranks:
            first = self.tensor * count // ranks
            return range(first, first + 1)
        each = count // ranks
        return range(self.tensor * each, (self.tensor + 1) * each)

    def of(self, config: ModelConfig) -> ModelConfig:
        """Return the model as this rank runs it: its layers, its heads, its part of the MLP."""
        return replace(
            config,
            layers=len(self.layers(config.layers)),
            heads=len(self.share(config.heads)),
            kv_heads=len(self.share(config.kv_heads)),
            intermediate_size=len(self.share(config.intermediate_size)),
        )


def check_layout(config: ModelConfig, layout: Layout) -> None:
    """Check that a model can be divided so.

    Raises:
        SettingError: naming the setting and what cannot be divided.
        IncompatibleError: naming what ranks do not know of its layers.
    """
    config.like_llama("ranks that share a model")
    if not 1 <= layout.stages <= config.layers:
        raise SettingError(
            "pipeline_parallel", layout.stages, f"the model has {config.layers} layers, one a stage at least"
        )
    parts = {
        "attention heads": config.heads,
        "tokens in the vocabulary": config.vocab_size,
        "units inside of the MLP": config.intermediate_size,
    }
    for what, count in parts.items():
        if count % layout.tensor:
            raise SettingError(
                "tensor_parallel", layout.tensor, f"does not divide the model's {count} {what}"
            )
    if config.kv_heads % layout.tensor and layout.tensor % config.kv_heads:
        raise SettingError(
            "tensor_parallel",
            layout.tensor,
            f"must divide the model's {config.kv_heads} key-value heads, or be a multiple of them",
        )
