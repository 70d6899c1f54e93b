"""EAGLE-3 as a trainable module: a decoder layer over hidden states.

    hidden_0 = fc [f_low, f_middle, f_high]               of token j, from the target
    out_k    = layer([norm(embedding(t_{j+1+k})), norm(hidden_k)]), with hidden_k as the residual
    Q(t_{j+2+k} | ...) = softmax(head(norm(out_k)))       over the draft vocabulary
    hidden_{k+1} = out_k                                  later steps read the layer's own outputs

The token is one ahead of the hidden state. Training unrolls several steps on the module's own outputs (EAGLE-3's
training-time test). In step k a row attends to the rows of step 0 up to its own position, and to its own rows of steps
1 to k, as a drafted chain does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from specinfer.drafters.heads_layers import output_head
from specinfer.model.torch.layer import LAYER_MODULES, OUTPUTS, Layer
from specinfer.model.torch.parts import Parts, soft_capped
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING
from specinfer.training.corpus import Continuation, Labels, Material, batches
from specinfer.training.distil import Success, distillation_loss, rough
from specinfer.training.feature_students import FeatureStudent, UnrolledBatch, UnrolledRows

_LAYER, _DOWN = "model.layers.0.", "mlp.down_proj.weight"
FROZEN = ("model.norm.weight", "lm_head.weight")
"""Tensors that keep the target's values in a training on few tokens."""


class EagleStudent(FeatureStudent):
    """Student that maps hidden states and tokens to logits of several steps."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        tensors: Mapping[str, torch.Tensor],
        frozen: Sequence[str] = (),
    ) -> None:
        """Create the student; `tensors` are trained except embeddings and those named in `frozen`.

        `config` is the target's. Its `embedding` [V, hidden] is frozen and not saved.
        """
        kept = {name: tensors[name] for name in frozen}
        trained = {name: tensors[name] for name in tensors if name not in {EMBEDDING, *kept}}
        super().__init__(trained, {EMBEDDING: embedding, **kept})
        vocabulary, inner = len(tensors["lm_head.weight"]), tensors[f"{_LAYER}{_DOWN}"].shape[1]
        self.config = replace(config.draft_layer(), vocab_size=vocabulary, intermediate_size=inner)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the checkpoint's tensors, with frozen ones."""
        return {name: value.detach() for name, value in self.all_tensors().items() if name != EMBEDDING}

    def forward(self, batch: UnrolledBatch) -> list[torch.Tensor]:
        """Return the logits [R, draft vocabulary] of each step."""
        tensors = self.all_tensors()
        batch_size, length = batch.token_ids.shape
        config = replace(self.config, max_positions=length + len(batch.steps))
        parts = Parts(config, tensors, torch.float32, str(self.device))
        layer = Layer(0, config, parts)
        hidden_norm, final_norm = parts.norm("hidden_norm"), parts.norm("model.norm")
        tables = [table.to(self.device) for table in rotary_tables(config)]
        attention = UnrolledAttention(batch_size, length, config)
        hidden = F.linear(batch.states.float().flatten(2).flatten(0, 1), tensors["fc.weight"])
        places, logits = torch.arange(length, device=self.device), []
        for step, rows_of_step in enumerate(batch.steps):
            # tokens rolled over the end are not read by any row of this step
            tokens = torch.roll(batch.token_ids, -step, 1).flatten()
            hidden, embedded = self._inputs(step, hidden, F.embedding(tokens, tensors[EMBEDDING]))
            normed = torch.cat([layer.input_norm(embedded), hidden_norm(hidden)], -1)
            cos, sin = (table[places + step].repeat(batch_size, 1)[:, None] for table in tables)
            hidden = layer.after_norm(hidden, normed, (cos, sin), attention)
            of_rows = F.linear(final_norm(hidden[rows_of_step.rows]), tensors["lm_head.weight"])
            logits.append(soft_capped(of_rows, config.logit_cap))
        return logits

    def _inputs(
        self, step: int, hidden: torch.Tensor, embedded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a step's inputs: hidden states and embeddings one token ahead."""
        return hidden, embedded


class UnrolledAttention:
    """Attention of rows [B * T]: causal to step 0, then to themselves."""

    def __init__(self, batch: int, length: int, config: ModelConfig) -> None:
        self._shape, self._config = (batch, length), config
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, _: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Cache keys and values; return the attention's output [B * T, H, D]."""
        q, config = self._heads(query), self._config
        group = config.heads // config.kv_heads
        self._keys.append(self._heads(key).repeat_interleave(group, 1))
        self._values.append(self._heads(value).repeat_interleave(group, 1))
        if len(self._keys) == 1 and not config.score_cap:
            mixed = F.scaled_dot_product_attention(
                q, self._keys[0], self._values[0], is_causal=True, scale=config.score_scale
            )
        else:
            mixed = self._mixed(q)
        return mixed.transpose(1, 2).flatten(0, 1)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*self._shape, *x.shape[1:]).transpose(1, 2)

    def _mixed(self, q: torch.Tensor) -> torch.Tensor:
        length, config = self._shape[1], self._config
        own_scores = [(q * key).sum(-1, keepdim=True) for key in self._keys[1:]]
        scores = torch.cat([q @ self._keys[0].transpose(-1, -2), *own_scores], -1).float()
        hidden = torch.ones(length, scores.shape[-1], dtype=torch.bool, device=q.device).triu(1)
        hidden[:, length:] = False
        scores = soft_capped(scores * config.score_scale, config.score_cap)
        shares = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(q.dtype)
        mixed: torch.Tensor = shares[..., :length] @ self._values[0]
        for step, value in enumerate(self._values[1:]):
            mixed = mixed + shares[..., length + step, None] * value
        return mixed


