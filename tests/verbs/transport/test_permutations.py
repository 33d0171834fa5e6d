"""Permutations found from weights: a permuted source is the same function, and a permuted twin is matched
exactly.
"""

import torch

from transship.activations import find_sites
from transship.verbs.transport.permutations import match_units, site_axes


def parameters(model):
    by_name = dict(model.named_parameters())
    return lambda name: by_name[name]


def test_a_permuted_twin_is_matched_unit_by_unit(kit):
    source = kit.tiny_vit()
    twin = kit.permuted_vit(source)
    sites = find_sites(source)
    orders, axes = match_units(sites, parameters(source), parameters(twin), heads=4)
    for site in sites:
        if site.kind != "linear" or site.weight is None:
            continue
        weight = parameters(source)(site.weight)
        groups = axes[site.name]
        if groups.out in orders:
            weight = weight[orders[groups.out]]
        if groups.into in orders:
            weight = weight[:, orders[groups.into]]
        assert torch.equal(weight, parameters(twin)(site.weight)), site.name


def test_segments_give_every_stretch_of_the_stream_its_own_order(kit):
    source, other = kit.tiny_vit(), kit.tiny_vit(seed=6)
    sites = find_sites(source)
    shared, _ = match_units(sites, parameters(source), parameters(other), heads=4)
    segments, _ = match_units(sites, parameters(source), parameters(other), heads=4, residual="segments")
    assert sum("residual" in group for group in shared) == 1
    assert sum("residual" in group for group in segments) == 5
    for order in (*shared.values(), *segments.values()):
        assert torch.equal(order.sort().values, torch.arange(len(order)))


def test_the_draw_of_visits_is_fixed_by_the_seed(kit):
    source, other = kit.tiny_vit(), kit.tiny_vit(seed=6)
    entries = [
        match_units(find_sites(source), parameters(source), parameters(other), heads=4, seed=3)[0]
        for _ in range(2)
    ]
    assert all(torch.equal(entries[0][group], entries[1][group]) for group in entries[0])


def test_matching_raises_the_overlap_of_the_weights(kit):
    source, other = kit.tiny_vit(), kit.tiny_vit(seed=6)
    sites = find_sites(source)
    orders, axes = match_units(sites, parameters(source), parameters(other), heads=4)
    before = after = 0.0
    for site in sites:
        if site.kind == "linear" and site.weight is not None:
            weight, wanted = parameters(source)(site.weight).detach(), parameters(other)(site.weight).detach()
            before += float((weight * wanted).sum())
            groups = axes[site.name]
            weight = weight[orders[groups.out]] if groups.out in orders else weight
            weight = weight[:, orders[groups.into]] if groups.into in orders else weight
            after += float((weight * wanted).sum())
    assert after > before + 1.0


def test_a_norm_stands_on_the_stretch_that_it_reads(kit):
    site = next(
        find_site for find_site in find_sites(kit.tiny_vit()) if find_site.name == "vision.1.norm.mlp_in"
    )
    assert site_axes(site, "segments", 2).out == "vision.residual.3"
    assert site_axes(site, "shared", 2).out == "vision.residual"


def test_a_head_reads_the_units_of_its_pooler_not_the_stream(kit):
    """A model whose pooler's units stand in another order: the same function, and the update follows them."""
    import copy

    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    base = kit.spread(BertForSequenceClassification(config), 1).eval()
    order = torch.randperm(32, generator=torch.Generator().manual_seed(3))

    def turned(model):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            dense = twin.bert.pooler.dense
            dense.weight.copy_(dense.weight[order])
            dense.bias.copy_(dense.bias[order])
            twin.classifier.weight.copy_(twin.classifier.weight[:, order])
        return twin

    twin = turned(base)
    sites = find_sites(base)
    orders, axes = match_units(sites, parameters(base), parameters(twin), heads=4)
    assert axes["text.head"].into == axes["text.pooler"].out
    assert torch.equal(orders["text.pooler"], order)
    assert torch.equal(orders["text.residual"], torch.arange(32))


def test_a_masked_language_models_decoder_is_not_taken_for_a_reader_of_the_stream(kit):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    model = kit.spread(BertForMaskedLM(config), 1)
    _, axes = match_units(find_sites(model), parameters(model), parameters(model), heads=4)
    tail = {name.partition(":")[2]: each for name, each in axes.items() if "head.transform" in name}
    assert tail["cls.predictions.transform.dense"].into == "text.residual"
    for name, right in tail.items():
        assert right.out is None
        if name != "cls.predictions.transform.dense":
            assert right.into is None, name
