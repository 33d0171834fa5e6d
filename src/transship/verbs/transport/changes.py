"""The source's changes as a pair of sites sees them: split, turned and interpolated over depth."""

from torch import Tensor

from transship.activations import LoadedModel, SitePair, read_bias, read_weight
from transship.verbs.transport.source_update import SourceUpdate


class Changes:
    """Reads τ_A for pairs of sites."""

    def __init__(self, source: LoadedModel, target: LoadedModel, update: SourceUpdate) -> None:
        self.source, self.target, self.update = source, target, update
        self.parameters = dict(target.model.named_parameters())
        self.source_shapes = {name: tuple(tensor.shape) for name, tensor in source.model.named_parameters()}

    def names(self, pair: SitePair, bias: bool) -> list[str]:
        found = [site.bias if bias else site.weight for site, _ in pair.sources]
        return [name for name in found if name is not None]

    def of(self, pair: SitePair, vector: bool, *, flat: bool = False) -> Tensor:
        """Return Σ weight · τ_A over the pair's source sites: layer space is linear."""
        total: Tensor | None = None
        for site, weight in pair.sources:
            name = site.bias if vector else site.weight
            if name is None or name not in self.update:
                continue
            change = self.update.dense(name)
            if not flat or site.kind == "conv":
                change = read_bias(site, change) if vector or change.ndim < 2 else read_weight(site, change)
            total = change * weight if total is None else total + change * weight
        assert total is not None
        return total
