"""The pretrained model in two parts: θ, its own embedding of words, patches or sound, and the body behind it.

The body starts from embedded tokens u [inputs, tokens, width], whatever made them: the *door*, the module
that embeds, is replaced by one that hands on what it is given. A door is called `embeddings` (BERT, RoBERTa,
ModernBERT, MPNet, DistilBERT, ViT, Swin, DINO and their kin) or `patch_embed` (the Hiera of SAM2), or is a
pair of convolutions before a list of layers (the encoder of Whisper). What a family needs besides is read
from the module's own parts, so there is no code per architecture.
"""

import contextlib
import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from transship.activations import LoadedModel, load_model
from transship.activations.families import WINDOWED
from transship.data import find_model
from transship.errors import CheckpointError, OptionError

Reads = Literal["text", "vision", "audio"]
KNOWN = "BERT, ModernBERT, RoBERTa, MPNet, DistilBERT, ViT, Swin, DINO, SAM2, Whisper or one of their kin"


class _Given(nn.Module):
    """Stands where the embeddings were and hands on the tokens that are given."""

    def __init__(self, original: nn.Module, form: Literal["tokens", "windows", "plane"]) -> None:
        super().__init__()
        # vision models look up the dtype of their patch filter before they call the embeddings
        object.__setattr__(self, "patch_embeddings", getattr(original, "patch_embeddings", None))
        self.form, self.grid, self.tokens = form, (0, 0), torch.empty(0)

    def forward(self, *positional: Any, **named: Any) -> Any:
        """Return the tokens as they are, with their grid, or laid out on it, whatever the arguments."""
        if self.form == "plane":
            return self.tokens.reshape(len(self.tokens), *self.grid, -1)
        return (self.tokens, self.grid) if self.form == "windows" else self.tokens


