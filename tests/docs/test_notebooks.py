"""Notebooks say and run what the tutorials do."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/notebooks.py"
spec = importlib.util.spec_from_file_location("notebooks", SCRIPT)
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)

PAGE = """# A page

See [another](other.md) and [the site](https://example.org).

<!-- exact -->
```console
$ NAME=value
$ echo one \\
>   two
one two
```

```python title="say.py"
print("hello")
```

```console
$ python say.py
hello
```

```python
import json
```
"""


def test_a_page_becomes_cells_in_its_order():
    book = notebooks.notebook(PAGE)
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]
    assert cells == [
        ("markdown", "# A page\n\nSee [another] and [the site](https://example.org)."),
        ("code", "%%bash\nNAME=value\necho one \\\n  two"),
        ("code", '%%writefile say.py\nprint("hello")'),
        ("code", "%%bash\nNAME=value\npython say.py"),
        ("code", "import json"),
    ]
    assert len({cell["id"] for cell in book["cells"]}) == len(cells)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    subprocess.run([sys.executable, SCRIPT, folder], check=True)
    return folder


@pytest.mark.parametrize("verb", ["transport", "merge", "translate", "adapt"])
def test_every_command_and_file_of_a_tutorial_is_in_its_notebook(verb: str, built: Path, examples):
    book = json.loads((built / f"{verb}.ipynb").read_text(encoding="utf-8"))
    code = "\n".join("".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code")
    page = (ROOT / f"docs/tutorials/{verb}.md").read_text(encoding="utf-8")
    place = 0
    for step in examples.steps(page):
        text = step.text if hasattr(step, "name") else step.text.removeprefix("python - <<'END'\n")
        place = code.index(text.removesuffix("\nEND").strip("\n"), place) + 1
    assert place > 1
