"""The methods on one layer: dense references of a few lines, exact cases, and the contract that all share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transship.errors import MatchError, OptionError
from transship.geometry import Moments, ridge
from transship.registry import build_method, describe, method_names
from transship.verbs.transport import transport
from transship.verbs.transport.methods.gradfix import Gradfix
from transship.verbs.transport.methods.gradient import Gradient
from transship.verbs.transport.methods.identity import Identity
from transship.verbs.transport.methods.pad import Pad
from transship.verbs.transport.methods.pinv import Pinv
from transship.verbs.transport.methods.pinv_tikhonov import PinvTikhonov
from transship.verbs.transport.methods.random import Random
from transship.verbs.transport.methods.random_aligned import RandomAligned
from transship.verbs.transport.methods.theseus import Theseus
from transship.verbs.transport.methods.transfusion import Transfusion
from transship.verbs.transport.protocol import LayerPair, SidedMethod, move_factors

NAMES = method_names("transport")


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_pair(
    in_a: int, out_a: int, in_b: int, out_b: int, *, rows: int = 60, seed: int = 0
) -> tuple[LayerPair, dict[str, Tensor]]:
    """A layer of two models over the same rows, and the rows themselves for dense references."""
    widths = {"in_a": in_a, "out_a": out_a, "in_b": in_b, "out_b": out_b, "grad_a": out_a, "grad_b": out_b}
    acts = {name: gaussian(rows, width, seed=seed * 10 + i) for i, (name, width) in enumerate(widths.items())}
    square = out_a == out_b and in_a == in_b
    pair = LayerPair(
        name="text.0.mlp.in",
        shape=(out_b, in_b),
        inputs=Moments.of(acts["in_a"], acts["in_b"], name="inputs"),
        outputs=Moments.of(acts["out_a"], acts["out_b"], name="outputs"),
        gradients=Moments.of(acts["grad_a"], acts["grad_b"], name="gradients"),
        descent=gaussian(out_b, in_b, seed=seed + 77),
        input_order=torch.randperm(in_b, generator=torch.Generator().manual_seed(1)) if square else None,
        output_order=torch.randperm(out_b, generator=torch.Generator().manual_seed(2)) if square else None,
        seed=seed,
    )
    return pair, acts


def for_vector(pair: LayerPair) -> LayerPair:
    """The same layer when its bias is moved: the descent is the bias' own."""
    parts = {
        name: getattr(pair, name)
        for name in ("inputs", "outputs", "gradients", "input_order", "output_order")
    }
    return LayerPair(
        name=pair.name, shape=pair.shape, descent=gaussian(pair.shape[0], seed=5), seed=pair.seed, **parts
    )


def polar_of(cross: Tensor) -> Tensor:
    u, _, vt = torch.linalg.svd(cross, full_matrices=False)
    return u @ vt


def test_theseus_is_the_product_of_two_dense_procrustes_maps():
    pair, acts = layer_pair(5, 4, 8, 7)
    update = gaussian(4, 5, seed=9)
    expected = polar_of(acts["out_a"].T @ acts["out_b"]).T @ update @ polar_of(acts["in_a"].T @ acts["in_b"])
    torch.testing.assert_close(Theseus().transport(update, pair), expected, atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), wider_in=st.integers(0, 5), wider_out=st.integers(0, 5))
def test_theseus_keeps_the_norm_towards_a_wider_model(seed: int, wider_in: int, wider_out: int):
    pair, _ = layer_pair(5, 4, 5 + wider_in, 4 + wider_out, seed=seed)
    update = gaussian(4, 5, seed=seed + 1)
    moved = Theseus().transport(update, pair)
    assert abs(float(moved.norm() - update.norm())) < 1e-10 * float(update.norm())


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), shrink=st.integers(1, 3))
def test_theseus_never_grows_an_update_towards_a_narrower_model(seed: int, shrink: int):
    pair, _ = layer_pair(6, 5, 6 - shrink, 5 - shrink, seed=seed)
    update = gaussian(5, 6, seed=seed + 1)
    assert float(Theseus().transport(update, pair).norm()) <= float(update.norm()) * (1 + 1e-12)


