"""Write random checkpoints of the `speculators` library, with the library's own outputs for a context.

    python reference.py TARGET OUT

writes a checkpoint OUT/NAME and a file OUT/NAME.expected for every case. The file has the context, hidden states of
the target [positions, layers ascending, hidden], the greedy chain after the context, and its logits.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators import (
    DFlashDraftModel,
    DFlashSpeculatorConfig,
    DSparkDraftModel,
    DSparkSpeculatorConfig,
    Eagle3DraftModel,
    Eagle3SpeculatorConfig,
    MTPDraftModel,
    MTPSpeculatorConfig,
    PEagleDraftModel,
    PEagleSpeculatorConfig,
)
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.peagle import core as peagle_core
from speculators.proposals import GreedyTokenProposalConfig
from transformers import AutoConfig, LlamaConfig, Qwen3Config

CONTEXT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33, 12]
"""Token ids of the context. The last is the root, which has no hidden states yet."""
ROWS, BLOCK, MASK = len(CONTEXT) - 1, 5, 4
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
Said = tuple[list[torch.Tensor], list[int]]
"""Logits of each depth along the greedy chain, and the chain."""


def layers_of(kind: type, target: Any, **fields: Any) -> Any:
    """Return a configuration of two layers with the target's embeddings."""
    shape = {
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    config = kind(**(shape | fields))
    config._attn_implementation = "eager"
    return config


def made(model_class: Any, config: Any, ids: torch.Tensor) -> Any:
    """Return a random model in which no tensor is so small or so regular that a missing term would go unnoticed."""
    torch.manual_seed(0)
    model = model_class(config)
    if model.use_draft_vocab:
        drafted = torch.zeros(model.verifier_vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        model.load_vocab_mappings(drafted, ids - torch.arange(len(ids)))
    for name, parameter in model.named_parameters():
        if not parameter.isnan().any():
            mean = 1.0 if "norm" in name else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.5)
    model.load_verifier_weights()
    return model.eval()


def ids_of(model: Any) -> list[int]:
    """Return the target's token id of each draft token."""
    if model.use_draft_vocab:
        return (model.d2t + torch.arange(len(model.d2t))).tolist()
    return list(range(model.verifier_vocab_size))


def block(model: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states and logits, [block, ...], of the block that starts at the root."""
    padded = ROWS + 2 * BLOCK  # the library's training pass takes no anchor near the end
    hidden = torch.zeros(1, padded, states.shape[1])
    hidden[0, :ROWS] = states
    tokens = torch.zeros(1, padded, dtype=torch.long)
    tokens[0, : len(CONTEXT)] = torch.tensor(CONTEXT)
    anchor = torch.zeros(1, padded)
    anchor[0, ROWS] = 1
    last = torch.zeros(1, padded, model.hidden_size)
    documents = torch.zeros(1, padded, dtype=torch.long)
    block_states, logits, *_ = model._backbone_forward(hidden, tokens, anchor, last, documents, max_anchors=1)
    return block_states[0], logits[0]


def of_dflash(model: Any, states: torch.Tensor) -> Said:
    _, logits = block(model, states)
    rows = list(logits[0 if model.config.sample_from_anchor else 1 :])
    ids = ids_of(model)
    return rows, [ids[int(row.argmax())] for row in rows]


def of_dspark(model: Any, states: torch.Tensor) -> Said:
    hidden, logits = block(model, states)
    ids, first = ids_of(model), 0 if model.config.sample_from_anchor else 1
    before = [CONTEXT[-1]] * BLOCK
    rows, chain = [], []
    for place in range(first, BLOCK):
        bias = model.markov_head.block_bias(
            prev_token_ids=torch.tensor([before]), hidden_states=hidden[None]
        )[0]
        rows.append(logits[place] + bias[place])
        chain.append(ids[int(rows[-1].argmax())])
        if place + 1 < BLOCK:
            before[place + 1] = chain[-1]
    return rows, chain


def of_eagle(model: Any, states: torch.Tensor) -> Said:
    """Run the library's layer over the context's rows, then over its own outputs."""
    hidden, tokens = model.fc(states), CONTEXT[1:]
    rows, chain, ids = [], [], ids_of(model)
    for _ in range(BLOCK):
        places = torch.arange(len(hidden))[None]
        both = torch.cat([model.embed_tokens(torch.tensor([tokens])), hidden[None]], -1)
        outs = model.layers[0](
            both,
            attention_mask=torch.full((len(hidden), len(hidden)), -torch.inf).triu(1)[None, None],
            position_ids=places,
            position_embeddings=model.rotary_emb(both, places),
        )[0]
        rows.append(model.lm_head(model.norm(outs[-1])))
        chain.append(ids[int(rows[-1].argmax())])
        hidden, tokens = torch.cat([hidden, outs[-1:]]), [*tokens, chain[-1]]
    return rows, chain


def of_peagle(model: Any, states: torch.Tensor) -> Said:
    """Run the library's training pass with one rollout after the last row; its sampling is replaced."""
    rows, padded = [], ROWS + BLOCK
    anchors = torch.tensor([*range(ROWS), *[ROWS - 1] * (BLOCK - 1)])
    depths = torch.tensor([0] * ROWS + list(range(1, BLOCK)))
    peagle_core.generate_cod_sample_indices = lambda **_: (anchors, depths)
    peagle_core.compute_metrics = lambda *, logits, **_: rows.append(logits[0]) or (None, None)
    hidden = torch.zeros(1, padded, states.shape[1])
    hidden[0, :ROWS] = states
    tokens = torch.zeros(1, padded, dtype=torch.long)
    tokens[0, :ROWS] = torch.tensor(CONTEXT[1:])
    documents = torch.zeros(1, padded, dtype=torch.long)
    last = torch.zeros(1, padded, model.hidden_size)
    model(hidden, tokens, documents, verifier_last_hidden_states=last)
    ids, guesses = ids_of(model), list(rows[0][ROWS - 1 :])
    return guesses, [ids[int(row.argmax())] for row in guesses]


def mtp_outs(model: Any, hidden: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Return outputs [rows, hidden] of the library's layer, given hidden states and the next token of each row."""
    places = torch.arange(len(hidden))[None]
    outs: torch.Tensor = model.mtp_layers[0](
        hidden[None],
        model.embed_tokens(torch.tensor([tokens])),
        attention_mask=torch.full((len(hidden), len(hidden)), -torch.inf).triu(1)[None, None],
        position_ids=places,
        position_embeddings=model.rotary_emb(hidden[None], places),
    )
    return outs[0]


def of_mtp(model: Any, states: torch.Tensor) -> Said:
    """Compute depth 1 with the library's pass, and deeper ones with its layer over all rows, like servers do."""
    steps = model.config.num_speculative_steps
    tokens = torch.tensor([CONTEXT + [0] * (steps + 1)])
    padded = torch.cat([states, torch.zeros(steps + 2, states.shape[1])])[None]
    logits, *_ = model(tokens, padded)
    rows, chain = [logits[0][0, ROWS - 1]], [int(logits[0][0, ROWS - 1].argmax())]
    hidden, context = states, CONTEXT[1:]
    for _ in range(1, BLOCK):
        hidden = torch.cat([hidden, mtp_outs(model, hidden, context)[-1:]])
        context = [*context, chain[-1]]
        rows.append(model.lm_head(mtp_outs(model, hidden, context)[-1]))
        chain.append(int(rows[-1].argmax()))
    return rows, chain


def cases(target: Path) -> dict[str, tuple[Any, Any, Any]]:
    """Return (function that computes the expected outputs, model class, configuration) by case name."""
    config = AutoConfig.from_pretrained(target)

    def described(algorithm: str, tokens: int) -> SpeculatorsConfig:
        return SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(target)),
        )

    def common(algorithm: str, tokens: int, layers: Any, **fields: Any) -> dict[str, Any]:
        options = {} if algorithm == "mtp" else {"draft_vocab_size": 40, "mask_token_id": MASK}
        return {
            "transformer_layer_config": layers,
            "speculators_config": described(algorithm, tokens),
            **(options | fields),
        }

    whole = {"draft_vocab_size": config.vocab_size}
    windowed = layers_of(Qwen3Config, config, use_sliding_window=True, **WINDOWED)
    biased = layers_of(Qwen3Config, config, attention_bias=True, use_sliding_window=True, **WINDOWED)
    llama = layers_of(LlamaConfig, config, **WINDOWED | {"sliding_window": 3})
    two = {"aux_hidden_state_layer_ids": [3, 1]}
    three = {"eagle_aux_hidden_state_layer_ids": [3, 0, 2]}
    methods: dict[str, Any] = {
        "eagle": (
            of_eagle,
            Eagle3DraftModel,
            Eagle3SpeculatorConfig(
                transformer_layer_config=layers_of(LlamaConfig, config, num_hidden_layers=1),
                speculators_config=described("eagle3", 3),
                draft_vocab_size=40,
                norm_before_residual=True,
                eagle_aux_hidden_state_layer_ids=[0, 2, 3],
            ),
        ),
        "dflash": (
            of_dflash,
            DFlashDraftModel,
            DFlashSpeculatorConfig(**common("dflash", 4, windowed, block_size=BLOCK, **two)),
        ),
        "dflash-anchor": (
            of_dflash,
            DFlashDraftModel,
            DFlashSpeculatorConfig(
                **common("dflash", 5, biased, block_size=BLOCK, **two, **whole),
                sample_from_anchor=True,
                sliding_window_non_causal=True,
            ),
        ),
        "peagle": (
            of_peagle,
            PEagleDraftModel,
            PEagleSpeculatorConfig(**common("peagle", 5, llama, fc_norm=True, **three)),
        ),
        "peagle-normed": (
            of_peagle,
            PEagleDraftModel,
            PEagleSpeculatorConfig(
                **common("peagle", 5, windowed, **three, **whole),
                norm_before_fc=True,
                norm_before_residual=True,
            ),
        ),
        "mtp": (
            of_mtp,
            MTPDraftModel,
            MTPSpeculatorConfig(**common("mtp", 3, layers_of(Qwen3Config, config))),
        ),
    }
    for head in ("vanilla", "gated", "rnn"):
        for anchor in (True, False):
            settings = common(
                "dspark", 4 + anchor, windowed, block_size=BLOCK, **two, **({} if anchor else whole)
            )
            spark = DSparkSpeculatorConfig(
                **settings, markov_rank=6, markov_head_type=head, sample_from_anchor=anchor
            )
            methods[f"dspark-{head}{'' if anchor else '-masks'}"] = (of_dspark, DSparkDraftModel, spark)
    return methods


@torch.inference_mode()
def main(target: Path, out: Path) -> None:
    """Write all cases."""
    ids = torch.arange(3, 83, 2)
    for name, (said, model_class, config) in cases(target).items():
        model = made(model_class, config, ids)
        model.save_pretrained(out / name)
        layers = list(model.target_layer_ids)
        states = torch.randn(ROWS, len(layers), model.hidden_size).to(torch.bfloat16)
        rows, chain = said(model, states.float().flatten(1))
        ascending = [layers.index(layer) for layer in sorted(layers)]
        save_file(
            {
                "context": torch.tensor(CONTEXT),
                "states": states[:, ascending].contiguous(),
                "logits": torch.stack(rows),
                "chain": torch.tensor(chain),
            },
            out / f"{name}.expected",
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
