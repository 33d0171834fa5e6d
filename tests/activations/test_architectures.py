"""Sites and roles over the architectures of the installed transformers."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from transship import checkpoints
from transship.activations import checkpoint_sites, families, find_sites
from transship.activations.loading import quiet
from transship.activations.roles import no_role
from transship.errors import NumericalError

SCRIPT = Path(__file__).parents[2] / "scripts/architectures.py"
_spec = importlib.util.spec_from_file_location("architectures", SCRIPT)
architectures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(architectures)


def by_hand() -> dict[str, dict[str, dict[str, str]]]:
    """Return architecture → stack → path in the block → roles, as `roles.txt` lists them."""
    table: dict[str, dict[str, dict[str, str]]] = {}
    lines = (Path(__file__).parent / "roles.txt").read_text("utf-8").splitlines()
    heads: list[str] = []
    maps: list[str] = []
    for line in [*lines, "end"]:
        if line.startswith(("#", " ")) or not line:
            maps += line.split() if line.startswith(" ") else []
            continue
        if maps:
            for head in heads:
                model_type, _, stack = head.partition("/")
                table.setdefault(model_type, {})[stack] = dict(word.split("=") for word in maps)
            heads, maps = [], []
        heads += line.split()
    return table


BY_HAND = by_hand()


def roles_found(model: Any) -> dict[str, dict[str, str]]:
    """Return stack → path in the block → roles, of all blocks together."""
    sites = find_sites(model)
    starts = {(site.stack, site.block): f"{site.path}." for site in sites if site.kind == "block"}
    stacks: dict[str, dict[str, list[str]]] = {}
    for site in sites:
        if site.kind not in ("linear", "conv") or (site.stack, site.block) not in starts:
            continue
        path = site.path.removeprefix(starts[site.stack, site.block])
        roles = stacks.setdefault(site.stack, {}).setdefault(path, [])
        role = "-" if no_role(site) else site.role.partition(":")[0]
        roles += [] if role in roles else [role]
    return {stack: {path: "+".join(roles) for path, roles in maps.items()} for stack, maps in stacks.items()}


def test_the_list_by_hand_is_long_and_of_all_kinds():
    kinds = {
        "bert",
        "llama",
        "t5",
        "vit",
        "wav2vec2",
        "whisper",
        "clip",
        "llava",
        "jamba",
        "mamba",
        "deberta-v2",
    }
    assert len(BY_HAND) >= 120
    assert kinds | {"deit", "beit", "swin", "nomic_bert", "dinov2", "gemma4_text", "siglip"} <= set(BY_HAND)


@pytest.mark.parametrize("model_type", BY_HAND)
def test_every_map_of_a_block_has_the_role_that_it_has_by_hand(model_type: str):
    model = architectures.tiny_model(model_type, "meta")
    assert roles_found(model) == BY_HAND[model_type]
    reasons = [no_role(site) for site in find_sites(model)]
    assert families.UNKNOWN not in reasons


LARGE = {"deepseek_v2", "deepseek_v3", "gemma4_text", "nemotron_h"}  # a tiny config still leaves large tables
# one architecture of each kind of block; all of them by `python scripts/architectures.py --merge`
OF_A_KIND = list({str(blocks): name for name, blocks in BY_HAND.items() if name not in LARGE}.values())


@pytest.mark.parametrize("model_type", sorted(set(BY_HAND) - LARGE))
def test_a_file_shows_the_sites_of_the_model_in_memory(model_type: str, tmp_path: Path):
    model = architectures.tiny_model(model_type)
    with quiet():
        model.save_pretrained(tmp_path)
    with checkpoints.open(tmp_path) as file:
        assert checkpoint_sites(file) == find_sites(model)


@pytest.mark.parametrize("model_type", OF_A_KIND)
def test_a_merge_of_two_fine_tunes_opens_again(model_type: str, tmp_path: Path):
    if model_type == "gemma4_audio":
        with pytest.raises(NumericalError, match="input_max' holds a NaN or an infinity"):
            architectures.ties(model_type, tmp_path)
        return
    merged = architectures.ties(model_type, tmp_path)
    with quiet():
        _, report = type(architectures.tiny_model(model_type, "meta")).from_pretrained(
            merged, output_loading_info=True
        )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