@pytest.mark.parametrize(("width_a", "width_b"), [(4, 7), (7, 4), (5, 5)])
def test_maps_have_orthonormal_rows_or_columns(width_a: int, width_b: int):
    pair, _ = layer_pair(width_a, width_a, width_b, width_b)
    for method in (Theseus(), Gradient(), Gradient(blend=1.0)):
        for found in (method.input_map(pair), method.output_map(pair)):
            matrix = found.matrix if width_a <= width_b else found.matrix.T
            identity = torch.eye(min(width_a, width_b), dtype=torch.float64)
            torch.testing.assert_close(matrix @ matrix.T, identity, atol=1e-12, rtol=0)


def test_one_model_gives_its_own_update_back():
    rows_in, rows_out, grad = gaussian(60, 6), gaussian(60, 5, seed=1), gaussian(60, 5, seed=2)
    pair = LayerPair(
        "same", (5, 6), Moments.of(rows_in, rows_in), Moments.of(rows_out, rows_out), Moments.of(grad, grad)
    )
    update = gaussian(5, 6, seed=3)
    for method in (
        Theseus(),
        Theseus(centre=True),
        Gradient(),
        Gradient(blend=1.0),
        Pinv(),
        Pad(),
        Identity(),
    ):
        torch.testing.assert_close(method.transport(update, pair), update, atol=1e-10, rtol=0)


def test_a_rotated_twin_gets_the_rotated_update():
    turn_in, turn_out = polar_of(gaussian(6, 6)), polar_of(gaussian(5, 5, seed=1))
    rows_in, rows_out = gaussian(60, 6, seed=2), gaussian(60, 5, seed=3)
    pair = LayerPair(
        "twin", (5, 6), Moments.of(rows_in, rows_in @ turn_in), Moments.of(rows_out, rows_out @ turn_out)
    )
    update = gaussian(5, 6, seed=4)
    torch.testing.assert_close(
        Theseus().transport(update, pair), turn_out.T @ update @ turn_in, atol=1e-10, rtol=0
    )


def test_maps_do_not_depend_on_row_order_duplication_or_a_positive_scale():
    a, b = gaussian(50, 5), gaussian(50, 8, seed=1)
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    plain = Theseus().input_map(LayerPair("x", (1, 8), Moments.of(a, b))).matrix
    for rows_a, rows_b in (
        (a[shuffled], b[shuffled]),
        (torch.cat([a, a]), torch.cat([b, b])),
        (3 * a, 0.5 * b),
    ):
        other = Theseus().input_map(LayerPair("x", (1, 8), Moments.of(rows_a, rows_b))).matrix
        torch.testing.assert_close(other, plain, atol=1e-12, rtol=0)


def test_moments_merged_from_shards_give_the_maps_of_one_pass():
    a, b = gaussian(90, 6), gaussian(90, 9, seed=1)
    whole = Theseus().input_map(LayerPair("x", (1, 9), Moments.of(a, b)))
    merged = Moments.of(a[:31], b[:31]) + Moments.of(a[31:], b[31:])
    parts = Theseus().input_map(LayerPair("x", (1, 9), merged))
    torch.testing.assert_close(parts.matrix, whole.matrix, atol=1e-10, rtol=0)
    assert parts.rank == whole.rank


@pytest.mark.parametrize("rows", [3, 300])
def test_one_or_two_threads_give_the_same_maps_and_rank(rows: int):
    a, b = gaussian(rows, 40), gaussian(rows, 64, seed=1)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(Theseus().input_map(LayerPair("x", (1, 64), Moments.of(a, b))))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0].matrix, found[1].matrix, atol=1e-8, rtol=0)
    assert found[0].rank == found[1].rank == min(rows, 40)


