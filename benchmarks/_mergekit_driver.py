"""Runs recipes with mergekit, in mergekit's own environment, from the folder of the models.

`python _mergekit_driver.py OUT RECIPE…`
"""

import sys
import traceback
from pathlib import Path

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions


def main() -> None:
    """Merge each recipe into OUT/<its name>; a failure is written to OUT/<its name>.error."""
    out = Path(sys.argv[1])
    for path in map(Path, sys.argv[2:]):
        config = MergeConfiguration.model_validate(yaml.safe_load(path.read_text()))
        options = MergeOptions(
            lora_merge_cache=str(out / "lora-cache"), quiet=True, random_seed=0, write_model_card=False
        )
        try:
            run_merge(config, str(out / path.stem), options)
        except Exception:
            (out / f"{path.stem}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
