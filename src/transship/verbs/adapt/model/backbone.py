"""The pretrained model in two parts: θ, its own embedding of words or patches, and the body that reads
tokens.

The body starts from embedded tokens u [inputs, tokens, width], whatever made them: the module called
`embeddings` is replaced by one that hands on what it is given. That works for every encoder of transformers
that keeps its embeddings in a module of that name (BERT, RoBERTa, MPNet, DistilBERT, ViT, Swin and their
kin), so there is no code per architecture; what a family needs besides is read from the module's own parts.
"""

import contextlib
import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AutoModel

from transship.activations import LoadedModel, load_model
from transship.activations.families import WINDOWED
from transship.data import find_model
from transship.errors import CheckpointError, OptionError

Reads = Literal["text", "vision"]


class _Given(nn.Module):
    """Stands where the embeddings were and hands on the tokens that are given."""

    def __init__(self, patches: nn.Module | None, gridded: bool) -> None:
        super().__init__()
        # ViT looks up the dtype of its patch filter before it calls the embeddings
        object.__setattr__(self, "patch_embeddings", patches)
        self.gridded, self.grid = gridded, (0, 0)

    def forward(self, *positional: Any, **named: Any) -> Any:
        """Return the only tensor of floats among the arguments, with its grid where a body wants one."""
        given = [*named.values(), *positional]
        tokens = next(
            part
            for part in given
            if isinstance(part, Tensor) and part.is_floating_point() and part.dim() == 3
        )
        return (tokens, self.grid) if self.gridded else tokens


