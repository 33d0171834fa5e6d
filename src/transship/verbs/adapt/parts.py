"""The parts of a fit: backbone, source, head, network, and the device that they run on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transship import parallel
from transship.data import Dataset, find_model
from transship.numerics import derive_seed
from transship.progress import Progress
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedders import Shape, shape_for
from transship.verbs.adapt.model.heads import HeadShape, Predictor
from transship.verbs.adapt.model.network import Network, new_embedder
from transship.verbs.adapt.plan import Problem
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.source.model import Source, checked_proxy, open_source
from transship.verbs.adapt.train.protocol import AdaptMethod


@dataclass(frozen=True, eq=False)
class Opened:
    """What a fit opens before anything runs, so that what is missing is said first.

    Attributes:
        backbone: the pretrained model.
        shape: how φ cuts these inputs into tokens.
        proxy: the source's data, or None for methods that need none.
    """

    backbone: Backbone
    shape: Shape
    proxy: Dataset | None


def opened(problem: Problem) -> Opened:
    """Open backbone and proxy; nothing is computed yet."""
    settings = problem.settings
    backbone = backbone_of(settings)
    shape = embedder_shape_of(problem, backbone)
    proxy = checked_proxy(settings.proxy, backbone) if problem.method.needs_source else None
    return Opened(backbone, shape, proxy)


def backbone_of(settings: Settings) -> Backbone:
    """Open the backbone that the settings name or hold."""
    reference = settings.backbone
    if isinstance(reference, str | Path):
        found = open_backbone(str(find_model(reference)), trust_remote_code=settings.trust_remote_code)
        found.loaded.name = str(reference)
        return found
    return open_backbone(reference)


def source_of(settings: Settings, found: Opened, watch: Progress) -> Source | None:
    """Return the source's features and head, made once; None for methods that need none."""
    if found.proxy is None:
        return None
    cache = None if settings.cache is None else Path(settings.cache)
    return open_source(
        found.backbone,
        found.proxy,
        items=settings.proxy_items,
        omega=settings.omega,
        seed=settings.seed,
        cache=cache,
        watch=lambda done, total: watch("proxy", done, total),
    )


def head_shape_of(
    problem: Problem, predictor: Predictor, backbone: Backbone, shape: Shape, source: Source | None
) -> HeadShape:
    """Return what a head of that kind is built from."""
    targets, grid = problem.targets, shape.grid
    for _ in range(len(getattr(backbone.loaded.config, "depths", None) or [0]) - 1):
        grid = (-(-grid[0] // 2), -(-grid[1] // 2))  # a Swin merges pairs of rows and columns between stages
    return HeadShape(
        predictor,
        backbone.width_out,
        targets.outputs,
        targets.size,
        grid,
        shape.prefix,
        source.classes if source is not None and predictor == "transport" else 0,
    )


def head_of(shape: HeadShape, seed: int) -> nn.Module:
    """Return a head as it starts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        return shape.build()


def embedder_shape_of(problem: Problem, backbone: Backbone) -> Shape:
    """Return how φ cuts these inputs into tokens."""
    settings, inputs = problem.settings, problem.inputs
    options: Any = {"tokens": settings.tokens, "patch": settings.patch, "stem": settings.stem}
    return shape_for(backbone.theta, inputs.size, inputs.channels, **options)


def network_of(
    backbone: Backbone, shape: Shape, head_shape: HeadShape, method: AdaptMethod, seed: int
) -> Network:
    """Return φ, body and head as they start: pretrained where they can be, or all of them random."""
    theta, pretrained = backbone.theta, method.pretrained
    embedder = new_embedder(shape, theta, derive_seed(seed, "embedder"), pretrained=pretrained)
    body = backbone.body() if pretrained else backbone.scratch_body(derive_seed(seed, "body"))
    return Network(embedder, body, head_of(head_shape, seed))


def accelerator_of(settings: Settings) -> Any:
    """Return accelerate's handle on the device, the precision and the other processes."""
    from accelerate import Accelerator, PartialState  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    parallel.join()
    told = None if settings.device == "auto" else torch.device(settings.device)
    # accelerate keeps one state per process, and a second fit may want another precision or device
    AcceleratorState._reset_state(reset_partial_state=parallel.size() == 1)
    # of several processes accelerate finds a CPU's only when told that there is nothing else
    cpu = not torch.accelerator.is_available() if told is None else told.type == "cpu"
    if told is not None and parallel.size() == 1:
        PartialState(cpu=cpu).device = told  # it has no argument for one device of several
    return Accelerator(cpu=cpu, mixed_precision=settings.precision)
