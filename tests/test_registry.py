import dataclasses
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

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