class Body(nn.Module):
    """A transformer without its embeddings: tokens in, states out.

    Attributes:
        model: the encoder, its embeddings replaced.
        reads: what the encoder was trained on.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        door = _door_of(model, name)
        self.model: nn.Module = door.tower
        self.reads: Reads = door.reads
        self._given: list[_Given] = []
        if door.key:
            config: Any = door.tower.config
            windowed = getattr(config, "model_type", "") in WINDOWED
            form: Any = "plane" if door.key == _PLANE else "windows" if windowed else "tokens"
            self._given.append(_Given(door.module, form))
            setattr(door.holder, door.key, self._given[0])
        patch = _first(door.module, nn.Conv2d)
        self._picture = (1, (1, 1)) if patch is None else (patch.in_channels, tuple(patch.stride))
        if getattr(self.model, "pooler", None) is not None:
            setattr(self.model, "pooler", None)  # noqa: B010 - mypy takes a module's attributes for modules
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.eval()

    def forward(
        self,
        tokens: Float[Tensor, "inputs tokens width"],
        mask: Bool[Tensor, "inputs tokens"] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "inputs states out"]:
        """Return the last states; `mask` is False at padding, `grid` the rows and columns of patches."""
        if self.reads == "audio":
            return self._through_layers(tokens)
        given = self._given[0]
        given.tokens, given.grid = tokens, grid or (1, tokens.shape[1])
        try:
            if self.reads == "text":
                whole = None if mask is None else mask.long()
                output = self.model(inputs_embeds=tokens, attention_mask=whole)
            else:  # of the picture, only its size counts
                channels, sides = self._picture
                size = [len(tokens), channels, *(n * side for n, side in zip(given.grid, sides, strict=True))]
                output = self.model(pixel_values=tokens.new_zeros(1).expand(size))
        finally:
            given.tokens = torch.empty(0)
        states: Tensor = output.last_hidden_state
        return states.flatten(1, 2) if states.dim() == 4 else states

    def _through_layers(self, tokens: Tensor) -> Tensor:
        """Return the states of an encoder that only takes whole recordings, run layer by layer."""
        encoder: Any = self.model
        for layer in encoder.layers:
            output = layer(tokens, None)
            tokens = output[0] if isinstance(output, tuple) else output
        states: Tensor = encoder.layer_norm(tokens)
        return states


@dataclass(frozen=True, eq=False)
class _Door:
    """Where a model embeds its inputs.

    Attributes:
        tower: the part of the model that goes from inputs to states.
        holder: the module that has the door; `key` is its attribute, empty for the pair of convolutions.
        module: what embeds.
        reads: what it was trained on.
    """

    tower: nn.Module
    holder: nn.Module
    key: str
    module: nn.Module
    reads: Reads


_PLANE, _SOUND = "patch_embed", ("conv1", "conv2", "embed_positions", "layers", "layer_norm")


def _door_of(model: nn.Module, name: str) -> _Door:
    """Return the shallowest door of the model."""
    holders = sorted(model.named_modules(), key=lambda named: named[0].count(".") + bool(named[0]))
    for _, holder in holders:
        if all(isinstance(getattr(holder, part, None), nn.Module) for part in _SOUND):
            return _Door(holder, holder, "", holder, "audio")
        for key in ("embeddings", _PLANE):
            module = getattr(holder, key, None)
            if isinstance(module, nn.Module):
                vision = _first(module, nn.Conv2d) is not None or isinstance(module, _Given)
                return _Door(
                    holder if key == _PLANE else model, holder, key, module, "vision" if vision else "text"
                )
    raise CheckpointError(
        f"{type(model).__name__} has no module that embeds and that other tokens could stand for",
        where=name,
        fix=f"choose {KNOWN}",
    )


@dataclass(frozen=True, eq=False)
class Theta:
    """What the backbone's own embedding is made of, for an embedder of other data to reuse.

    Attributes:
        width: of a token.
        norm_weight: gain of its LayerNorm, or None where it has none.
        norm_bias: the same, shift.
        norm_epsilon: the same, ε.
        positions: [positions, width] in their order, without those of the prefix; None where it has none.
        prefix: [prefix, width] class and other tokens that stand before the patches, positions added.
        patch_filter: [width, channels, height, width of a patch], or None for text.
        patch_bias: [width], or None.
        image: the picture's (height, width) that it was trained on, or None.
        reads: what the encoder was trained on.
        window: sides of the grid of patches are multiples of this (whole windows, in every stage), and
            pictures keep their own size; 0 where pictures are brought to `image`.
    """

    width: int
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    norm_epsilon: float
    positions: Float[Tensor, "positions width"] | None
    prefix: Float[Tensor, "prefix width"]
    patch_filter: Tensor | None
    patch_bias: Tensor | None
    image: tuple[int, int] | None
    reads: Reads = "text"
    window: int = 0


@dataclass(frozen=True, eq=False)
class Backbone:
    """A pretrained encoder, kept as it is.

    Attributes:
        name: as the user gave it.
        loaded: the whole model with its tokenizer or image processor.
        theta: facts of its embedding.
    """

    name: str
    loaded: LoadedModel
    theta: Theta

    @property
    def reads(self) -> Reads:
        return self.theta.reads

    @cached_property
    def config(self) -> Any:
        """The config of the part that goes from inputs to states."""
        return _door_of(self.loaded.model, self.name).tower.config

    @property
    def width_out(self) -> int:
        """The width of its states (a Swin's differ from its tokens)."""
        stages = getattr(self.config, "embed_dim_per_stage", None)  # of a Hiera
        width: Any = getattr(self.config, "hidden_size", None) or getattr(
            self.config, "dim", self.theta.width
        )
        return int(stages[-1] if stages else width)

    @property
    def merges(self) -> int:
        """How often the body merges pairs of rows and of columns of its grid (Swin, Hiera)."""
        stages = getattr(self.config, "depths", None) or getattr(self.config, "blocks_per_stage", None)
        return len(stages or [0]) - 1

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all its weights by name."""
        digest = hashlib.sha256()
        for name, value in sorted(self.loaded.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def body(self) -> Body:
        """Return a body of its own with the pretrained weights."""
        door = _door_of(self.loaded.model, self.name)
        # what embeds is shared and not copied
        shared = {id(door.module): door.module} if door.key else {}
        whole = door.tower if door.tower is door.holder else self.loaded.model
        return Body(copy.deepcopy(whole, shared), self.name)

    def scratch_body(self, seed: int) -> Body:
        """Return the same body with random weights, as its own class draws them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = type(self.loaded.model)(copy.deepcopy(self.loaded.config))
        return Body(model.to(next(self.loaded.model.parameters()).dtype), self.name)

    def source_pass(self, inputs: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (u [inputs, tokens, width], mask [inputs, tokens], states) of the backbone's own data."""
        tokens, mask, output = self._run(inputs, whole=True)
        states: Tensor = output.last_hidden_state
        return tokens, mask, states.flatten(1, 2) if states.dim() == 4 else states

    def source_tokens(self, inputs: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return (u, mask) alone: the embedding runs, and the body behind it does not."""
        tokens, mask, _ = self._run(inputs, whole=False)
        return tokens, mask

    @torch.inference_mode()
    def _run(self, inputs: Sequence[Any], *, whole: bool) -> tuple[Tensor, Tensor, Any]:
        """Return (u, mask, output of the model); without `whole` the pass ends where the body would begin."""
        door, embedded = _door_of(self.loaded.model, self.name), list[Any]()

        def seen(module: nn.Module, given: Any, output: Any) -> None:
            embedded.append(output)
            if not whole:
                raise _Embedded

        hook, output = door.module.register_forward_hook(seen), None
        batch = self.loaded.preprocess(inputs)
        try:
            with contextlib.suppress(_Embedded):
                output = self.loaded.run(batch)
        finally:
            hook.remove()
        if not embedded:
            raise CheckpointError("its embedding never runs", where=self.name, fix="choose another backbone")
        tokens = embedded[0][0] if isinstance(embedded[0], tuple) else embedded[0]
        tokens = tokens.flatten(1, 2) if tokens.dim() == 4 else tokens
        given = batch.inputs.get("attention_mask")
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool) if given is None else given.bool()
        return tokens, mask.to(tokens.device), output


class _Embedded(Exception):  # noqa: N818 - not an error: it ends a pass where the body would begin
    pass


def open_backbone(reference: Any, *, trust_remote_code: bool = False) -> Backbone:
    """Open a backbone: a folder, a name, a hub id, a transformers encoder, or one that is open already."""
    if isinstance(reference, Backbone):
        return reference
    by_name = isinstance(reference, str | Path)
    loaded = load_model(
        str(find_model(reference)) if by_name else reference, trust_remote_code=trust_remote_code
    )
    if loaded.config is None or not hasattr(loaded.config, "model_type"):
        raise CheckpointError(
            "it is no transformers encoder", where=loaded.name, fix="give a model folder such as BERT's"
        )
    sound = _door_of(loaded.model, loaded.name).reads == "audio" if loaded.encoder_decoder else False
    if (loaded.encoder_decoder and not sound) or loaded.causal:
        raise CheckpointError(
            f"a {loaded.config.model_type} is a decoder, and adapt needs an encoder",
            where=loaded.name,
            fix=f"choose {KNOWN}",
        )
    return Backbone(str(reference) if by_name else loaded.name, loaded, _theta(loaded))


def _theta(loaded: LoadedModel) -> Theta:
    door = _door_of(loaded.model, loaded.name)
    module, config = door.module, door.tower.config
    if door.reads == "audio":
        places = cast(nn.Embedding, module.embed_positions).weight.detach()
        width = places.shape[1]
        return Theta(
            width, None, None, 1e-5, places.clone(), torch.zeros(0, width), None, None, None, "audio"
        )
    norm, patch = _first(module, nn.LayerNorm), _first(module, nn.Conv2d)
    words = getattr(module, "word_embeddings", None) or _first(module, nn.Embedding)
    width = int(patch.out_channels if patch is not None else words.embedding_dim if words is not None else 0)
    prefix, table = _places(module, width, vision=patch is not None)
    if not width or width != _body_width(config, width):
        raise CheckpointError(
            "its embeddings have another width than its blocks, or none that can be seen",
            where=loaded.name,
            fix=f"choose {KNOWN}",
        )
    sizes = [getattr(part, "image_size", None) for part in (loaded.config, config)]
    size = (sizes[0] or sizes[1]) if patch is not None else None
    image = None if size is None else (size, size) if isinstance(size, int) else (size[0], size[1])
    windows = getattr(config, "window_size_per_stage", None)
    return Theta(
        width,
        None if norm is None else norm.weight.detach().clone(),
        None if norm is None or norm.bias is None else norm.bias.detach().clone(),
        1e-5 if norm is None else float(norm.eps),
        None if table is None else table.clone(),
        prefix.clone(),
        None if patch is None else _strided(patch),
        None if patch is None or patch.bias is None else patch.bias.detach().clone(),
        image,
        door.reads,
        math.lcm(int(windows[0]), 2 ** (len(windows) - 1)) if windows and door.key == _PLANE else 0,
    )


def _strided(patch: nn.Conv2d) -> Tensor:
    """Return the filter of a patch as long as its stride: overlapping ones are made smaller."""
    weight = patch.weight.detach()
    if tuple(weight.shape[2:]) == tuple(patch.stride):
        return weight.clone()
    share = weight.shape[2] * weight.shape[3] / (patch.stride[0] * patch.stride[1])
    sides: Any = patch.stride
    return share * functional.interpolate(weight, sides, mode="bilinear", align_corners=False)


def _places(module: nn.Module, width: int, *, vision: bool) -> tuple[Tensor, Tensor | None]:
    """Return the tokens that stand before the patches, positions added, and the positions behind them."""
    parts = [
        [part[0].detach() for name in names if isinstance(part := getattr(module, name, None), Tensor)]
        for names in (("cls_token", "distillation_token"), ("register_tokens",))
    ]
    first, registers = (torch.cat(some) if some else torch.zeros(0, width) for some in parts)
    positions = getattr(module, "position_embeddings", None)
    table: Tensor | None = None
    if isinstance(positions, nn.Embedding):
        # RoBERTa and MPNet count positions from behind the padding index
        behind = 0 if positions.padding_idx is None else positions.padding_idx + 1
        table = positions.weight.detach()[behind:]
    elif positions is not None:
        table = positions.detach()[0]
    if table is not None and len(first) and vision:  # registers have no place of their own
        first, table = first + table[: len(first)], table[len(first) :]
    return torch.cat([first, registers]), table


def _body_width(config: Any, width: int) -> int:
    for name in ("embed_dim", "hidden_size", "dim"):  # a Swin's first stage is narrower than its last
        width_there = getattr(config, name, None)
        if isinstance(width_there, int):
            return width_there
    return width


def _first(module: nn.Module, kind: type[nn.Module]) -> Any:
    return next((part for part in module.modules() if isinstance(part, kind)), None)


def body_from_config(config: Any, name: str) -> Body:
    """Return a body of this shape, for weights that are loaded afterwards."""
    try:
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError) as error:
        raise OptionError(
            f"its config builds no model ({error})", where=name, fix="fit the model again"
        ) from error
    return Body(model, name)
