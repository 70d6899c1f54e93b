"""EAGLE-3 drafts: one decoder layer that reads the target's hidden states, which the verifier returns."""

from dataclasses import replace

from specinfer.drafters import DrafterOptions
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from specinfer.drafters.ssm import runner_options, shape_of
from specinfer.model.drafting.eagle import EagleWeights
from specinfer.model.eagle import EagleRunner
from specinfer.model.weights.eagle_checkpoint import EagleSource
from specinfer.model.weights.families import EMBEDDING, open_weights


class EagleDrafter(FeatureRowsDrafter):
    """Drafts with a trained EAGLE-3 layer."""

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "EagleDrafter":
        """Load a checkpoint in the `speculators` format.

        Raises:
            SettingError: naming the bad option.
        """
        shape = shape_of(options)
        trained = load_trained(options, EagleSource)
        eagle, config, embedding = trained.draft, trained.config, trained.draft.embedding
        if embedding is None:
            embedding = open_weights(trained.target, config)[EMBEDDING]
        own = eagle.shape or config
        shape_of_layer = replace(own, layers=1, vocab_size=len(eagle.token_ids), tied_embeddings=False)
        weights = EagleWeights(shape_of_layer, eagle.tensors, embedding, eagle.norm_before_residual)
        runner = EagleRunner.build(weights, runner_options(options))
        description = replace(
            trained.description,
            feature_layers=eagle.layers,
            feature_size=config.hidden_size,
            max_context_len=min(config.max_positions, own.max_positions),
        )
        return cls(runner, description, shape, eagle.token_ids)
