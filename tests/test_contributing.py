"""A method is one file, as CONTRIBUTING says, or one entry point of another package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
# verb → the file of a method called `sample`, as CONTRIBUTING says that it is written
METHODS = {
    "transport": '''"""The update in the target's shape, the rest cut off."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from transship.verbs.transport.protocol import LayerPair, TransportMethod


@dataclass(frozen=True, kw_only=True)
class Sample(TransportMethod):
    """Copy the entries that both layers have.

    Attributes:
        factor: what they are multiplied by.
    """

    factor: float = 1.0

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return the entries, and zeros where the target is wider."""
        moved = update.new_zeros(pair.shape)
        rows, columns = (min(sizes) for sizes in zip(update.shape, pair.shape, strict=True))
        moved[:rows, :columns] = self.factor * update[:rows, :columns]
        return moved

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return the same of a bias."""
        moved = update.new_zeros(pair.shape[0])
        moved[: len(update)] = self.factor * update[: len(moved)]
        return moved
''',
    "merge": '''"""The model that came last."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from transship.verbs.merge.maths.states import State, Vector
from transship.verbs.merge.protocol import Arrival, ContinualMethod


@dataclass(frozen=True, kw_only=True)
class Sample(ContinualMethod):
    """Keep the update that came last.

    Attributes:
        factor: what it is multiplied by.
    """

    factor: float = 1.0

    def first(self, arrival: Arrival) -> State:
        """Return the update."""
        return {"last": {name: self.factor * change for name, change in arrival.update.items()}}

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the newer update."""
        return self.first(arrival)

    def merged(self, state: State, base: Mapping[str, Tensor]) -> Vector:
        """Return what was kept."""
        return dict(state["last"])
''',
    "translate": '''"""Least squares, and a factor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from transship.geometry import LinearMap, Moments, linear
from transship.verbs.translate.maps.base import LinearTranslator


@dataclass(kw_only=True, eq=False, repr=False)
class Sample(LinearTranslator):
    """Map by least squares through the origin, times a factor.

    Attributes:
        factor: what the map is multiplied by.
    """

    factor: float = 1.0

    def _solve(self, moments: Moments) -> LinearMap:
        fitted = linear(moments)
        return dataclasses.replace(fitted, matrix=self.factor * fitted.matrix)
''',
    "adapt": '''"""Embedder and head in turn."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.problem import AdaptMethod


@dataclass(frozen=True, kw_only=True)
class Sample(AdaptMethod):
    """Train the embedder and the head.

    Attributes:
        factor: stands for a parameter.
    """

    trains: ClassVar[frozenset[Part]] = frozenset({"embedder", "head"})

    factor: float = 1.0
''',
}
COMMANDS = (
    "transport a tuned wide moved --data rows.npy --batches 1 --method sample -o factor 0.5 --strength 1",
    "merge start merged --base a --method sample -o factor 0.5",
    "merge add merged tuned --data rows.npy",
    "translate fit old.npy new.npy map --method sample -o factor 0.5",
    "adapt fit adapted --backbone a --train labelled.npz --method sample --steps 2 -o factor 0.5",
    "methods merge",
)
RUN = """
import sys
from pathlib import Path
from transship.cli import main

for command in Path(sys.argv[1]).read_text().splitlines():
    print(command, flush=True)
    main(command.split())
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two image classifiers, a fine-tune of one, pictures, and vectors of two encoders."""
    from transformers import ViTConfig, ViTForImageClassification

    folder = tmp_path_factory.mktemp("inputs")
    torch.manual_seed(0)
    for name, width in (("wide", 12), ("a", 8)):
        shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
        image = {"image_size": 28, "patch_size": 14, "num_channels": 1, "num_labels": 3}
        model = ViTForImageClassification(ViTConfig(num_attention_heads=2, **shape, **image))
        model.save_pretrained(folder / name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.save_pretrained(folder / "tuned")
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(40, 1, 28, 28)).astype(np.float32)
    np.save(folder / "rows", rows)
    np.savez(folder / "labelled", array=rows, label=np.arange(40) % 3)
    old = draw.normal(size=(300, 5))
    np.save(folder / "old", old)
    np.save(folder / "new", old @ draw.normal(size=(5, 4)))
    (folder / "commands").write_text("\n".join(COMMANDS))
    return folder


def use(inputs: Path, folder: Path, path: Path) -> str:
    """Run all commands with `path` first among the places of packages; return what they print."""
    shutil.copytree(inputs, folder)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT / "src")])}
    command = [sys.executable, "-c", RUN, "commands"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((folder / out).is_dir() for out in ("moved", "merged", "map", "adapted"))
    return done.stdout


@pytest.mark.parametrize("verb", METHODS)
def test_a_method_is_about_thirty_lines(verb: str):
    assert METHODS[verb].count("\n") <= 36


def test_a_method_of_each_verb_is_one_new_file(inputs: Path, tmp_path: Path):
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for verb, text in METHODS.items():
        (copy / f"transship/verbs/{verb}/methods/sample.py").write_text(text, encoding="utf-8")
    printed = use(inputs, tmp_path / "work", copy)
    assert "Keep the update that came last." in printed


def test_another_package_brings_a_method_of_each_verb(inputs: Path, tmp_path: Path):
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    for verb, text in METHODS.items():
        (package / f"sample_{verb}.py").write_text(text, encoding="utf-8")
    modules = ", ".join(f'"sample_{verb}"' for verb in METHODS)
    points = "\n".join(f'"{verb}.sample" = "sample_{verb}:Sample"' for verb in METHODS)
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "samples"\nversion = "1.0"\n[tool.setuptools]\npy-modules = [{modules}]\n'
        f'[project.entry-points."transship.methods"]\n{points}\n'
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", site, package], check=True, capture_output=True)
    printed = use(inputs, tmp_path / "work", site)
    assert "Keep the update that came last." in printed
