import dataclasses
import os
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transship import registry
from transship.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Example(registry.Method):
    """Do the example.

    Longer words about it.

    Attributes:
        scale: how strongly, which is
            explained over two lines.
        steps: how often.
    """

    paper: ClassVar[str] = "Somebody, 2025"
    scale: float = 1.0
    steps: int | None = None
    mode: Literal["zero", "svd"] = "zero"
    centre: bool = True


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("transship.verbs.transport.methods.the_example")
    module.Example = Example
    monkeypatch.setattr(Example, "__module__", module.__name__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "_file", lambda verb, name: Path("x") if name == "the-example" else None)
    monkeypatch.setattr(registry, "method_names", lambda verb: ("the-example",))


@pytest.mark.usefixtures("example")
def test_options_from_the_command_line_take_the_types_of_the_fields():
    method = registry.build_method(
        "transport", "the-example", {"scale": "2", "steps": "3", "mode": "svd", "centre": "no"}
    )
    assert dataclasses.astuple(method) == (2.0, 3, "svd", False)
    assert registry.build_method("transport", "the-example", {"steps": "none"}).steps is None


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scael": "2"}, "there is no parameter 'scael'; did you mean 'scale'?"),
        ({"steps": "2.5"}, "'2.5' does not fit; give int | none"),
        ({"steps": 2.5}, "give int"),
        ({"mode": "other"}, "give zero | svd"),
        ({"centre": "maybe"}, "give bool"),
    ],
)
def test_an_option_that_does_not_fit_is_one_sentence(options: dict[str, object], message: str):
    with pytest.raises(OptionError) as caught:
        registry.build_method("transport", "the-example", options)
    assert message in str(caught.value)


@pytest.mark.usefixtures("example")
def test_a_card_is_read_from_the_class():
    card = registry.describe("transport", "the-example")
    assert (card.summary, card.paper) == ("Do the example.", "Somebody, 2025")
    assert card.parameters[0] == registry.Parameter(
        "scale", "float", 1.0, "how strongly, which is explained over two lines."
    )
    assert [parameter.type for parameter in card.parameters] == ["float", "int | none", "zero | svd", "bool"]


@pytest.mark.usefixtures("example")
def test_a_misspelt_method_gets_the_nearest_name():
    with pytest.raises(OptionError, match="did you mean 'the-example'"):
        registry.method_class("transport", "the-exmple")


@pytest.mark.parametrize("card", registry.describe_all(), ids=lambda card: f"{card.verb}-{card.name}")
def test_every_method_says_what_it_does_and_explains_its_parameters(card: registry.MethodCard):
    assert card.summary.endswith(".")
    assert all(parameter.help for parameter in card.parameters)


def test_method_names_are_listed_without_importing_them():
    code = (
        "import sys; from transship.registry import VERBS, method_names\n"
        "print([*map(method_names, VERBS)], 'torch' in sys.modules, 'transship.verbs' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = [registry.method_names(verb) for verb in registry.VERBS]
    assert output.stdout.strip() == f"{expected} False False"


MEDIAN = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transship.verbs.merge.protocol import RecipeMethod


@dataclass(frozen=True, kw_only=True)
class Median(RecipeMethod):
    \"\"\"Take the median of every entry, times a factor.

    Attributes:
        factor: what the median is multiplied by.
    \"\"\"

    base: ClassVar = "input"
    factor: float = 1.0

    def merge(self, given):
        for part in given.parts():
            models = [given.model(index, part) for index in range(len(given.models))]
            yield (self.factor * np.median(models, axis=0)).astype(np.float32)
"""
ABOUT = "median_merge-1.0.dist-info"
WHEEL = {
    "median_merge.py": MEDIAN,
    f"{ABOUT}/METADATA": "Metadata-Version: 2.1\nName: median-merge\nVersion: 1.0\n",
    f"{ABOUT}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{ABOUT}/entry_points.txt": "[transship.methods]\nmerge.median = median_merge:Median\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which a package with a method was installed."""
    folder = tmp_path_factory.mktemp("plugin")
    wheel = folder / "median_merge-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, text in WHEEL.items():
            file.writestr(name, text)
        file.writestr(f"{ABOUT}/RECORD", "".join(f"{name},,\n" for name in [*WHEEL, f"{ABOUT}/RECORD"]))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", folder / "site", wheel], check=True, capture_output=True)
    return folder / "site"


def test_an_installed_package_adds_a_method_that_a_recipe_can_name(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [np.array([[1.0, 5.0, 3.0]], np.float32), np.array([[2.0, 4.0, 9.0]], np.float32)]
    rows.append(np.array([[7.0, 4.5, 6.0]], np.float32))
    models = []
    for number, values in enumerate(rows):
        folder = tmp_path / f"model-{number}"
        folder.mkdir()
        save_file({"weight": values}, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
        models.append(f"  - model: {folder}\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"models:\n{''.join(models)}merge_method: median\nparameters:\n  factor: 2\n")
    paths = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "transship", "merge", "run", recipe, tmp_path / "out"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    merged = load_file(tmp_path / "out/model.safetensors")["weight"]
    np.testing.assert_array_equal(merged, 2 * np.median(rows, axis=0))
    monkeypatch.syspath_prepend(site)
    assert "median" in registry.method_names("merge")
    assert "median" in registry.method_names("merge", facet="merge")
    assert "median" not in registry.method_names("merge", facet="learn")
    assert registry.describe("merge", "median").parameters[0].help == "what the median is multiplied by."


def test_a_method_of_another_package_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    for name, text in {"METADATA": "Name: broken\nVersion: 1.0\n", "entry_points.txt": BROKEN}.items():
        (tmp_path / "broken-1.0.dist-info" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name, message in (("absent", "cannot be imported"), ("number", "is not a dataclass")):
        with pytest.raises(OptionError, match=message):
            registry.method_class("transport", name)


BROKEN = "[transship.methods]\ntransport.absent = no_such_module:Kind\ntransport.number = math:pi\n"


def test_facets_are_read_from_the_source_and_are_those_of_the_classes():
    for verb, facet in (("merge", "merge"), ("transport", "matching"), ("translate", "transform")):
        names = registry.method_names(verb)
        having = [
            name for name in names if getattr(registry.method_class(verb, name), facet, None) is not None
        ]
        assert list(registry.method_names(verb, facet=facet)) == having
