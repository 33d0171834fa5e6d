"""What is known about model families: tables only, read by `sites`.

Most of a transformer is found from its shape: a block is the innermost numbered module that holds both an
attention and an MLP, a Linear has an in and an out width, a norm is a module of that name with a gain. What
cannot be seen is what a Linear is *for*; that is in its name, and the names that libraries use are few.
Patterns are regular expressions searched in the module's path relative to its block; the first that fits
wins.
"""

import re
from dataclasses import dataclass

# A module on the path with one of these names is an attention; the cross forms read another stack.
CROSS_ATTENTION = (
    r"(EncDecAttention|cross_?attention|encoder_attn|\w*cross_attn\w*|encdec_attn|multihead_attn"
    r"|visual_attention)(\.|$)"
)
ATTENTION = (
    r"(attention|attentions|attn|self_attn|SelfAttention|self_attention|selfattention|self_att)(\.\d+)?(\.|$)"
)
# A module of its own around one map, which says nothing of what the map is for.
WRAPPER = r"\.(linear|convolution)$"

# Roles of maps that only some families have, tried before all others. What follows a dot in a role tells
# such maps of one block apart.
SPECIAL_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(router|gate)\.(?!proj).*$|(^|\.)\w*router$|(^|\.)(shared_expert_gate|gate)$", "router"),
    (r"(^|\.)experts\.router\.layer$", "router"),
    (r"(^|\.)(mamba|mixer)\.((in|out|x|dt)_proj)$", r"state.\3"),
    (r"(^|\.)(mamba|mixer)\.conv1?d?$", "state.convolution"),
    (r"(^|\.)(linear_attn|temporal_block|mlstm_layer)\.(?![qkvo]_proj$)(\w+)$", r"state.\3"),
    (r"(^|\.)linear_attn\.([qkvo])_proj$", r"state.\2"),
    (r"(^|\.)modulation\.(\w+)", r"modulation.\2"),
    (r"(^|\.)\w*norm\w*\.(mlp\.)?(\w+)$", r"modulation.\3"),
    (r"(^|\.)(conv|conv_module|lconv1d|convolution_module)\.(\w+\.)*(\w+)$", r"convolution.\4"),
    (r"(^|\.)bottleneck\.(\w+)(\.dense)?$", r"bottleneck.\2"),
    (r"(^|\.)\w+_hyper_connection\.(\w+)$", r"hyper.\2"),
    (r"(^|\.)per_layer_(input_)?(gate|projection)$", r"per_layer.\3"),
    (r"(^|\.)\w*adapter\w*\.(.+\.)?(\w+)$", r"adapter.\3"),
    (r"(^|\.)layout_(query|key|value)$", r"layout.\2"),
    (r"(^|\.)layout_(output|intermediate)\.dense$", r"layout.\2"),
    (r"(^|[._])(w2e|e2w|e2e)_query$", r"entity.\2"),
    (r"(^|\.)(query|key|value)_global$", r"global.\2"),
    (r"(^|\.)(indexer|compressor|forget_gate)\.(.+\.)?(\w+)$", r"\2.\4"),
    # attention through a narrow space (DeepSeek)
    (r"(^|\.)(q_a_proj|wq_a)$", "attention.query_down"),
    (r"(^|\.)(q_b_proj|wq_b)$", "attention.query_up"),
    (r"(^|\.)(kv_a_proj_with_mqa|kv_a_proj|wkv_a)$", "attention.key_value_down"),
    (r"(^|\.)(kv_b_proj|wkv_b)$", "attention.key_value_up"),
    (r"(^|\.)self_attn\.(.+\.)?kv_proj$", "attention.key_value"),
    (r"(^|\.)o_a_proj$", "attention.out_down"),
    (r"(^|\.)o_b_proj$", "attention.out_up"),
    (r"(attn|attention)\.(.+\.)?(g|g_a|g_b|b|dt|gate|q_gate)_proj$|output_gate$", r"attention.gate"),
    (r"(^|\.)self_attn\.a_proj$", "attention.decay"),
    (
        r"(^|\.)(linear_pos|pos_proj|pos_key_proj|pos_query_proj|pos_q_proj|r_proj|relative_k_proj"
        r"|gru_rel_pos_linear|relative_pos_embeddings)$",
        "attention.position",
    ),
    (r"(^|\.)(sampling_offsets|attention_weights)$", r"attention.\2"),
    # RWKV's channel mixing: the square of the key is the hidden layer
    (r"(^|\.)feed_forward\.key$", "mlp.in"),
    (r"(^|\.)feed_forward\.value$", "mlp.out"),
    (r"(^|\.)feed_forward\.receptance$", "mlp.gate"),
    (r"(^|\.)attention\.receptance$", "attention.gate"),
)

