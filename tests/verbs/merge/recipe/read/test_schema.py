import pytest

from transship.errors import OptionError
from transship.verbs.merge.recipe.read.schema import parse_recipes
from transship.verbs.merge.recipe.read.sources import Location, ModelReference, parse_reference

SLICES = (
    "merge_method: linear\n"
    "slices: [{{sources: [{{model: a, layer_range: {}}}, {{model: b, layer_range: {}}}]}}]"
)
MODELS = "models: [{model: a, parameters: {weight: 1}}, {model: b}]\n"


def sentence(text: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse_recipes(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODELS, "the recipe has no merge_method"),
        (
            "merge_method: lineer\n" + MODELS,
            "recipe:1: there is no merge_method 'lineer'; did you mean 'linear'",
        ),
        (
            "merge_method: linear\nnormalise: true\n" + MODELS,
            "recipe:2: there is no key in a recipe 'normalise'",
        ),
        ("merge_method: linear\ndtyp: float32\n" + MODELS, "did you mean 'dtype'"),
        (
            "merge_method: linear\ndtype: float31\n" + MODELS,
            "recipe:2: there is no dtype 'float31'; did you mean",
        ),
        ("merge_method: linear", "lists no models"),
        ("merge_method: linear\nslices: []\n" + MODELS, "the recipe has models and slices"),
        ("merge_method: linear\nmodels: []", "models takes a list"),
        ("merge_method: linear\nmodels: [a]", "an entry of models is a mapping"),
        ("merge_method: linear\nmodels:\n  - modl: a", "recipe:3: there is no key in a model entry 'modl'"),
        ("merge_method: linear\nmodels:\n  - parameters: {weight: 1}", "names no model"),
        (
            "merge_method: linear\nmodels:\n  - model: a\n    parameters:\n      wieght: 1",
            "recipe:5: there is no parameter of linear 'wieght'; did you mean",
        ),
        ("merge_method: linear\nparameters: {t: 1}\n" + MODELS, "no parameter of linear 't'"),
        ("merge_method: linear\ntokenizer: {sourc: union}\n" + MODELS, "did you mean 'source'"),
        (
            "merge_method: linear\ntokenizer_source: union\ntokenizer: {source: base}\n" + MODELS,
            "both tokenizer",
        ),
        (
            "merge_method: linear\ntokenizer: {tokens: {x: {source: {kind: nothing}}}}\n" + MODELS,
            "no token source",
        ),
        ("merge_method: linear\nslices: [{sources: [{model: a}]}]", "has no layer_range"),
        (
            "merge_method: linear\nslices: [{sources: [{model: a, layer_range: [3, 2]}]}]",
            "two rising layer numbers",
        ),
        (SLICES.format("[0, 2]", "[0, 3]"), "2, 3 layers"),
        ("merge_method: linear\nmodules: {encoder: {}}", "needs models or slices"),
        ("merge_method: linear\nseed: -1\n" + MODELS, "takes a whole number"),
        ("merge_method: linear\narithmetic: exact\n" + MODELS, "no arithmetic 'exact'"),
        ("merge_method: linear\nchat_template: 3\n" + MODELS, "takes a text"),
        (
            "merge_method: linear\nchat_template: chatmll\n" + MODELS,
            "recipe:2: there is no chat template 'chatmll'; did you mean 'chatml'",
        ),
        (
            "merge_method: linear\ntokenizer_source: unoin\n" + MODELS,
            "recipe:2: there is no source of a tokenizer 'unoin'; did you mean 'union'",
        ),
        (
            "merge_method: linear\n" + MODELS + "parameters: {weight: [0.1, much]}\n",
            "recipe:3: 'much' does not fit; give a number",
        ),
        (
            "merge_method: ties\nbase_model: c\n" + MODELS + "parameters:\n  density: [0.5, 50]\n",
            "recipe:5: density is a share of a tensor's entries, and 50 is none",
        ),
        ("merge_method: linear\nlora_rank: 0\n" + MODELS, "recipe:2: lora_rank takes a whole number from 1"),
        ("merge_method: linear\n" + MODELS + "---\nmerge_method: linear\n" + MODELS, "has no name"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(text: str, message: str):
    assert message in sentence(text)


def test_a_method_may_be_spelt_with_dashes_or_underscores():
    for name in ("task_arithmetic", "task-arithmetic"):
        assert parse_recipes(f"merge_method: {name}\n" + MODELS)[0].method == "task_arithmetic"


def test_all_keys_of_the_schema_are_read():
    (recipe,) = parse_recipes(
        "merge_method: ties\nbase_model: base\ndtype: torch.bfloat16\nout_dtype: float16\n"
        "chat_template: auto\n"
        "parameters: {lambda: 0.5, trim: global}\nseed: 3\n"
        "extra_tensors: keep\nheads: per_task\ncompatibility: off\n"
        "tokenizer: {source: model:b, pad_to_multiple_of: 8, tokens: {x: {source: b, force: true}}}\n"
        "slices:\n- sources: [{model: b, layer_range: [0, 2]}, {model: base, layer_range: [0, 2]}]\n"
        "  residual_weight: 1\n  parameters: {weight: 1}\n"
    )
    assert (recipe.dtype, recipe.out_dtype, recipe.seed) == ("bfloat16", "float16", 3)
    assert (recipe.extra_tensors, recipe.heads, recipe.compatibility) == ("keep", "per_task", "off")
    assert recipe.tokenizer is not None
    assert recipe.tokenizer.source == ModelReference(Location("b"))
    assert recipe.tokenizer.tokens["x"].force
    assert [str(reference) for reference in recipe.references()] == ["b", "base"]
    assert str(recipe.donor) == "base"


def test_the_first_listed_model_gives_the_config_when_there_is_no_base():
    assert str(parse_recipes("merge_method: linear\n" + MODELS)[0].donor) == "a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", ModelReference(Location("owner/name"))),
        ("owner/name@main", ModelReference(Location("owner/name", "main"))),
        ("a+b", ModelReference(Location("a"), Location("b"))),
        ("a@x+b@y", ModelReference(Location("a", "x"), Location("b", "y"))),
    ],
)
def test_references_are_read(text: str, expected: ModelReference):
    assert parse_reference(text, "here") == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["a+b+c", "a@b@c", "+a", ""])
def test_a_confusing_reference_is_refused(text: str):
    with pytest.raises(OptionError):
        parse_reference(text, "here")


def test_a_path_with_signs_in_it_is_taken_as_it_is_when_it_exists(tmp_path):
    (tmp_path / "a+b@c").mkdir()
    assert parse_reference(str(tmp_path / "a+b@c"), "here").lora is None
