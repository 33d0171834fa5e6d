"""Multi-task training: one backbone on the labelled inputs of all tasks, before their own heads."""

import torch
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.errors import NumericalError, OptionError
from transship.numerics import derive_seed
from transship.verbs.merge.fusion.protocol import Vector
from transship.verbs.merge.learning.needs import check_classes, class_logits
from transship.verbs.merge.methods._learned import Learner, Occasion


def train(occasion: Occasion, steps: int, learning_rate: float, batch_size: int, *, average: bool) -> Vector:
    """Return θ − θ_0 after Adam on Σ_tasks cross-entropy, one task's graph at a time.

    Processes share the rows of each batch.
    """
    seens = [model.seen() for model in occasion.models]
    labels = [_labels(model, occasion) for model in occasion.models]
    updates = [model.update() for model in occasion.models] if average else []
    weights = {}
    for name, tensor in occasion.base.items():
        start = tensor.clone()
        for update in updates:
            start += update[name] / len(updates)
        weights[name] = start.requires_grad_()
    optimiser = torch.optim.Adam(weights.values(), lr=learning_rate)
    draws = [
        seen.draws(batch_size, derive_seed(occasion.seed, "multitask", place))
        for place, seen in enumerate(seens)
    ]
    for step in range(steps):
        occasion.watch(step, steps, "training")
        optimiser.zero_grad(set_to_none=True)
        for seen, classes, stream in zip(seens, labels, draws, strict=True):
            rows = next(stream)
            own = list(parallel.share(rows))
            if not own:
                continue
            with torch.enable_grad():
                outputs = class_logits(seen.read(weights, seen.batch(own)).outputs, seen, "multitask")
                loss = functional.cross_entropy(outputs, classes[own].to(outputs.device))
                loss = loss * (len(own) / len(rows))
            if not torch.isfinite(loss):
                raise NumericalError(
                    f"the loss became {float(loss)} in step {step + 1}",
                    where=seen.name,
                    fix="choose a smaller learning rate",
                )
            loss.backward()  # type: ignore[no-untyped-call]
        parallel.add_gradients(weights.values())
        optimiser.step()
    return {name: tensor.detach() - occasion.base[name] for name, tensor in weights.items()}


def _labels(model: Learner, occasion: Occasion) -> Tensor:
    """Return a task's classes, one for each input and within its head."""
    found = model.labels()
    if found is None:
        raise OptionError(
            "multitask trains on labels, and the data has no labels", where=model.name, fix="name them"
        )
    seen = model.seen()
    classes = check_classes(seen, dict(occasion.base), "multitask")
    if len(found) != seen.count or int(found.min()) < 0 or int(found.max()) >= classes:
        raise OptionError(
            f"the data has label {int(found.max())} in {len(found)} rows, and the head {classes} classes "
            f"for {seen.count} inputs",
            where=model.name,
            fix="give the data that the model was trained on",
        )
    return found.long()
