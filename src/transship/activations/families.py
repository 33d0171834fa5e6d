"""What is known about model families: tables only, read by `sites`.

Most of a transformer is found from its shape: a block is the innermost numbered module that holds both an
attention and an MLP, a Linear has an in and an out width, a norm is a module of that name with a gain. What
cannot be seen is what a Linear is *for*; that is in its name, and the names that libraries use are few.
Patterns are regular expressions searched in the module's path relative to its block; the first that fits
wins.
"""

from dataclasses import dataclass

# A module on the path with one of these names is an attention; the cross forms read another stack.
CROSS_ATTENTION = (
    r"(EncDecAttention|cross_?attention|encoder_attn|cross_attn|encdec_attn|multihead_attn)(\.|$)"
)
ATTENTION = r"(attention|attn|self_attn|SelfAttention|self_attention|selfattention)(\.|$)"

# Roles of linear maps in a block, outside of fused ones. Attention ones are tried on paths in an attention
# only.
ATTENTION_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|[._])(q|query|wq|to_q|q_(proj|lin|linear))$", "query"),
    (r"(^|[._])(k|key|wk|to_k|k_(proj|lin|linear))$", "key"),
    (r"(^|[._])(v|value|wv|to_v|v_(proj|lin|linear))$", "value"),
    (r"(^|[._])(o|wo|Wo|dense|proj|c_proj|out_lin|o_proj|out_proj|to_out|fc)(\.0)?$", "out"),
)
MLP_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|[._])(gate_proj|wi_0|w1|gate)$", "mlp.gate"),
    (
        r"(^|[._])(intermediate\.dense|fc1|fc_in|lin1|linear1|c_fc|up_proj|wi|wi_1|w3|dense_h_to_4h|ffn|0)$",
        "mlp.in",
    ),
    (
        r"(^|[._])(output\.dense|fc2|fc_out|lin2|linear2|c_proj|down_proj|wo|Wo|w2|dense_4h_to_h|ffn_output|2|3)$",
        "mlp.out",
    ),
)
# A purely numbered Linear (`mlp.0`, `net.2`) is an MLP's only inside a module of such a name.
MLP = r"(mlp|ffn|feed_forward|feedforward|DenseReluDense|ff|intermediate|output)(\.|$)"

# Norms of a block. `*_in` feeds the named part (pre-norm); `*_out` closes its residual sum (post-norm).
NORM_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|[._])(q_norm|query_norm|q_layernorm|q_ln)$", "norm.query"),
    (r"(^|[._])(k_norm|key_norm|k_layernorm|k_ln)$", "norm.key"),
    (r"attention\.output\.LayerNorm$|attention\.LayerNorm$|(^|\.)sa_layer_norm$", "norm.attention_out"),
    (r"(^|\.)output\.LayerNorm$|(^|\.)output_layer_norm$|full_layer_layer_norm$", "norm.mlp_out"),
    (r"(^|\.)(encoder_attn_layer_norm|ln_cross_attn)$", "norm.cross_attention_in"),
    (
        r"(^|\.)(layernorm_before|norm1|layer_norm1|ln_1|input_layernorm|self_attn_layer_norm|attn_norm)$",
        "norm.attention_in",
    ),
    (
        r"(^|\.)(layernorm_after|norm2|layer_norm2|ln_2|post_attention_layernorm|final_layer_norm|mlp_norm)$",
        "norm.mlp_in",
    ),
)
SCALE_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(layer_scale1|ls1|gamma_1|lambda_1)", "scale.attention"),
    (r"(^|\.)(layer_scale2|ls2|gamma_2|lambda_2)", "scale.mlp"),
)

# Outside of blocks, by the end of the full path.
OUTER_ROLES: tuple[tuple[str, str], ...] = (
    (
        r"(^|\.)(word_embeddings?|wte|embed_tokens|shared|token_embedding|embed_in|tok_embeddings)$",
        "embedding.token",
    ),
    (r"(^|\.)(position_embeddings?|wpe|embed_positions|pos_embed(ding)?)$", "embedding.position"),
    (r"(^|\.)token_type_embeddings$", "embedding.type"),
    (r"(^|\.)(patch_embeddings?(\.projection|\.proj)?|patch_embed\.proj|conv1)$", "embedding.patch"),
    (r"(^|\.)(cls_token|class_embedding|class_token)$", "embedding.class"),
    (r"(^|\.)(register_tokens|reg_token)$", "embedding.register"),
    (r"(^|\.)mask_token$", "embedding.mask"),
    (r"(^|\.)distillation_token$", "embedding.distillation"),
    (r"(^|\.)relative_attention_bias$", "embedding.relative"),
    (
        r"(^|\.)(embeddings\.(LayerNorm|norm|layer_norm)|word_embeddings_layernorm|pre_layrnorm|embed_norm)$",
        "norm.embedding",
    ),
    (r"(^|\.)downsample\.norm$", "downsample.norm"),
    (r"(^|\.)downsample\.reduction$", "downsample.reduction"),
    (
        r"(^|\.)(final_layer_norm|final_layernorm|ln_f|norm|layernorm|post_layernorm|final_norm)$",
        "norm.final",
    ),
    (r"(^|\.)(visual_projection|text_projection)$", "projection"),
    (r"(^|\.)pooler\.dense$", "pooler"),
    (r"(^|\.)(lm_head|classifier|score|qa_outputs|head|fc|classifier\.out_proj)$", "head"),
    (r"(^|\.)(lm_head|classifier|pre_classifier|vocab_transform|cls|head)\b", "head.transform"),
)