# Roles of linear maps in a block, outside of fused ones. Those of the second table are tried on paths in an
# attention only.
PLAIN_ATTENTION_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(q_proj|q_lin|Wq)$", "query"),
    (r"(^|\.)(k_proj|k_lin|Wk)$", "key"),
    (r"(^|\.)(v_proj|v_lin|Wv)$", "value"),
    (r"(^|\.)(o_proj|out_lin)$", "out"),
)
ATTENTION_ROLES: tuple[tuple[str, str], ...] = (
    *PLAIN_ATTENTION_ROLES,
    (
        r"(^|\.)(q|query|wq|to_q|(q|query)_(proj|linear)|linear_q|project_q|projection_query|queries)$",
        "query",
    ),
    (r"(^|\.)(k|key|wk|to_k|(k|key)_(proj|linear)|linear_k|project_k|projection_key)$", "key"),
    (r"(^|\.)(v|value|wv|to_v|(v|value)_(proj|linear)|linear_v|project_v|projection_value)$", "value"),
    (
        r"(^|\.)(o|wo|Wo|dense|proj|c_proj|output|output_proj|out_proj|linear_out|projection|projection_layer"
        r"|attention_out|post|to_out|fc)(\.0)?$",
        "out",
    ),
    (r"post_attention\.conv1d$", "out"),
)
# A module on the path with one of these names is an MLP. The names of the last two tables are too common to
# say so by themselves.
MLP = (
    r"(^|\.)(mlps?|\w+_mlp|ffns?|ffn\d|feed_forward\w*|feedforward\w*|DenseReluDense|ff\d?"
    r"|intermediate\w*|output\w*|ffw_\w+|lang_inter|visn_inter|lang_output|visn_output|shared_mlp)(\.|$)"
)
MLP_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(gate_proj|wi_0|w1)$", "mlp.gate"),
    (
        r"(^|\.)((\w+_)?inter(mediate)?(_query)?\.dense|intermediate_dense|fc1|fc_in|lin1|linear1|linear_fc1"
        r"|c_fc|up_proj|wi|wi_1|w3|dense_h_to_4h|ffn|pwconv1|intermediate\.conv1d)$",
        "mlp.in",
    ),
    (
        r"(^|\.)((\w+_)?output(_query)?\.dense|output_dense|fc2|fc_out|lin2|linear2|linear_fc2|c_proj"
        r"|down_proj|wo|Wo|w2|dense_4h_to_h|ffn_output|pwconv2|output\.conv1d)$",
        "mlp.out",
    ),
)
INNER_MLP_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(proj_up_gate|w_in\.w_0)$", "mlp.gate"),
    (
        r"(^|\.)(0|dense1|in_proj|proj_in|proj_up|layer_1|ffw_layer_1|intermediate|conv_?1|w_in\.w_1)$",
        "mlp.in",
    ),
    (
        r"(^|\.)(1|2|3|dense2|out_proj|proj_out|proj_down|output_linear|layer_2|ffw_layer_2|output|conv_?2|w_out)$",
        "mlp.out",
    ),
    (r"(^|\.)fc1\.proj$", "mlp.in"),
)
# An attention outside of blocks pools their output (SigLIP's head); its maps are not those of a block.
# A dense layer alone is BERT's pooler, or the transform of a head.
POOLING = r"(^|\.)(head|attention_pool\w*|pooler|attn_pool\w*|map_head)\.(?!(dense|norm)$)(?=\w)"

