"""The shape of a decoder-only transformer and what follows from it by counting.

A parameter count is the sum over weight matrices of rows x columns, plus biases, norms and the like, which differ by
family (`FAMILIES`). Registry rows and Hugging Face configs both become a `ModelSpec` through `complete`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Latent:
    """Ranks and widths of multi-head latent attention, named as in `config.json`.

    `q_lora_rank` 0: queries are projected at once. A token's cache is `kv_lora_rank` + `qk_rope_head_dim` elements.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def params(self, hidden_size: int, heads: int) -> int:
        """Weights of the projections of a layer, without norms."""
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        of_queries = self.q_lora_rank * (hidden_size + queries) if self.q_lora_rank else hidden_size * queries
        down = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return of_queries + down + up + heads * self.v_head_dim * hidden_size


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of one model. Sizes are element counts; parameter counts are of the whole model, not of a TP rank.

    `intermediate_size` is that of a dense MLP; `moe_intermediate_size` that of one expert. `num_shared_experts` are
    always active and have `moe_intermediate_size` each. `num_dense_layers` counts the layers of a MoE model that have
    a dense MLP instead. `sliding_window` (tokens) applies to `num_sliding_layers` layers. With `attention` "mla"
    `head_dim` is the width of the latent cached per token, `num_kv_heads` is 1, and `latent` has its parts.
    `embedding_size` differs from `hidden_size` only where the embeddings are projected (opt-350m). `image_tower_params`
    are weights of a multimodal model that text does not use and memory must hold; `num_params` leaves them out.
    `not_modelled` says why a run must refuse the model, None when it may run. `family` is a name of `FAMILIES`, empty
    where it is none of them. `quantization` is the format that the published weights have, None for 16 bits; with
    `experts_only` the weights of experts alone have it. `num_stateful_layers` keep a state of fixed size in place of
    keys and values, each of `state_bytes` as engines cache it (0: not known). `read_as` says what a name was taken for
    that is not in the registry.
    """

    name: str
    hf_id: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_params: int
    max_position: int
    gated_mlp: bool
    tie_word_embeddings: bool
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    attention: str = "gqa"
    source: str = ""
    not_modelled: str | None = None
    embedding_size: int = 0
    image_tower_params: int = 0
    family: str = ""
    quantization: str | None = None
    experts_only: bool = False
    num_stateful_layers: int = 0
    state_bytes: int = 0
    read_as: str = ""
    latent: Latent | None = None

    def splits(self, ranks: int) -> bool:
        """Whether that many TP ranks can share the heads evenly."""
        if ranks < 1 or self.num_attention_heads % ranks:
            return False
        return self.num_kv_heads % ranks == 0 or ranks % self.num_kv_heads == 0

    def kv_heads_on(self, ranks: int) -> int:
        """KV heads of each TP rank; ranks beyond their number hold copies."""
        return -(-self.num_kv_heads // ranks)

    def kv_elements_per_layer(self, ranks: int = 1) -> int:
        """Elements that each TP rank caches of one token in one layer: 2 x kv_heads x head_dim.

        MLA caches one latent instead of keys and values, whole on every rank.
        """
        return self.head_dim if self.attention == "mla" else 2 * self.kv_heads_on(ranks) * self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """KV cache bytes of one token, all layers and all TP ranks together.

        Sliding-window layers count as full ones, an upper bound.
        """
        return round((self.num_layers - self.num_stateful_layers) * self.kv_elements_per_layer() * bytes_per_element)

    @property
    def latent_down_params(self) -> int:
        """Weights of a layer from the model width down to latents, which every TP rank holds whole."""
        latent = self.latent
        if latent is None:
            return 0
        return self.hidden_size * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)

    @property
    def latent_up_params(self) -> int:
        """Weights of a layer from latents up to keys and values, which engines keep once more in 16 bits."""
        latent = self.latent
        if latent is None:
            return 0
        return latent.kv_lora_rank * self.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim)

    @property
    def is_moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.num_experts > 0

    @property
    def num_moe_layers(self) -> int:
        """Layers that route tokens to experts."""
        return self.num_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def attention_params_per_layer(self) -> int:
        """Weights of the Q, K, V and output projections of a layer (biases left out), of MLA those of its `latent`;
        without one the rest of `num_params`."""
        if self.latent is not None:
            return self.latent.params(self.hidden_size, self.num_attention_heads)
        if self.attention == "mla":
            other = self._mlp_params + self.embedding_params + self.lm_head_params
            return (self.num_params - other) // self.num_layers
        q_width, kv_width = self.num_attention_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return self.hidden_size * (2 * q_width + 2 * kv_width)

    @property
    def dense_mlp_params_per_layer(self) -> int:
        """Weights of a dense MLP: 3 matrices when gated, else 2."""
        return self._mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def expert_params_per_layer(self) -> int:
        """Weights of all routed and shared experts of a MoE layer, router left out; 0 in a dense model."""
        num_experts = self.num_experts + self.num_shared_experts
        return num_experts * self._mlp_matrices * self.hidden_size * self.moe_intermediate_size

    @property
    def router_params_per_layer(self) -> int:
        """Weights of the router of a MoE layer; 0 in a dense model."""
        return self.num_experts * self.hidden_size

    @property
    def mlp_params_per_layer(self) -> int:
        """Weights of the MLP of a layer: dense, or router and all experts of a MoE layer."""
        if not self.is_moe:
            return self.dense_mlp_params_per_layer
        return self.expert_params_per_layer + self.router_params_per_layer

    @property
    def active_mlp_params_per_layer(self) -> int:
        """Weights of the MLP of a layer that one token uses: dense, or router, routed and shared experts."""
        if not self.is_moe:
            return self.dense_mlp_params_per_layer
        num_active = self.experts_per_token + self.num_shared_experts
        per_expert = self._mlp_matrices * self.hidden_size * self.moe_intermediate_size
        return num_active * per_expert + self.router_params_per_layer

    @property
    def embedding_params(self) -> int:
        """Weights of the token embedding."""
        return self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def lm_head_params(self) -> int:
        """Weights of an LM head of its own; 0 when it shares the embedding's (the GEMM is done all the same)."""
        return 0 if self.tie_word_embeddings else self.embedding_params

    @property
    def linear_params(self) -> int:
        """Weights of all GEMMs inside the layers: attention, dense MLPs, routers, experts."""
        return self.num_layers * self.attention_params_per_layer + self._mlp_params

    @property
    def active_params(self) -> int:
        """Parameters that one token uses: `num_params` less the experts it is not routed to."""
        return self.num_params - self.num_moe_layers * (self.mlp_params_per_layer - self.active_mlp_params_per_layer)

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def _mlp_params(self) -> int:
        num_dense = self.num_layers - self.num_moe_layers
        return num_dense * self.dense_mlp_params_per_layer + self.num_moe_layers * self.mlp_params_per_layer