def test_unseen_directions_are_dropped_and_the_rank_says_so():
    a = gaussian(60, 6)
    a[:, 4:] = 0
    pair = LayerPair("x", (5, 6), Moments.of(a, a), Moments.of(gaussian(60, 5), gaussian(60, 5)))
    update = gaussian(5, 6, seed=3)
    moved = Theseus().transport(update, pair)
    assert Theseus().input_map(pair).rank == 4
    torch.testing.assert_close(moved[:, :4], update[:, :4], atol=1e-10, rtol=0)
    assert float(moved[:, 4:].abs().max()) == 0
    full = Theseus(complete="identity").transport(update, pair)
    torch.testing.assert_close(full, update, atol=1e-10, rtol=0)


def test_pinv_solves_the_papers_least_squares_problem():
    pair, acts = layer_pair(5, 4, 3, 2)
    update = gaussian(4, 5, seed=9)
    # Eq. (4) as one dense system: vec(H_in τᵀ H_outᵀ) = (H_out ⊗ H_in) vec(τᵀ)
    gram = acts["in_a"] @ update.T @ acts["out_a"].T
    solution = torch.linalg.pinv(acts["in_b"]) @ gram @ torch.linalg.pinv(acts["out_b"]).T
    torch.testing.assert_close(Pinv().transport(update, pair), solution.T, atol=1e-10, rtol=0)


def test_tikhonov_solves_the_penalised_problem():
    pair, acts = layer_pair(5, 4, 3, 2)
    update = gaussian(4, 5, seed=9)
    gram = acts["in_a"] @ update.T @ acts["out_a"].T
    second_in, second_out = acts["in_b"].T @ acts["in_b"], acts["out_b"].T @ acts["out_b"]
    penalty = 0.1 * second_in.diagonal().mean() * second_out.diagonal().mean()
    system = torch.kron(second_out, second_in) + penalty * torch.eye(6, dtype=torch.float64)
    right = (acts["in_b"].T @ gram @ acts["out_b"]).T.reshape(-1)
    expected = torch.linalg.solve(system, right).reshape(2, 3)
    torch.testing.assert_close(PinvTikhonov(penalty=0.1).transport(update, pair), expected, atol=1e-9, rtol=0)


def test_tikhonov_per_side_replaces_each_inverse():
    pair, acts = layer_pair(5, 4, 3, 2)
    update = gaussian(4, 5, seed=9)
    inverses = []
    for side in ("in", "out"):
        second = acts[f"{side}_b"].T @ acts[f"{side}_b"]
        inverses.append(
            torch.linalg.inv(second + 0.1 * second.diagonal().mean() * torch.eye(len(second)).double())
        )
    expected = (
        inverses[1] @ acts["out_b"].T @ acts["out_a"] @ update @ acts["in_a"].T @ acts["in_b"] @ inverses[0]
    )
    method = PinvTikhonov(penalty=0.1, form="per-side")
    torch.testing.assert_close(method.transport(update, pair), expected, atol=1e-10, rtol=0)


def test_a_tiny_penalty_makes_tikhonov_the_pseudo_inverse():
    pair, _ = layer_pair(5, 4, 3, 2)
    update = gaussian(4, 5, seed=9)
    for form in ("exact", "per-side"):
        moved = PinvTikhonov(penalty=1e-13, form=form).transport(update, pair)
        torch.testing.assert_close(moved, Pinv().transport(update, pair), atol=1e-8, rtol=0)


def test_pad_lays_the_update_into_the_corner_or_cuts_it():
    update = gaussian(3, 4)
    wide = Pad().transport(update, layer_pair(4, 3, 6, 5)[0])
    assert torch.equal(wide[:3, :4], update)
    assert float(wide.norm()) == pytest.approx(float(update.norm()))
    assert torch.equal(Pad().transport(update, layer_pair(4, 3, 2, 2)[0]), update[:2, :2])