# Every role that the tables above give to a map of a block.
MAP_ROLES = re.compile(
    r"(cross_)?attention\.((query|key|value|key_value|out)(_down|_up)?|gate|decay|position|sampling_offsets"
    r"|attention_weights)|mlp\.(in|gate|out)|router"
    r"|(state|modulation|convolution|hyper|per_layer|adapter|layout|entity|global|indexer|compressor"
    r"|forget_gate|bottleneck)\.\w+"
)
# Why a map of a block has none of them. Such maps are named by their paths and meet maps of the same path.
NO_ROLE: tuple[tuple[str, str], ...] = (
    (r"(^|\.)module\.", "a block of this family holds an attention or an MLP, not both"),
    (r"qkv|queries|keys_values", "several maps lie in it in an order that is not known here"),
    (
        r"conv|(^|\.)(block|stage|layer|focal_layers|resblocks|in_layers|res_skip_layers)\.",
        "it mixes neighbours",
    ),
    (r"down_?sampl|patch_embed|merg|(^|\.)proj$|projection", "it changes the grid or the number of tokens"),
    (
        r"aggregation|squeeze|reduction|(^|\.)sr$|gating_block|(^|\.)attention\.\d$",
        "it weighs tokens or channels",
    ),
    (r"^(in|out)_proj$", "it leads into a code book or out of it"),
    (r"position", "it makes positions"),
    (r"message_fc|temporal_dense|(^|\.)linear$|expert_proj", "it joins two streams"),
    (
        r"(local_representation|attn)\.(final|to_\w+)",
        "its attention adds tokens up instead of comparing them",
    ),
)
UNKNOWN = "it is not known here what it is for"

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
    (
        r"(^|\.)(patch_embeddings?(\.projection|\.proj)?|patch_embed(\.projection|\.proj)?|conv1)$",
        "embedding.patch",
    ),
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
        r"(^|\.)(final_layer_norm|final_layernorm|ln_f|norm|layernorm|post_layernorm|final_norm)$"
        r"|(^|(^|\.)(en|de)coder\.)layer_norm$",
        "norm.final",
    ),
    (r"(^|\.)encoder\.conv2$", "conv2"),  # Whisper's second step over time
    (r"(^|\.)(visual_projection|text_projection)$", "projection"),
    (r"(^|\.)pooler\.dense$", "pooler"),
    (r"(^|\.)(lm_head|classifier|score|qa_outputs|head|fc|classifier\.out_proj)$|^proj_out$", "head"),
    (r"(^|\.)(lm_head|classifier|pre_classifier|vocab_transform|cls|head)\b", "head.transform"),
)

# Words on the path of a list of blocks that name its stack, when a model has more than one.
STACK_WORDS: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(vision|visual|image)", "vision"),
    (r"(^|\.)(audio|speech)", "audio"),
    (r"(^|\.)(text|language_model)", "text"),
    (r"(^|\.)decoder(\.|$)", "decoder"),
    (r"(^|\.)encoder(\.|$)", "encoder"),
)
# Which stack of another model one of this name may stand for, best first; itself always comes first.
STACK_PARTNERS: dict[str, tuple[str, ...]] = {
    "text": ("encoder", "decoder"),
    "encoder": ("text", "audio"),
    "audio": ("encoder",),
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
    FusedWeight(
        r"query_key_value$",
        _HEADWISE,
        "heads",
        ("gpt_neox", "gpt_neox_japanese", "bloom", "persimmon", "fuyu"),
    ),
    FusedWeight(r"(^|\.)qkv_proj$", _HEADWISE, "heads", ("minimax",)),
    FusedWeight(
        r"(^|\.)self_attention\.kv_proj$",
        (("attention.key", "rest"), ("attention.value", "rest")),
        "one",
        ("jetmoe",),
    ),
    FusedWeight(r"(^|\.)self\.in_proj$", _HEADWISE, "heads", ("deberta",)),
    # CodeGen was trained on four devices, each of which has its share of the heads
    FusedWeight(
        r"(^|\.)qkv_proj$",
        (("attention.query", "rest"), ("attention.value", "rest"), ("attention.key", "rest")),
        "four",
        ("codegen",),
    ),
    # a gate on what each head reads is projected beside its query
    FusedWeight(
        r"(^|\.)q_proj$",
        (("attention.query", "head"), ("attention.gate", "head")),
        "heads",
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    ),
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
    FusedWeight(r"(^|\.)(qkv|Wqkv|att_proj)$", _THIRDS),
    FusedWeight(
        r"(^|\.)(attn|attention|kv_cross)\.to_kv$", (("attention.key", "rest"), ("attention.value", "rest"))
    ),
    FusedWeight(r"(^|\.)(gate_up_proj|dense_gate_up)$", (("mlp.gate", "rest"), ("mlp.in", "rest"))),
    FusedWeight(r"(^|\.)shared_mlp\.input_linear$", (("mlp.gate", "rest"), ("mlp.in", "rest"))),
    FusedWeight(r"(^|\.)mlp\.fc1$", (("mlp.gate", "rest"), ("mlp.in", "rest")), "one", ("moshi",)),
    # ModernBERT: the activation is taken of the first half, which makes it the gate
    FusedWeight(r"(^|\.)mlp\.Wi$", (("mlp.gate", "rest"), ("mlp.in", "rest"))),
)

# Numbers that a layout names and no config gives.
COUNTS = {"one": 1, "four": 4}
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
