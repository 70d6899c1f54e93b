"""Importance of the parts of a model, measured on text of its own.

Layers: what the model says without one is compared with what it says whole, by the mean Kullback-Leibler
divergence KL(whole || without) over the output tokens of the text. Draws of the model that is left are
accepted with probability sum(min(P, Q)) >= 1 - sqrt(KL / 2) (Pinsker): a speculator wants it small. Greedy
removal with all measured anew is that of SLEB (arXiv 2402.09025).

Heads and neurons: the mean square of what one adds to its layer's output, E |W_g x_g|^2 for the inputs x_g of
the output projection that are its own. One pass measures all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from specinfer.model.torch.linear import Linear
from specinfer.model.torch.parts import Weights
from specinfer.model.torch.surgery import Surgery
from specinfer.model.torch.transformer import Transformer
from speculator_svc.training.corpus import Continuation
from speculator_svc.training.student import causal_attention

LENGTH = 160
"""Most tokens read of a continuation, its prompt included."""
_LEAST_OUTPUT = 32
"""Least tokens of it that are left for the output."""


class Continuations(NamedTuple):
    """Continuations by the model."""

    token_ids: torch.Tensor
    """[B, T], padded on the right."""
    rows: torch.Tensor
    """[R] flat positions at which the model predicts an output token."""

    @classmethod
    def of(cls, corpus: Sequence[Continuation], tokens: int) -> "Continuations":
        """Return continuations spread over the corpus, about `tokens` tokens; empty if prompts are long."""
        fitting = [item for item in corpus if len(item.prompt) <= LENGTH - _LEAST_OUTPUT]
        chosen = fitting[:: max(1, len(fitting) * LENGTH // tokens)][: max(1, tokens // LENGTH)]
        read = [(item.prompt + item.output)[: LENGTH + 1][:-1] for item in chosen]  # nothing follows the last
        width = max(map(len, read), default=0)
        padded = [[*line, *[0] * (width - len(line))] for line in read]
        rows = [
            number * width + position
            for number, (item, line) in enumerate(zip(chosen, read, strict=True))
            for position in range(len(item.prompt) - 1, len(line))
        ]
        return cls(torch.tensor(padded), torch.tensor(rows))


class PredictionComparison(NamedTuple):
    """Comparison of a model's predictions with those of the whole model."""

    divergence: float
    """Mean KL(whole || this) in nats."""
    agreement: float
    """Share of the tokens for which both have the same most probable one."""


class Whole:
    """Predictions of the whole model at the rows of a text."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._p, self._first = logits.softmax(-1), logits.argmax(-1)
        self._entropy = -(self._p * logits.log_softmax(-1)).sum(-1).mean()

    def compare(self, logits: torch.Tensor) -> PredictionComparison:
        """Compare with another model's predictions there: logits [R, V]."""
        cross_entropy = logits.logsumexp(-1).mean() - self._p.flatten() @ logits.flatten() / len(logits)
        same = (logits.argmax(-1) == self._first).float().mean()
        return PredictionComparison(float(cross_entropy - self._entropy), float(same))