def test_gradient_takes_its_output_map_from_gradients():
    pair, acts = layer_pair(5, 4, 8, 7)
    update = gaussian(4, 5, seed=9)
    expected = (
        polar_of(acts["grad_a"].T @ acts["grad_b"]).T @ update @ polar_of(acts["in_a"].T @ acts["in_b"])
    )
    torch.testing.assert_close(Gradient(blend=1.0).transport(update, pair), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        Gradient(blend=0.0).transport(update, pair), Theseus().transport(update, pair), atol=1e-12, rtol=0
    )


def test_a_blend_weighs_both_moments_by_their_nuclear_norms():
    pair, acts = layer_pair(5, 4, 8, 7)
    sides = [acts["out_a"].T @ acts["out_b"], acts["grad_a"].T @ acts["grad_b"]]
    blended = sum(
        share * side / torch.linalg.svdvals(side).sum() for share, side in zip((0.7, 0.3), sides, strict=True)
    )
    torch.testing.assert_close(
        Gradient(blend=0.3).output_map(pair).matrix, polar_of(blended), atol=1e-12, rtol=0
    )


def test_gradfix_keeps_what_goes_downhill():
    pair, _ = layer_pair(4, 3, 4, 3)
    update = gaussian(3, 4, seed=4)
    update[0, 0] = 0.0
    moved = Gradfix().transport(update, pair)
    expected = torch.where(update * pair.descent > 0, update, torch.zeros_like(update))
    assert torch.equal(moved, expected)
    # a first-order promise: the masked update lowers the loss
    assert float((moved * -pair.descent).sum()) < 0
    forced = Gradfix(force=True).transport(update, pair)
    assert torch.equal(forced, update.abs() * torch.sign(pair.descent))


def test_gradfix_control_masks_noise_of_the_same_norm():
    pair, _ = layer_pair(4, 3, 4, 3)
    update = gaussian(3, 4, seed=4)
    control = Gradfix(control=True).transport(update, pair)
    assert bool(((control == 0) | (torch.sign(control) == torch.sign(pair.descent))).all())
    assert not torch.equal(control, Gradfix().transport(update, pair))


def test_transfusion_permutes_rows_and_columns():
    pair, _ = layer_pair(4, 3, 4, 3)
    update = gaussian(3, 4, seed=4)
    moved = Transfusion().transport(update, pair)
    assert torch.equal(moved, update[pair.output_order][:, pair.input_order])
    assert torch.equal(Transfusion().transport_vector(update[:, 0], pair), update[pair.output_order, 0])


def test_random_updates_have_the_layers_norm_and_do_not_read_the_update():
    pair, _ = layer_pair(4, 3, 7, 5)
    one, other = gaussian(3, 4, seed=1), gaussian(3, 4, seed=2)
    other *= one.norm() / other.norm()
    for method in (Random(), RandomAligned()):
        moved = method.transport(one, pair)
        assert float(moved.norm()) == pytest.approx(float(one.norm()), rel=1e-10)
        torch.testing.assert_close(moved, method.transport(other, pair))
    turned = RandomAligned().transport(one, pair)
    t_in = Theseus().input_map(pair).matrix
    # it stays in the aligned space
    torch.testing.assert_close(turned @ t_in.T @ t_in, turned, atol=1e-12, rtol=0)


def test_carry_fits_the_dense_ridge_head_onto_the_sources_outputs():
    features, outputs = gaussian(200, 6), gaussian(200, 3, seed=1)
    head = ridge(Moments.of(features, outputs), 0.1)
    x, y = features - features.mean(0), outputs - outputs.mean(0)
    weight = torch.linalg.solve(x.T @ x + 0.1 * (x.T @ x).diagonal().mean() * torch.eye(6).double(), x.T @ y)
    expected = x @ weight + outputs.mean(0)
    torch.testing.assert_close(head.apply(features), expected, atol=1e-10, rtol=0)


