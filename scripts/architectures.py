#!/usr/bin/env python3
"""Find the sites of every architecture of the installed transformers: `python scripts/architectures.py`.

Every architecture is built with two small layers. The script prints how many could be built, and the maps of
blocks that have neither a role nor a stated reason. `--merge` also saves a base and two fine-tunes of each,
merges them by TIES and opens the result. The exit code is 1 where a map is unknown or a merge fails.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from transship import merge
from transship.activations import families, find_sites
from transship.activations.loading import quiet
from transship.activations.roles import no_role
from transship.errors import TransshipError

# numbers of a config by their several names; each config takes those that it has
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 16),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_heads", "n_head"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim"), 24),
    **dict.fromkeys(("hidden_dim",), 24),
    **dict.fromkeys(("head_dim", "d_kv", "projection_dim", "moe_intermediate_size"), 8),
    **dict.fromkeys(("shared_expert_intermediate_size", "num_mel_bins"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "mlp_ratio"), 2),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 32),
    **dict.fromkeys(("image_size", "max_source_positions", "max_target_positions"), 16),
    "vocab_size": 50,
    "patch_size": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
_STAGES = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "window_size": 2}
_WAVES = {
    "conv_dim": [8, 8],
    "conv_kernel": [4, 4],
    "conv_stride": [2, 2],
    "num_conv_pos_embedding_groups": 2,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "swin": _STAGES,
    "swinv2": _STAGES,
    "hubert": _WAVES,
    "wav2vec2": _WAVES,
    "wavlm": _WAVES,
    "wav2vec2-conformer": _WAVES,
    "sew-d": {**_WAVES, "max_position_embeddings": 32, "position_buckets": 8},
    "falcon": {"head_dim": None, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt_neo": {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
    },
    "gpt_bigcode": {"num_key_value_heads": 1},
    "qwen3_next": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "jamba": {"num_hidden_layers": 8},
    "sam2_hiera_det_model": {
        "hidden_size": 8,
        "blocks_per_stage": [1, 2],
        "embed_dim_per_stage": [8, 16],
        "num_attention_heads_per_stage": [1, 2],
        "window_size_per_stage": [2, 2],
        "global_attention_blocks": [1],
        "image_size": [32, 32],
    },
    "xlnet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
    "esm": {
        "vocab_size": 33,
        "pad_token_id": 1,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    },
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4, "max_2d_position_embeddings": 32},
    "speech_to_text": {"conv_channels": 8, "input_feat_per_channel": 8},
    "ctrl": {"dff": 24},
}


def tiny_config(model_type: str) -> Any:
    """Return a config of two small layers, as far as the names of its numbers are known here."""
    return _shrunk(getattr(hf, CONFIG_MAPPING_NAMES[model_type]), SPECIAL.get(model_type, {}))


def _shrunk(kind: Any, special: dict[str, Any]) -> Any:
    with quiet():
        full = kind()
        given: dict[str, Any] = {}
        for name, number in SMALL.items():
            try:
                there = getattr(full, name)
            except (AttributeError, RuntimeError, ValueError):  # a number that differs between layers
                continue
            if isinstance(there, int) and not isinstance(there, bool):
                given[name] = number
            elif name in ("image_size", "patch_size") and isinstance(there, list | tuple):
                given[name] = [number] * len(there)
        for name in getattr(kind, "sub_configs", None) or {}:
            if hasattr(part := getattr(full, name, None), "to_dict"):
                given[name] = _shrunk(type(part), {}).to_dict()
        aliases = getattr(kind, "attribute_map", {})
        plain = {name: value for name, value in given.items() if aliases.get(name) not in given}
        return kind(**{name: value for name, value in (plain | special).items() if value is not None})


def tiny_model(model_type: str, device: str = "cpu", **changes: Any) -> torch.nn.Module:
    """Return the bare model of a tiny config with random weights."""
    config = tiny_config(model_type)
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    with quiet(), torch.device(device):
        return hf.AutoModel.from_config(config)


def model_types() -> list[str]:
    """Return every architecture of the installed transformers that has a bare model."""
    return [name for name in CONFIG_MAPPING_NAMES if name in MODEL_MAPPING_NAMES]


def ties(model_type: str, folder: Path) -> Path:
    """Save a base and two fine-tunes below `folder`, merge them, and return the folder of the merge."""
    model = tiny_model(model_type)
    for name in ("base", "one", "two"):
        with quiet():
            model.save_pretrained(folder / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.005 * torch.randn_like(parameter))
    models = [
        {"model": str(folder / name), "parameters": {"weight": 0.5, "density": 0.5}}
        for name in ("one", "two")
    ]
    base = str(folder / "base")
    return merge({"merge_method": "ties", "base_model": base, "models": models}).save(folder / "merged")


def main() -> int:
    """Go through all architectures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--merge", action="store_true", help="also merge models of each")
    parser.add_argument("names", nargs="*", help="these architectures only")
    given = parser.parse_args()
    built = failures = 0
    for name in given.names or model_types():
        try:
            model = tiny_model(name, "meta")
        except Exception as error:  # a config that two small layers do not fit, or a package that is missing
            print(f"{name}: not built ({type(error).__name__})")
            continue
        built += 1
        for site in find_sites(model):
            if no_role(site) == families.UNKNOWN:
                print(f"{name}: {site.name} is {families.UNKNOWN.removeprefix('it is ')}")
                failures += 1
        if given.merge and sum(parameter.numel() for parameter in model.parameters()) < 3_000_000:
            failures += not _merges(name)
    print(f"{built} architectures, {failures} failures")
    return int(failures > 0)


def _merges(name: str) -> bool:
    folder = Path(tempfile.mkdtemp())
    try:
        merged = ties(name, folder)
        with quiet():
            tiny = type(tiny_model(name, "meta"))
            report = tiny.from_pretrained(merged, output_loading_info=True)[1]
        if report["missing_keys"] or report["unexpected_keys"]:
            print(f"{name}: the merge lacks {sorted(report['missing_keys'])[:3]}")
        return not report["missing_keys"]
    except TransshipError as error:
        print(f"{name}: refused, {error}".replace(str(folder), ""))
        return True
    except Exception as error:  # the report is the point: the others go on
        print(f"{name}: {type(error).__name__} {str(error)[:200]}")
        return False
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
