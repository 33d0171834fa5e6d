"""The papers' tables. A file in this folder is a suite; a folder is what suites share.

**To add a suite:** add one file here. Its name is the suite's name (`theseus_width.py` is `theseus-width`).
It declares `suite = Suite(…)`: the paper, the claims with the quantity and bound that decide them, the
scales, the cases, and a function `run(case, context)` that returns metrics. Rows and columns select from
these metrics by the cases' factors. `transship bench` lists the folder; nothing else names the suite.
`shared_geometry.py` is the example to copy.

A suite has the scales `quick` and `full`, or `paper` alone: the paper's own setting, declared with hub ids,
data set names and a GPU, which may never have been run. `--set`
changes options of a scale, and needs may depend on them.

A suite imports what measures a case inside `run`, and nothing heavy above it, so that listing suites is
quick. What the suites of one paper share lies in the paper's folder: `paper.toml` has the paper, what is
known against it and its printed figures, `declared.py` rows, columns and claims; the other files measure.
Models and data are in `materials/`, of which declarations import `origins` and tables of names alone. What a
suite imports counts as part of it.

The runner (`runner/`) keeps finished cases and trained models under `$TRANSSHIP_CACHE/suites` (else
`~/.cache/transship/suites`):

* `cases/<suite>/<hash>.json`: what a case measured. The hash covers the suite's file, all rooms of transship
  that it imports (comments and docstrings apart), its `version`, the options, the files it needs and the
  case. Change any of these and the case is run again; change none and a killed run continues.
* `made/<kind>/<hash>/`: what `context.cached` made. The hash covers the parts given and the source text of
  the functions named as `code`; nothing else, so that trained models outlive edits elsewhere.
"""

from __future__ import annotations

from transship_suites.runner import SuiteResult, SuiteRun, load_suite, run_suite, suite_names

__all__ = ["SuiteResult", "SuiteRun", "load_suite", "run_suite", "suite_names"]