def test_carry_through_a_ridge_map_of_features_is_ridge_onto_the_outputs():
    source, target, weight = gaussian(200, 4), gaussian(200, 6, seed=1), gaussian(4, 3, seed=2)
    direct = ridge(Moments.of(target, source @ weight), 0.05)
    through = ridge(Moments.of(target, source), 0.05)
    torch.testing.assert_close(direct.matrix, through.matrix @ weight, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_keeps_the_contract(name: str):
    method = build_method("transport", name)
    square = method.needs.same_shape
    pair, _ = layer_pair(*((4, 3, 4, 3) if square else (4, 3, 6, 5)))
    update = gaussian(3, 4, seed=1).float()
    before = update.clone()
    moved = method.transport(update, pair)
    assert moved.shape == pair.shape
    assert moved.dtype == update.dtype
    assert torch.equal(update, before), "the update is not touched"
    assert torch.equal(moved, method.transport(update, pair)), "two calls agree"
    assert float(method.transport(torch.zeros_like(update), pair).abs().max()) == 0
    vector = method.transport_vector(update[:, 0], for_vector(pair))
    assert vector.shape == (pair.shape[0],)
    assert vector.dtype == update.dtype


@pytest.mark.parametrize("name", NAMES)
def test_every_method_explains_itself(name: str):
    card = describe("transport", name)
    assert card.paper
    assert all(parameter.help for parameter in card.parameters)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if isinstance(build_method("transport", name), SidedMethod)]
)
def test_factors_move_one_by_one_and_keep_the_rank(name: str):
    method = build_method("transport", name)
    pair, _ = layer_pair(*((6, 5, 6, 5) if method.needs.same_shape else (6, 5, 9, 8)))
    up, down = gaussian(5, 2), gaussian(2, 6, seed=1)
    moved = move_factors(up, down, method.input_map(pair), method.output_map(pair))
    assert moved[0].shape[1] == moved[1].shape[0] == 2
    torch.testing.assert_close(moved[0] @ moved[1], method.transport(up @ down, pair), atol=1e-10, rtol=1e-10)


def test_identity_refuses_other_shapes():
    pair, _ = layer_pair(4, 3, 6, 5)
    with pytest.raises(OptionError, match="cannot move an update of shape"):
        Identity().transport(gaussian(3, 4), pair)


def test_missing_moments_are_named():
    pair = LayerPair("text.2.mlp.in", (5, 6))
    with pytest.raises(MatchError, match=r"text\.2\.mlp\.in: there are no Moments of its inputs"):
        Theseus().transport(gaussian(3, 4), pair)


@pytest.mark.parametrize("vote", ["mean", "max"])
def test_gradfix_masks_by_the_targets_own_gradients_against_the_fine_tuned_source(kit, vote: str):
    source, target = kit.tiny_vit(), kit.tiny_vit(seed=4)
    tuned, images = kit.nudge(source, size=0.3), torch.from_numpy(kit.pictures(64))
    wanted = kit.logits(tuned, images.numpy()).argmax(1)
    work = (source, tuned, target)
    given = {"data": images, "method": "gradfix", "options": {"vote": vote}, "strength": 1.0, "batches": 2}
    moved = transport(*work, **given).moved.dense
    # a key's bias shifts all scores of a query alike, so its true gradient is zero
    felt = {name: one for name, one in target.named_parameters() if not name.endswith("k_proj.bias")}
    assert len(felt) == len(list(target.parameters())) - 2
    assert set(felt) <= set(moved)
    descent = {name: torch.zeros_like(one) for name, one in felt.items()}
    for rows in [slice(0, 64)] if vote == "mean" else [slice(row, row + 1) for row in range(64)]:
        loss = torch.nn.functional.cross_entropy(target(images[rows]).logits, wanted[rows], reduction="sum")
        for name, part in zip(felt, torch.autograd.grad(loss, list(felt.values())), strict=True):
            descent[name] -= part if vote == "mean" else part.sign()
    for name, down in descent.items():
        update = (tuned.get_parameter(name) - source.get_parameter(name)).detach()
        expected = torch.where(update * down > 0, update, torch.zeros_like(update))
        # a gradient of rounding size may have either sign
        assert float((moved[name] != expected).double().mean()) < 0.01, name