def starting_tensors(
    config: ModelConfig,
    target: Mapping[str, torch.Tensor],
    layers: int,
    vocabulary: torch.Tensor,
    units: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return initial tensors: the target's last layer, final norm and head.

    `fc` initially selects the last hidden state. The MLP has the target's inner `units`; None: all.
    """
    hidden, last = config.hidden_size, f"model.layers.{config.layers - 1}."
    ones = torch.ones(hidden)  # OLMo's layers do not norm their inputs
    fc = torch.zeros(hidden, layers * hidden)
    fc[:, -hidden:] = torch.eye(hidden)
    tensors = {
        "fc.weight": fc,
        "hidden_norm.weight": target.get(f"{last}input_layernorm.weight", ones),
        "model.norm.weight": target["model.norm.weight"],
        "lm_head.weight": output_head(config, target, vocabulary),
        **{f"{_LAYER}{name}_layernorm.weight": ones for name in ("input", "post_attention")},
    }
    outputs = ("post_self_attn_layernorm", "post_mlp_layernorm") if config.post_norm else OUTPUTS
    for module in LAYER_MODULES:
        for kind in ("weight", "bias"):
            if f"{last}{module}.{kind}" not in target:
                continue
            tensor = target[f"{last}{module}.{kind}"]
            if kind == "weight" and module.split(".")[-1] in ("q_proj", "k_proj", "v_proj"):
                tensor = torch.cat([torch.zeros_like(tensor), tensor], -1)
            if units is not None and module.startswith("mlp.") and f"{module}.{kind}" != "mlp.down_proj.bias":
                tensor = tensor[:, units] if f"{module}.{kind}" == _DOWN else tensor[units]
            scale = config.residual_scale if module in outputs else 1.0
            tensors[f"{_LAYER}{module}.{kind}"] = tensor if scale == 1 else tensor * scale
    return tensors


STEP_WEIGHT = 0.8
"""Ratio of a step's loss weight to the previous step's (EAGLE-3)."""


@dataclass(frozen=True, slots=True)
class UnrolledExamples:
    """Training data: continuations with hidden states and labels."""

    corpus: Sequence[Continuation]
    states: Sequence[NDArray[np.int16]]
    """Hidden states of each continuation [tokens - 1, layers, hidden]."""
    labels: Sequence[Labels]
    """Labels in the draft vocabulary."""
    steps: int

    def batch(self, indices: Sequence[int]) -> UnrolledBatch:
        """Return a batch of these continuations, padded on the right."""
        items = [self.corpus[i] for i in indices]
        width = max(item.tokens for item in items) - 2
        states = np.zeros((len(items), width, *self.states[indices[0]].shape[1:]), np.int16)
        token_ids = np.zeros((len(items), width), np.int64)
        for row, (index, item) in enumerate(zip(indices, items, strict=True)):
            known = item.tokens - 2
            states[row, :known] = self.states[index][:known]
            token_ids[row, :known] = (item.prompt + item.output)[1:-1]
        steps = tuple(self._rows(indices, width, step) for step in range(self.steps))
        return UnrolledBatch(
            torch.from_numpy(token_ids), torch.from_numpy(states).view(torch.bfloat16), steps
        )

    def _rows(self, indices: Sequence[int], width: int, step: int) -> UnrolledRows:
        """Return a step's labels: row j predicts token j + 2 + step."""
        rows, ids, probabilities, following = [], [], [], []
        for row, index in enumerate(indices):
            item = self.corpus[index]
            prompt, output = len(item.prompt), len(item.output)
            first = max(0, 2 + step - prompt)
            positions = np.arange(first, output)
            rows.append(positions + prompt - 2 - step + row * width)
            ids.append(self.labels[index].ids[positions])
            probabilities.append(self.labels[index].probabilities[positions])
            following.append(np.array(item.output)[positions])
        return UnrolledRows(
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.concatenate(ids).astype(np.int64)),
            torch.from_numpy(np.concatenate(probabilities).astype(np.float32)),
            torch.from_numpy(np.concatenate(following)),
        )