@dataclass(frozen=True, slots=True)
class Family:
    """What a model family adds to the big matrices. `norms_per_layer` are norms of `hidden_size`."""

    gated_mlp: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    lm_head_bias: bool = False
    attention_sinks: bool = False
    position_offset: int | None = None  # learned positions: max_position + this many rows; None = rotary
    shared_expert_gate: bool = False
    router_bias: bool = False
    wide_qk_norm: bool = False  # over all heads together, not the same for each


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, shared_expert_gate=True),
    "qwen3": Family(qk_norm=True),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(router_bias=True),
    "gemma2": Family(norms_per_layer=4),
    "gemma3": Family(norms_per_layer=4, qk_norm=True),
    "llama4": Family(),
    "glm4_moe": Family(qkv_bias=True, router_bias=True),
    "glm4_moe_qk_norm": Family(qkv_bias=True, qk_norm=True, router_bias=True),
    "minimax_m2": Family(wide_qk_norm=True, router_bias=True),
    "gpt_oss": Family(qkv_bias=True, out_bias=True, mlp_bias=True, attention_sinks=True),
    "phi": Family(
        gated_mlp=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norms_per_layer=1,
        norm_bias=True,
        lm_head_bias=True,
    ),
    "opt": Family(gated_mlp=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True, position_offset=2),
}


def other_params(spec: ModelSpec, family: Family) -> int:
    """Everything that is not a matrix of `linear_params`, the embedding or the LM head: norms, biases, positions."""
    norm = spec.hidden_size * (2 if family.norm_bias else 1)
    q_width, kv_width = spec.num_attention_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    per_layer = family.norms_per_layer * norm
    per_layer += (q_width + 2 * kv_width) if family.qkv_bias else 0
    per_layer += spec.hidden_size if family.out_bias else 0
    per_layer += 2 * spec.head_dim if family.qk_norm else 0
    per_layer += (q_width + kv_width) if family.wide_qk_norm else 0
    per_layer += spec.num_attention_heads if family.attention_sinks else 0
    per_layer += spec.latent.q_lora_rank + spec.latent.kv_lora_rank if spec.latent is not None else 0
    total = spec.num_layers * per_layer + spec.num_layers * _mlp_bias(spec) * family.mlp_bias
    total += spec.num_moe_layers * spec.hidden_size if family.shared_expert_gate else 0
    total += spec.num_moe_layers * spec.num_experts if family.router_bias else 0
    total += norm if family.final_norm else 0
    total += spec.vocab_size if family.lm_head_bias else 0
    if family.position_offset is not None:
        total += (spec.max_position + family.position_offset) * spec.hidden_size
    if spec.embedding_size not in (0, spec.hidden_size):
        total += 2 * spec.embedding_size * spec.hidden_size  # projections into and out of the layers
    return total


def _mlp_bias(spec: ModelSpec) -> int:
    up = 2 if spec.gated_mlp else 1
    if spec.is_moe:
        return spec.num_experts * (up * spec.moe_intermediate_size + spec.hidden_size + 1)
    return up * spec.intermediate_size + spec.hidden_size


def count_params(spec: ModelSpec, family: Family) -> int:
    """Number of parameters from the shapes, exact for the families listed in `FAMILIES`."""
    return spec.linear_params + spec.embedding_params + spec.lm_head_params + other_params(spec, family)


def complete(spec: ModelSpec, family: Family) -> ModelSpec:
    """The same spec with the kind of attention and, where `num_params` is 0, the parameter count filled in."""
    if spec.attention != "mla":
        spec = replace(spec, attention=attention_kind(spec.num_attention_heads, spec.num_kv_heads))
    return spec if spec.num_params else replace(spec, num_params=count_params(spec, family))


def attention_kind(num_attention_heads: int, num_kv_heads: int) -> str:
    """ "mha" when every query head has its own KV head, "mqa" when all share one, else "gqa"."""
    if num_attention_heads == num_kv_heads:
        return "mha"
    return "mqa" if num_kv_heads == 1 else "gqa"
