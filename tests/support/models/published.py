"""Random checkpoints in the layout of the `speculators` library, with a simple reference computation.

The reference computation has no cache, batch or tree: it runs a draft over a context and one path after it, with full
masks.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tests.support.models import saved_model
from tests.support.tiny_models import tiny_transformers

METHODS = ("dflash", "dspark", "peagle", "mtp")
HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 32, 4, 2, 8, 48, 97
BLOCK, MASK, WINDOW, RANK = 5, 4, 6, 6
DRAFTED = list(range(3, 83, 2))
"""Target tokens of the draft vocabulary."""
LAYERS = {
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
FULL = {"layer_types": ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False}
_FIELDS: dict[str, dict[str, Any]] = {
    "dflash": {"aux_hidden_state_layer_ids": [3, 1], "block_size": BLOCK, "sample_from_anchor": False},
    "dspark": {
        "aux_hidden_state_layer_ids": [3, 1],
        "block_size": BLOCK,
        "sample_from_anchor": True,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    "peagle": {"eagle_aux_hidden_state_layer_ids": [3, 0, 2], "fc_norm": True, "norm_output": False},
    "mtp": {"num_nextn_predict_layers": 1},
}


def save_target(directory: Path, model: Any = None) -> Path:
    """Save a target with a tokenizer whose tokens are letters."""
    return saved_model.save_target(directory, model or tiny_transformers("qwen3"))


def save_published(
    directory: Path, method: str, target: Path, drafted: list[int] | None = None, **fields: Any
) -> Path:
    """Save a random checkpoint of a method; `fields` replace fields of its `config.json`."""
    drafted = drafted or DRAFTED
    values = _FIELDS[method] | fields
    layers = LAYERS | (FULL if method == "mtp" else {}) | values.pop("layers", {})
    config: dict[str, Any] = {
        "speculators_model_type": method,
        "speculators_version": "0.9.0",
        "architectures": [method],
        "tie_word_embeddings": False,
        "transformer_layer_config": layers,
        "speculators_config": {
            "algorithm": method,
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": BLOCK,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": str(target), "architectures": ["Qwen3ForCausalLM"]},
        },
    }
    if method != "mtp":
        config |= {"draft_vocab_size": len(drafted), "mask_token_id": MASK}
    config |= values
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(method, config, drafted), directory / "model.safetensors")
    return directory


def random_tensors(method: str, config: dict[str, Any], drafted: list[int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int) -> None:
        mean = 1.0 if "norm" in name else 0.0
        tensors[name] = mean + 0.4 * torch.randn(shape, generator=generator)

    for index in range(1 if method == "mtp" else 2):
        prefix = f"mtp_layers.{index}." if method == "mtp" else f"layers.{index}."
        width = 2 * HIDDEN if method == "peagle" and index == 0 else HIDDEN
        for name, rows in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
            add(f"{prefix}self_attn.{name}.weight", rows * HEAD, width)
        add(f"{prefix}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD)
        for name in ("q_norm", "k_norm"):
            add(f"{prefix}self_attn.{name}.weight", HEAD)
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{prefix}{name}.weight", HIDDEN)
        for name in ("gate_proj", "up_proj"):
            add(f"{prefix}mlp.{name}.weight", INNER, HIDDEN)
        add(f"{prefix}mlp.down_proj.weight", HIDDEN, INNER)
    if method == "mtp":
        add("mtp_layers.0.input_proj.weight", HIDDEN, 2 * HIDDEN)
        for name in ("token", "hidden", "final"):
            add(f"mtp_layers.0.{name}_layernorm.weight", HIDDEN)
        return tensors
    read = len(config.get("aux_hidden_state_layer_ids") or config["eagle_aux_hidden_state_layer_ids"])
    add("fc.weight", HIDDEN, read * HIDDEN)
    add("norm.weight", HIDDEN)
    add("lm_head.weight", len(drafted), HIDDEN)
    add("layers.0.hidden_norm.weight" if method == "peagle" else "hidden_norm.weight", HIDDEN)
    if method == "peagle":
        add("mask_hidden", 1, 1, read * HIDDEN)
        add("embed_tokens.weight", VOCABULARY, HIDDEN)
        for place in range(read):
            add(f"fc_norm.{place}.weight", HIDDEN)
    if method == "dspark":
        add("markov_head.markov_w1.weight", VOCABULARY, RANK)
        add("markov_head.markov_w2.weight", len(drafted), RANK)
        sizes = {
            "gated": ("gate_proj", RANK, HIDDEN + RANK),
            "rnn": ("joint_proj", 3 * RANK, 2 * RANK + HIDDEN),
        }
        if config["markov_head_type"] in sizes:
            name, out, read_by_head = sizes[config["markov_head_type"]]
            add(f"markov_head.{name}.weight", out, read_by_head)
            add(f"markov_head.{name}.bias", out)
        add("confidence_head.proj.weight", 1, HIDDEN + RANK)
        add("confidence_head.proj.bias", 1)
    ids = torch.tensor(drafted)
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


@dataclass
class PlainDraft:
    """A checkpoint of `save_published`, computed simply."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    target: dict[str, torch.Tensor]

    @classmethod
    def load(cls, directory: Path, target: Path) -> "PlainDraft":
        files = (load_file(place / "model.safetensors") for place in (directory, target))
        return cls(json.loads((directory / "config.json").read_text()), *files)

    @property
    def window(self) -> int:
        """Size of the first layer's attention window, in positions."""
        size: int = self.config["transformer_layer_config"]["sliding_window"]
        return size

    def logits(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        """Return the logits after a path below the root, which is the context's last token.

        Args:
            states: [len(context) - 1, layers ascending, hidden] of the target.
        """
        say = getattr(self, f"_{self.config.get('speculators_model_type', 'flat')}")
        logits: torch.Tensor = say(context, states.float(), path)
        return logits

    def _dflash(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        place = len(path) + (0 if self.config["sample_from_anchor"] else 1)
        return F.linear(self._block(context, states)[place], self.tensors["lm_head.weight"])

    def _flat(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        return F.linear(self._block(context, states)[len(path) + 1], self.target["lm_head.weight"])

    def _masks(self, rows: int) -> list[torch.Tensor]:
        """Return the masks [block, rows + block] of both layers."""
        whole = torch.ones(BLOCK, rows + BLOCK, dtype=torch.bool)
        if flat := self.config.get("dflash_config"):
            return [whole.tril(rows) if flat.get("causal_head") else whole] * 2
        windowed = whole & (torch.arange(rows + BLOCK) >= rows - self.window)
        return [windowed if self.config.get("sliding_window_non_causal") else windowed.tril(rows), whole]

    def _dspark(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        hidden = self._block(context, states)
        first = 0 if self.config["sample_from_anchor"] else 1
        place, before = first + len(path), [context[-1]] * (first + 1) + path
        plain = F.linear(hidden[place], self.tensors["lm_head.weight"])
        return plain + F.linear(self._markov(before, hidden), self.tensors["markov_head.markov_w2.weight"])

    def _markov(self, before: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """[rank] of the bias at the last of these positions, each with the token before it."""
        tensors = {n.removeprefix("markov_head."): t for n, t in self.tensors.items() if "markov_head" in n}
        kind, rows = self.config["markov_head_type"], tensors["markov_w1.weight"][before]
        if kind == "vanilla":
            return rows[-1]
        if kind == "gated":
            read = torch.cat([hidden[len(before) - 1], rows[-1]])
            return F.linear(read, tensors["gate_proj.weight"], tensors["gate_proj.bias"]).sigmoid() * rows[-1]
        state = torch.zeros(RANK)
        for row, here in zip(rows, hidden, strict=False):
            read = torch.cat([state, row, here])
            joint = F.linear(read, tensors["joint_proj.weight"], tensors["joint_proj.bias"])
            gate, candidate, out = joint.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
        return out.tanh()

    def _block(self, context: list[int], states: torch.Tensor) -> torch.Tensor:
        """Return the normed states [block, hidden] of the block after a context."""
        rows = len(states)
        read = F.linear(
            states[:, [1, 0]].flatten(1), self.tensors["fc.weight"]
        )  # layers 3 and 1, in this order
        read = self._norm(read, "hidden_norm")
        x = self.target["model.embed_tokens.weight"][[context[-1], *[MASK] * (BLOCK - 1)]]
        places, all_places = torch.arange(rows, rows + BLOCK), torch.arange(rows + BLOCK)
        for index, mask in enumerate(self._masks(rows)):
            normed = self._norm(x, f"layers.{index}.input_layernorm")
            added = self._attended(
                f"layers.{index}.", normed, torch.cat([read, normed]), places, all_places, mask
            )
            x = self._fed(f"layers.{index}.", x + added)
        return self._norm(x, "norm")

    def _peagle(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        rows = len(states)
        states = torch.cat(
            [states[:, [2, 0, 1]].flatten(1), self.tensors["mask_hidden"][0].expand(len(path), -1)]
        )
        normed = [self._norm(part, f"fc_norm.{n}") for n, part in enumerate(states.chunk(3, -1))]
        hidden = F.linear(torch.cat(normed, -1), self.tensors["fc.weight"])
        embedded = self.tensors["embed_tokens.weight"][[*context[1:], *[MASK] * len(path)]]
        places = torch.arange(rows + len(path))
        causal = torch.ones(len(places), len(places), dtype=torch.bool).tril()
        near = (places > places[:, None] - self.window) | (places >= rows - 1)
        read = [
            self._norm(embedded, "layers.0.input_layernorm"),
            self._norm(hidden, "layers.0.hidden_norm"),
        ]
        both = torch.cat(read, -1)
        x = hidden + self._attended("layers.0.", both, both, places, places, causal & near)
        x = self._fed("layers.0.", x)
        normed_x = self._norm(x, "layers.1.input_layernorm")
        x = self._fed(
            "layers.1.", x + self._attended("layers.1.", normed_x, normed_x, places, places, causal)
        )
        return F.linear(self._norm(x[-1], "norm"), self.tensors["lm_head.weight"])

    def _mtp(self, context: list[int], states: torch.Tensor, path: list[int]) -> torch.Tensor:
        hidden, tokens, prefix = states[:, -1], context[1:], "mtp_layers.0."
        for token in [*path, None]:
            embedded = self.target["model.embed_tokens.weight"][tokens]
            read = [
                self._norm(embedded, f"{prefix}token_layernorm"),
                self._norm(hidden, f"{prefix}hidden_layernorm"),
            ]
            x = F.linear(torch.cat(read, -1), self.tensors[f"{prefix}input_proj.weight"])
            normed, places = self._norm(x, f"{prefix}input_layernorm"), torch.arange(len(x))
            causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
            x = self._fed(prefix, x + self._attended(prefix, normed, normed, places, places, causal))
            out = self._norm(x, f"{prefix}final_layernorm")
            hidden, tokens = torch.cat([hidden, out[-1:]]), [*tokens, token or 0]
        return F.linear(out[-1], self.target["lm_head.weight"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.tensors[f"{name}.weight"]

    def _fed(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        normed = self._norm(x, f"{prefix}post_attention_layernorm")
        gate, up = (F.linear(normed, self.tensors[f"{prefix}mlp.{n}_proj.weight"]) for n in ("gate", "up"))
        return x + F.linear(F.silu(gate) * up, self.tensors[f"{prefix}mlp.down_proj.weight"])

    def _attended(
        self,
        prefix: str,
        asking: torch.Tensor,
        asked: torch.Tensor,
        places: torch.Tensor,
        other_places: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        tensors = {n: self.tensors[f"{prefix}self_attn.{n}_proj.weight"] for n in "qkvo"}
        query, key, value = (
            F.linear(x, tensors[name]).view(len(x), -1, HEAD)
            for x, name in ((asking, "q"), (asked, "k"), (asked, "v"))
        )
        query = turned(self._norm(query, f"{prefix}self_attn.q_norm"), places)
        key = turned(self._norm(key, f"{prefix}self_attn.k_norm"), other_places)
        key, value = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
        weights = torch.einsum("qhd,khd->hqk", query, key) / HEAD**0.5
        weights = weights.masked_fill(~mask, -torch.inf).softmax(-1)
        return F.linear(torch.einsum("hqk,khd->qhd", weights, value).flatten(1), tensors["o"])


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions to [T, heads, HEAD]."""
    angles = places[:, None] * 10000.0 ** -(torch.arange(0, HEAD, 2) / HEAD)
    cos, sin = (part(torch.cat([angles, angles], -1))[:, None] for part in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
