"""The shapes in the signatures are checked at run time when a type checker is hooked in."""

import subprocess
import sys


def test_wrong_shapes_are_caught_under_the_import_hook():
    script = (
        "from jaxtyping import TypeCheckError, install_import_hook\n"
        "with install_import_hook('transship.geometry', 'beartype.beartype'):\n"
        "    from transship.geometry import LinearMap, Moments, sinkhorn\n"
        "import torch\n"
        "wrong = [\n"
        "    lambda: Moments.of(torch.zeros(3, 2), torch.zeros(4, 2)),\n"
        "    lambda: sinkhorn(torch.zeros(3, 2), torch.zeros(3, 3)),\n"
        "    lambda: LinearMap(torch.zeros(3, 2), source_mean=torch.zeros(2)),\n"
        "]\n"
        "for call in wrong:\n"
        "    try:\n"
        "        call()\n"
        "    except TypeCheckError:\n"
        "        print('caught')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["caught"] * 3