# Words on the path of a list of blocks that name its stack, when a model has more than one.
STACK_WORDS: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(vision|visual|image)", "vision"),
    (r"(^|\.)text", "text"),
    (r"(^|\.)decoder(\.|$)", "decoder"),
    (r"(^|\.)encoder(\.|$)", "encoder"),
)
# Which stack of another model one of this name may stand for, best first; itself always comes first.
STACK_PARTNERS: dict[str, tuple[str, ...]] = {
    "text": ("encoder", "decoder"),
    "encoder": ("text",),
    "decoder": ("text",),
    "vision": (),
}


@dataclass(frozen=True)
class FusedWeight:
    """How one stored weight holds several linear maps along its output axis.

    The axis is `groups` runs of equal length; in each run the parts lie one after another. `[q; k; v]` is one
    run; a layout interleaved per head has one run per head. Counts and lengths are names, resolved from the
    model's config by `sites`: `heads` (query heads), `kv_heads`, `heads_per_kv`, `head` (width of a head),
    `rest` (an equal share of what is there).

    Attributes:
        pattern: searched in the module's path relative to its block.
        parts: (role, length in a run) in the stored order; a role starting with "attention." keeps the cross
            prefix.
        groups: how many runs.
        model_types: the config's model types that it holds for; empty for all.
        when: config fields that must have these values.
    """

    pattern: str
    parts: tuple[tuple[str, str], ...]
    groups: str = "one"
    model_types: tuple[str, ...] = ()
    when: tuple[tuple[str, object], ...] = ()


_QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")
_HEADWISE = tuple((role, "head") for role in _QUERY_KEY_VALUE)
_THIRDS = tuple((role, "rest") for role in _QUERY_KEY_VALUE)
_STACKED = (
    ("attention.query", "heads*head"),
    ("attention.key", "kv_heads*head"),
    ("attention.value", "kv_heads*head"),
)

FUSIONS: tuple[FusedWeight, ...] = (
    FusedWeight(r"query_key_value$", _HEADWISE, "heads", ("gpt_neox", "gpt_neox_japanese", "bloom")),
    FusedWeight(
        r"query_key_value$",
        (("attention.query", "heads_per_kv*head"), ("attention.key", "head"), ("attention.value", "head")),
        "kv_heads",
        ("falcon",),
        (("new_decoder_architecture", True),),
    ),
    FusedWeight(
        r"query_key_value$",
        (("attention.query", "heads*head"), ("attention.key", "head"), ("attention.value", "head")),
        "one",
        ("falcon",),
        (("new_decoder_architecture", False), ("multi_query", True)),
    ),
    FusedWeight(r"query_key_value$", _HEADWISE, "heads", ("falcon",)),
    FusedWeight(r"(^|\.)c_attn$", _STACKED, "one", ("gpt_bigcode",), (("multi_query", True),)),
    FusedWeight(r"(^|\.)c_attn$", _THIRDS),
    FusedWeight(r"(^|\.)(qkv_proj|query_key_value)$", _STACKED),
    FusedWeight(r"(^|\.)(qkv|Wqkv|in_proj|att_proj)$", _THIRDS),
    FusedWeight(r"(^|\.)(gate_up_proj|dense_gate_up)$", (("mlp.gate", "rest"), ("mlp.in", "rest"))),
    # ModernBERT: the activation is taken of the first half, which makes it the gate
    FusedWeight(r"(^|\.)mlp\.Wi$", (("mlp.gate", "rest"), ("mlp.in", "rest"))),
)

# Config fields by their several names.
CONFIG_NAMES: dict[str, tuple[str, ...]] = {
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head": ("head_dim", "d_kv"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
}

# Blocks whose attention works on windows of the token grid: the attributes that say how, on the block.
WINDOWED: dict[str, tuple[str, str]] = {
    "swin": ("window_size", "shift_size"),
    "swinv2": ("window_size", "shift_size"),
}

# Attention modules see (tokens, heads, head width) here: one gain for all heads, so no moments of its own.
PER_HEAD_ROLES = frozenset({"norm.query", "norm.key"})