class AblatedModel:
    """A model that reads a text, all of its layers or some."""

    def __init__(self, model: Transformer, text: Continuations) -> None:
        self._model, self._rows = model, text.rows.to(model.device)
        batch, length = text.token_ids.shape
        positions = torch.arange(length, device=model.device).repeat(batch)
        self.start = model.embed(text.token_ids.flatten().to(model.device), positions)
        """[T, hidden] before the first layer."""
        self._angles, self._attend = model.angles(positions), causal_attention(batch, length)

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return len(self._model.layers)

    def through(self, x: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        """Return the hidden states [T, hidden] behind these layers, given those before them."""
        for layer in layers:
            x = self._model.layers[layer](x, self._angles, self._attend)
        return x

    def logits(self, x: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        """Return the logits [R, V] behind the last layers, given the hidden states before them."""
        return self._model.logits(self.through(x, layers)[self._rows])


class Removal(NamedTuple):
    """A layer that was taken out."""

    layer: int
    verdict: PredictionComparison
    """Comparison of the remaining layers."""


def remove_layers(
    reader: AblatedModel, whole: Whole, keep: int, tick: Callable[[], None]
) -> Iterator[Removal]:
    """Yield removed layers until `keep` are left: each time the one with the least divergence.

    All that are left are measured anew each time, since layers stand in for each other. `tick` is called
    after each of the `measurements(layers, keep)`.
    """
    kept = list(range(reader.layers))
    while len(kept) > keep:
        removal = _least(reader, whole, kept, tick)
        kept.remove(removal.layer)
        yield removal


def measurements(layers: int, keep: int) -> int:
    """Return the number of comparisons in `remove_layers`."""
    return sum(range(keep + 1, layers + 1))


@torch.inference_mode()
def _least(reader: AblatedModel, whole: Whole, kept: Sequence[int], tick: Callable[[], None]) -> Removal:
    """Return the removal of the least important of these layers."""
    found, x = [], reader.start
    for place, layer in enumerate(kept):
        found.append(Removal(layer, whole.compare(reader.logits(x, kept[place + 1 :]))))
        x = reader.through(x, [layer])
        tick()
    return min(found, key=lambda removal: removal.verdict.divergence)


class PartEffects(NamedTuple):
    """Effects of the parts of one layer."""

    kv_heads: torch.Tensor
    """[KV heads] mean square of each head's part in the layer's output, with its query heads."""
    neurons: torch.Tensor
    """[neurons] mean square of each neuron's part in the output of the MLP."""


@torch.inference_mode()
def part_effects(
    weights: Weights, text: Continuations, make: Callable[[Surgery], Transformer]
) -> list[PartEffects]:
    """Return the effects in every layer of the model of these weights, which `make` makes."""
    watch = _Watch()
    model = make(watch)
    reader = AblatedModel(model, text)
    reader.through(reader.start, range(reader.layers))
    rows, effects = text.rows.to(model.device), []
    for layer in range(reader.layers):
        attention, mlp = (linear.inputs[rows] for linear in watch.outputs[2 * layer : 2 * layer + 2])
        names = (f"model.layers.{layer}.{name}.weight" for name in ("self_attn.o_proj", "mlp.down_proj"))
        out, down = (weights[name].to(model.device) for name in names)
        of_heads = group_effects(attention, out, out.shape[1] // model.config.kv_heads)
        effects.append(PartEffects(of_heads, group_effects(mlp, down, 1)))
    return effects


def group_effects(inputs: torch.Tensor, weight: torch.Tensor, width: int) -> torch.Tensor:
    """Return [in / width], the mean of |W_g x_g|^2 per `width` inputs, over x [R, in] of W [out, in].

    |W_g x_g|^2 = sum over i and j of (x_i x_j) (W_i . W_j), so means of products of inputs are enough.
    """
    x = inputs.float().view(len(inputs), -1, width)
    w = weight.float().view(len(weight), -1, width)
    products = torch.einsum("rgi,rgj->gij", x, x) / len(x)
    return (products * torch.einsum("ogi,ogj->gij", w, w)).sum((1, 2))


class _Watched:
    """A linear layer that remembers its inputs."""

    def __init__(self, inner: Linear) -> None:
        self._inner = inner
        self.inputs = torch.empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs = x
        return self._inner(x)


class _Watch(Surgery):
    """Keeps the inputs of the output projections: of each layer that of attention, then that of the MLP."""

    def __init__(self) -> None:
        self.outputs: list[_Watched] = []

    def embedding(self, lookup: Linear) -> Linear:
        """Return the lookup unchanged."""
        return lookup

    def output(self, linear: Linear) -> Linear:
        self.outputs.append(_Watched(linear))
        return self.outputs[-1]

    def head(self, linear: Linear) -> Linear:
        """Return the head unchanged."""
        return linear
