"""A dense float32 Llama that attends to exactly the tokens a bound keeps, chunk by chunk.

Written out by hand, from the weights alone: it shares nothing with vLLM but the model's files.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from metronome.window import Bound

Chunk = tuple[int, int]  # (tokens computed before, tokens in the chunk)


class DenseLlama:
    """Llama with grouped-query attention and unscaled NeoX-style rotary embeddings."""

    def __init__(self, folder: str | Path) -> None:
        config = json.loads((Path(folder) / "config.json").read_text())
        assert config["model_type"] == "llama", "the reference knows Llama only"
        weights: dict[str, torch.Tensor] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            weights.update(load_file(path))
        self.weights = {name: weight.float() for name, weight in weights.items()}
        self.num_layers = config["num_hidden_layers"]
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.num_heads
        self.eps = config["rms_norm_eps"]
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        self.inv_freq = 1.0 / theta**exponent

    def session(self, bound: Bound | None) -> "DenseSession":
        return DenseSession(self, bound)

    def weight(self, layer: int, name: str) -> torch.Tensor:
        return self.weights[f"model.layers.{layer}.{name}.weight"]

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return hidden * torch.rsqrt(variance + self.eps) * weight

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads: [T, H, D], positions: [T] -> the heads rotated to these positions."""
        angle = positions.double()[:, None] * self.inv_freq
        cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def feed_forward(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(hidden @ self.weight(layer, "mlp.gate_proj").T)
        return (gate * (hidden @ self.weight(layer, "mlp.up_proj").T)) @ self.weight(layer, "mlp.down_proj").T

    @torch.inference_mode()
    def logprobs(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        normed = self.norm(hidden, self.weights["model.norm.weight"])
        return (normed @ head.T).log_softmax(-1)


class Rows:
    """A tensor that grows at its end, with room to spare: copied now and then, not at each chunk of a long session."""

    def __init__(self, *shape: int) -> None:
        self.store = torch.zeros(256, *shape)
        self.count = 0

    def append(self, rows: torch.Tensor) -> None:
        while self.count + len(rows) > len(self.store):
            self.store = torch.cat((self.store, torch.zeros_like(self.store)))
        self.store[self.count : self.count + len(rows)] = rows
        self.count += len(rows)


class DenseSession:
    """One session: all its unrotated keys and values, of which each chunk sees what is kept."""

    def __init__(self, model: DenseLlama, bound: Bound | None) -> None:
        self.model, self.bound = model, bound
        self.keys, self.values = (
            [Rows(model.num_kv_heads, model.head_dim) for _ in range(model.num_layers)] for _ in "kv"
        )

    def kept(self, computed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and key positions of the cached tokens that a chunk starting here sees."""
        if self.bound is None:
            everything = torch.arange(computed)
            return everything, everything
        index = torch.tensor(self.bound.kept_positions(computed), dtype=torch.int64)
        positions = index.clone()
        if self.bound.positions == "anchor":
            sinks_end = self.bound.num_sink_blocks * self.bound.block_size
            gap = self.bound.gap_blocks(computed) * self.bound.block_size
            positions[index < sinks_end] += gap
        return index, positions

    @torch.inference_mode()
    def chunk(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Compute the next tokens; [hidden size] the hidden state of the last of them."""
        model = self.model
        computed = self.keys[0].count
        index, key_positions = self.kept(computed)
        positions = torch.arange(computed, computed + len(token_ids))
        hidden = model.weights["model.embed_tokens.weight"][torch.tensor(list(token_ids))]
        for layer in range(model.num_layers):
            normed = model.norm(hidden, model.weight(layer, "input_layernorm"))
            hidden = hidden + self._attend(layer, normed, index, key_positions, positions)
            normed = model.norm(hidden, model.weight(layer, "post_attention_layernorm"))
            hidden = hidden + model.feed_forward(layer, normed)
        return hidden[-1]

    def _attend(
        self,
        layer: int,
        hidden: torch.Tensor,
        index: torch.Tensor,
        key_positions: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        model, num_tokens = self.model, hidden.shape[0]
        query, key, value = (
            (hidden @ model.weight(layer, f"self_attn.{name}_proj").T).view(num_tokens, -1, model.head_dim)
            for name in "qkv"
        )
        keys = torch.cat((self.keys[layer].store[index], key))
        values = torch.cat((self.values[layer].store[index], value))
        self.keys[layer].append(key)
        self.values[layer].append(value)
        query = model.rotate(query, positions)
        keys = model.rotate(keys, torch.cat((key_positions, positions)))
        group = model.num_heads // model.num_kv_heads
        scores = torch.einsum("thd,shd->hts", query, keys.repeat_interleave(group, 1))
        scores = scores / model.head_dim**0.5
        ahead = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
        scores[:, :, index.numel() :].masked_fill_(ahead, -torch.inf)
        mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), values.repeat_interleave(group, 1))
        return mixed.flatten(1) @ model.weight(layer, "self_attn.o_proj").T


def replay(
    model: DenseLlama, bound: Bound | None, token_ids: Sequence[int], chunks: Iterable[Chunk]
) -> dict[int, torch.Tensor]:
    """[V] log-probabilities of the token at each position where a chunk ended, the first time.

    A chunk that starts at 0 again is a session that was preempted and is computed anew.
    """
    session = model.session(bound)
    last: dict[int, torch.Tensor] = {}
    for computed, num_tokens in chunks:
        if computed == 0:
            session = model.session(bound)
        hidden = session.chunk(token_ids[computed : computed + num_tokens])
        last.setdefault(computed + num_tokens, hidden)
    predicted = model.logprobs(torch.stack(list(last.values())))  # at once: the head is most of a small model
    return dict(zip(last, predicted, strict=True))