def unrolled_loss(student: FeatureStudent, batch: UnrolledBatch) -> torch.Tensor:
    """Return the mean of the steps' losses, weighted by `STEP_WEIGHT ** step`."""
    with rough(student.device):
        logits = student(batch)
    weights = [STEP_WEIGHT**step for step in range(len(logits))]
    losses = [
        weight * distillation_loss(rows.float(), targets)
        for weight, rows, targets in zip(weights, logits, batch.steps, strict=True)
    ]
    return torch.stack(losses).sum() / sum(weights)


@dataclass(frozen=True, slots=True)
class UnrolledSuccess:
    """Success of a student on the target's continuations, by step."""

    by_depth: list[Success]
    accepted_length: float
    """Tokens per verified chain of best guesses, including the target's token."""


class Unrolled(Material[UnrolledBatch], Protocol):
    """Data of which each batch has the labels of several steps."""

    @property
    def steps(self) -> int:
        """Number of steps."""


@torch.inference_mode()
def evaluate_unrolled(
    student: FeatureStudent, examples: Unrolled, vocabulary: torch.Tensor, max_rank: int = 5
) -> UnrolledSuccess:
    """Return the success of each step on the target's continuations.

    Students that read tokens (EAGLE, heads with a Markov head) get the correct tokens of the continuation.
    """
    hits: list[list[torch.Tensor]] = [[] for _ in range(examples.steps)]
    chains: list[NDArray[np.int64]] = []
    for indices, batch in batches(examples, 4096, np.random.default_rng(0)):
        batch = batch.to(student.device)
        with rough(student.device):
            logits = student(batch)
        for step, (rows, targets) in enumerate(zip(logits, batch.steps, strict=True)):
            best = vocabulary[rows.float().topk(max_rank, dim=-1).indices.cpu()]
            hits[step].append(best == targets.next_tokens[:, None].cpu())
        first = [step[-1][:, 0].numpy() for step in hits]
        chains.append(accepted_by_chains(first, [examples.corpus[i] for i in indices]))
    return UnrolledSuccess(
        [
            Success({k: float(torch.cat(step)[:, :k].any(-1).float().mean()) for k in range(1, max_rank + 1)})
            for step in hits
        ],
        1 + float(np.concatenate(chains).mean()),
    )


def accepted_by_chains(
    hits: Sequence[NDArray[np.bool_]], corpus: Sequence[Continuation]
) -> NDArray[np.int64]:
    """Count the leading correct tokens of each complete chain of best guesses.

    Args:
        hits: by step, whether each row's best guess is correct, in the order of `UnrolledExamples.batch`.
        corpus: continuations of the batch.
    """
    lengths, ends = [], [0] * len(hits)
    for item in corpus:
        prompt, output = len(item.prompt), len(item.output)
        starts = range(max(0, 2 - prompt), output - len(hits) + 1)
        chain = np.zeros((len(hits), len(starts)), np.int64)
        for step, right in enumerate(hits):
            first = max(0, 2 + step - prompt)
            hits_of_text = right[ends[step] : ends[step] + output - first]
            ends[step] += output - first
            if len(starts):
                chain[step] = hits_of_text[starts.start + step - first : starts.stop + step - first]
        lengths.append(chain.cumprod(0).sum(0))
    return np.concatenate(lengths)
