"""How values look: numbers in a column share their decimals, and text from outside is harmless."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# what HTML and JSON cannot carry: controls other than tab and line feed, lone surrogates, non-characters
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# characters that end a script or a line inside one
_SCRIPT_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
# plotly reads a little HTML in its strings; in these keys the builders wrote it on purpose
_TEMPLATES = frozenset({"hovertemplate", "texttemplate", "tickformat", "hoverformat"})


@dataclass(frozen=True)
class Spread:
    """A mean with its spread (a standard deviation over seeds, say), shown as `0.812 ± 0.004`."""

    mean: float
    spread: float


def clean(text: object) -> str:
    """Return a string that UTF-8, HTML and JSON can carry; what they cannot becomes U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", str(text).replace("\r\n", "\n").replace("\r", "\n"))


def short_name(reference: str) -> str:
    """Return what a reader calls a file or folder: its own name, not where it lies. Hub ids stay."""
    parts = [part for part in re.split(r"[/\\]", reference) if part not in ("", ".", "..", "~")]
    local = reference.startswith(("/", ".", "~")) or len(parts) > 2 or re.match(r"[A-Za-z]:[\\/]", reference)
    return parts[-1] if parts and local else reference


def plain(value: Any) -> Any:
    """Return numpy arrays and scalars as lists and numbers, anything else as it is."""
    if isinstance(value, (str, bytes, int, float, bool, type(None), Spread)):
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def number(value: Any) -> float | None:
    """Return what a cell sorts by: its number, a spread's mean, or None for text."""
    value = plain(value)
    if isinstance(value, Spread):
        return float(value.mean)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def column_decimals(values: Sequence[Any]) -> int | None:
    """Return the decimals that give the column's largest number four digits; None when it spans too much."""
    fractions = [plain(value) for value in values]
    sizes = [abs(number(value) or 0.0) for value in fractions if isinstance(value, (float, Spread))]
    sizes = [size for size in sizes if math.isfinite(size) and size > 0]
    if not sizes:
        return 0 if any(isinstance(value, (float, Spread)) for value in fractions) else None
    largest, smallest = max(sizes), min(sizes)
    if largest >= 1e6 or largest < 1e-3 or largest / smallest > 1e6:
        return None
    return max(0, 3 - max(0, math.floor(math.log10(largest))))


def show(value: Any, decimals: int | None = None, *, grouped: bool = False) -> str:
    """Return a cell as people read it: a true minus, a dash for what is not there.

    `decimals` are those of the column; `grouped` parts the thousands of whole numbers below 10,000 too.
    """
    value = plain(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spread):
        return f"{show(value.mean, decimals)} ± {show(value.spread, decimals)}"
    if isinstance(value, int):
        return (f"{value:,}" if grouped or abs(value) >= 10_000 else str(value)).replace("-", "−")
    if isinstance(value, float):
        return _show_float(value, decimals)
    if isinstance(value, (list, tuple)):
        return ", ".join(show(part) for part in value)
    return clean(value)


def _show_float(value: float, decimals: int | None) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if decimals is not None:
        text = f"{value:,.{decimals}f}"
    elif value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    else:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(power)}"
    text = text[1:] if re.fullmatch(r"-0(\.0+)?", text) else text
    return text.replace("-", "−")


def script_json(value: Any) -> str:
    """Return JSON that may stand inside a `<script>`: no tag can begin or end in it; NaN becomes null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(
        _SCRIPT_ESCAPES
    )


def _finite(value: Any, key: str = "") -> Any:
    value = plain(value)
    if isinstance(value, Mapping):
        return {clean(name): _finite(part, str(name)) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part, key) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (int, float, type(None))):
        return value
    text = clean(value)
    return text if key in _TEMPLATES else text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
