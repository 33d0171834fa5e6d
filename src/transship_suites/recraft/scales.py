"""What each scale of `recraft-series` runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transship_suites.materials.origins import FIELDS, UCR, packaged_models, ucr_data
from transship_suites.recraft import worth
from transship_suites.recraft.declared import CORE, OTHERS
from transship_suites.runner import Scale

LOW = ("CricketX", "FaceAll", "ElectricDevices", "waves")
FURTHER = ("ECG5000", "FordA", "Crop")
BACKBONE, SECOND = "minilm-l6", "granite-small"  # the second one has 12 layers of the same width
METHODS = (*CORE, *OTHERS)
_FEW = ["nft", "recraft", "fa", "fa-warm"]
_SETTINGS = {"epochs": 8, "batch_size": 16, "proxy_items": 2400}
# FA, then FLD with ω·W₁ still beside it (their sum, Eq. 22): FLD alone undoes alignment, up to 1.12 times the
# distance of source from source even with a third of it. The last embedder is kept, as in the paper: on so
# few rows held-out FLD rises while features improve
_STAGE_ONE = {"select": False, "keep": 1.0}
_RECRAFT = dict.fromkeys(("recraft", "hybrid"), _STAGE_ONE)
_FAST = {"fa_steps": 30, "fa_rate": 6e-3}
_SHORT_FLD = {"fld_steps": 16, "fld_rate": 3e-3}
_NEEDS = (*ucr_data(*FURTHER), *packaged_models(SECOND))


def _variant(
    tasks: Iterable[str],
    rows: int | None,
    test: int | None,
    *,
    backbones: Mapping[str, Iterable[str]] = {BACKBONE: METHODS},
    longer: float | None = None,
    methods: Mapping[str, Any] = _RECRAFT,
    operator: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Return what a variant runs: tasks, rows, the methods of each backbone, and changed settings."""
    return {
        "tasks": list(tasks),
        "rows": rows,
        "test": test,
        **({"operator": True} if operator else {}),
        "backbones": {name: list(wanted) for name, wanted in backbones.items()},
        "settings": {**_SETTINGS, **settings},
        "methods": methods,
        **({} if longer is None else {"longer": longer}),
    }


_QUICK_METHODS = {
    "fa": _FAST,
    "recraft": {**_FAST, **_SHORT_FLD, **_STAGE_ONE},
    "fa-warm": {**_FAST, "steps": 16, "rate": 3e-3},
}
_CORE_ONLY = {BACKBONE: CORE}
QUICK = Scale(
    seeds=2,
    minutes=2,
    options={
        "seeds": 2,
        "variants": {
            "low": _variant(LOW, 100, 200, backbones=_CORE_ONLY, longer=2.0, methods=_QUICK_METHODS, epochs=3)
        },
    },
)
# in core-minutes, by the CPU seconds of the kept run's fits: all 306, low 104, further 90, fields 66,
# worth 44, second 14
FULL = Scale(
    seeds=5,
    minutes=320,
    needs=_NEEDS,
    options={
        "seeds": 5,
        "variants": {
            "low": _variant(LOW, 300, 400, longer=1.65),
            worth.VARIANT: worth.variant(BACKBONE, SECOND, settings=_SETTINGS, methods=_RECRAFT),
            "further": _variant(FURTHER, 300, 400, longer=1.65),
            "fields": _variant(FIELDS, 200, 100, operator=True, longer=1.65, epochs=12),
            "second": _variant(("FaceAll", "waves"), 200, 400, backbones={SECOND: _FEW}),
            # whole sets of every size have as many steps: an epoch of ElectricDevices alone is 446
            "all": _variant(UCR, None, 1000, longer=1.65, steps=160),
        },
    },
)
SCALES = {"quick": QUICK, "full": FULL}