class Body(nn.Module):
    """A transformer without its embeddings: tokens in, states out.

    Attributes:
        model: the encoder, its embeddings replaced.
        reads: what the encoder was trained on.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        holder, key = _embeddings_of(model, name)
        original = getattr(holder, key)
        config: Any = model.config
        self.gridded = getattr(config, "model_type", "") in WINDOWED
        self._given = [_Given(getattr(original, "patch_embeddings", None), self.gridded)]
        setattr(holder, key, self._given[0])
        if getattr(model, "pooler", None) is not None:
            setattr(model, "pooler", None)  # noqa: B010 - mypy takes a module's attributes for modules
        self.model = model
        self.reads: Reads = "vision" if _first(original, nn.Conv2d) is not None else "text"
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
        if self.reads == "text":
            output = self.model(inputs_embeds=tokens, attention_mask=None if mask is None else mask.long())
        else:
            self._given[0].grid = grid or (1, tokens.shape[1])
            output = self.model(pixel_values=tokens)
        states: Tensor = output.last_hidden_state
        return states


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
        """What it was trained on."""
        return "text" if self.theta.patch_filter is None else "vision"

    @property
    def width_out(self) -> int:
        """The width of its states (a Swin's differ from its tokens)."""
        config = self.loaded.config
        width: Any = getattr(config, "hidden_size", None) or getattr(config, "dim", self.theta.width)
        return int(width)

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
        return Body(_without_words(self.loaded.model, self.name), self.name)

    def scratch_body(self, seed: int) -> Body:
        """Return the same body with random weights, as its own class draws them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = type(self.loaded.model)(copy.deepcopy(self.loaded.config))
        return Body(model.to(next(self.loaded.model.parameters()).dtype), self.name)

    def source_pass(self, inputs: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (u [inputs, tokens, width], mask [inputs, tokens], states) of the backbone's own data."""
        tokens, mask, output = self._run(inputs, whole=True)
        return tokens, mask, output.last_hidden_state

    def source_tokens(self, inputs: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return (u, mask) alone: the embedding runs, and the body behind it does not."""
        tokens, mask, _ = self._run(inputs, whole=False)
        return tokens, mask

    @torch.inference_mode()
    def _run(self, inputs: Sequence[Any], *, whole: bool) -> tuple[Tensor, Tensor, Any]:
        """Return (u, mask, output of the model); without `whole` the pass ends where the body would begin."""
        holder, key = _embeddings_of(self.loaded.model, self.name)
        embedded: list[Any] = []

        def seen(module: nn.Module, given: Any, output: Any) -> None:
            embedded.append(output)
            if not whole:
                raise _Embedded

        hook, output = getattr(holder, key).register_forward_hook(seen), None
        batch = self.loaded.preprocess(inputs)
        try:
            with contextlib.suppress(_Embedded):
                output = self.loaded.run(batch)
        finally:
            hook.remove()
        if not embedded:
            raise CheckpointError("its embedding never runs", where=self.name, fix="choose another backbone")
        tokens = embedded[0][0] if isinstance(embedded[0], tuple) else embedded[0]
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
    if loaded.encoder_decoder or loaded.causal:
        raise CheckpointError(
            f"a {loaded.config.model_type} is a decoder, and adapt needs an encoder",
            where=loaded.name,
            fix="choose BERT, RoBERTa, MPNet, DistilBERT, ViT, Swin or one of their kin",
        )
    return Backbone(str(reference) if by_name else loaded.name, loaded, _theta(loaded))


def _theta(loaded: LoadedModel) -> Theta:
    holder, key = _embeddings_of(loaded.model, loaded.name)
    module = getattr(holder, key)
    norm, patch = _first(module, nn.LayerNorm), _first(module, nn.Conv2d)
    words = getattr(module, "word_embeddings", None)
    prefix_parts = [
        part[0].detach()
        for part in (getattr(module, name, None) for name in ("cls_token", "distillation_token"))
        if part is not None
    ]
    positions = getattr(module, "position_embeddings", None)
    table: Tensor | None
    if isinstance(positions, nn.Embedding):
        # RoBERTa and MPNet count positions from behind the padding index
        first = 0 if positions.padding_idx is None else positions.padding_idx + 1
        table = positions.weight.detach()[first:]
    else:
        table = None if positions is None else positions.detach()[0]
    count = sum(len(part) for part in prefix_parts)
    width = int(patch.out_channels if patch is not None else words.embedding_dim if words is not None else 0)
    prefix = torch.cat(prefix_parts) if prefix_parts else torch.zeros(0, width)
    if table is not None and count and patch is not None:
        prefix, table = prefix + table[:count], table[count:]
    if not width or width != _body_width(loaded, width):
        raise CheckpointError(
            "its embeddings have another width than its blocks, or none that can be seen",
            where=loaded.name,
            fix="choose BERT, RoBERTa, MPNet, DistilBERT, ViT, Swin or one of their kin",
        )
    size = getattr(loaded.config, "image_size", None) if patch is not None else None
    image = None if size is None else (size, size) if isinstance(size, int) else (size[0], size[1])
    return Theta(
        width,
        None if norm is None else norm.weight.detach().clone(),
        None if norm is None else norm.bias.detach().clone(),
        1e-5 if norm is None else float(norm.eps),
        None if table is None else table.clone(),
        prefix.clone(),
        None if patch is None else patch.weight.detach().clone(),
        None if patch is None or patch.bias is None else patch.bias.detach().clone(),
        image,
    )


def _body_width(loaded: LoadedModel, width: int) -> int:
    config = loaded.config
    for name in ("embed_dim", "hidden_size", "dim"):  # a Swin's first stage is narrower than its last
        width_there = getattr(config, name, None)
        if isinstance(width_there, int):
            return width_there
    return width


def _embeddings_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds `embeddings`, and the attribute's name: the shallowest of the model."""
    paths = sorted(
        (path for path, _ in model.named_modules() if path.rpartition(".")[2] == "embeddings"),
        key=lambda path: path.count("."),
    )
    if not paths:
        raise CheckpointError(
            f"{type(model).__name__} has no module `embeddings` that other tokens could stand for",
            where=name,
            fix="choose BERT, RoBERTa, MPNet, DistilBERT, ViT, Swin or one of their kin",
        )
    parent, _, key = paths[0].rpartition(".")
    return model.get_submodule(parent), key


def _without_words(model: nn.Module, name: str) -> nn.Module:
    """Return a deep copy of the model whose table of words is shared and not copied."""
    holder, key = _embeddings_of(model, name)
    original = getattr(holder, key)
    return copy.deepcopy(model, {id(original): original})


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
