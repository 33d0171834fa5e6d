"""What a repository is expected to have beside its code: a citation, a workflow, a container, issue forms."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def test_the_citation_names_the_four_papers():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    verbs = [reference["notes"].split()[-1] for reference in citation["references"]]
    assert verbs == ["transport", "merge", "translate", "adapt"]
    pages = read("docs/coverage.md").replace("\n", " ")
    assert [paper["title"] for paper in citation["references"] if paper["title"] not in pages] == []


def test_the_workflow_runs_what_the_readme_says():
    workflow = yaml.safe_load(read(".github/workflows/test.yml"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    names = [command.removeprefix("make ") for command in commands if command.startswith("make ")]
    assert names == ["test", "docs"]
    assert set(names) <= targets


@pytest.mark.parametrize("page", ["Containerfile", "README.md", "docs/index.md"])
def test_extras_that_are_named_exist(page: str):
    for names in re.findall(r"pip install .*?\.\[([a-z,]+)\]|\"\.\[([a-z,]+)\]\"", read(page)):
        assert set("".join(names).split(",")) <= EXTRAS.keys()


def test_what_the_container_copies_is_here():
    copied = [
        name
        for line in re.findall(r"^COPY (.+)$", read("Containerfile"), re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.name
)
def test_issue_forms_have_what_the_forge_requires(form: Path):
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= content.keys()
    for field in content["body"]:
        assert field["type"] in {"textarea", "input", "markdown", "dropdown", "checkboxes"}
        assert field["attributes"]["label"]
