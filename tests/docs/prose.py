"""How long the sentences of a page are: `python tests/docs/prose.py [PAGE…]` prints a line per page.

What counts as prose: paragraphs and list items, each a text of its own. Code, tables, headings and comments
do not count. A link counts by its words, code in a line as one word.
"""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ("docs/results/", "docs/reference/")
# words that end with a full stop and do not end a sentence
SHORT = re.compile(r"\b(e\.g|i\.e|et al|vs|Eq|Eqs|Fig|Sec|Alg|cf|no|approx)\.", re.IGNORECASE)


@dataclass(frozen=True)
class Prose:
    """The sentences of a page, by their number of words.

    Attributes:
        words: Words in each sentence.
        semicolons: How many semicolons the sentences have.
        longest: The longest sentence.
    """

    words: tuple[int, ...]
    semicolons: int
    longest: str

    @property
    def median(self) -> float:
        return statistics.median(self.words)

    @property
    def ninetieth(self) -> float:
        """Return the 90th percentile, the nearest rank."""
        return sorted(self.words)[max(0, -(-len(self.words) * 9 // 10) - 1)]

    @property
    def semicolons_in_100(self) -> float:
        return 100 * self.semicolons / len(self.words)


def pages() -> list[Path]:
    """Return README, contributing guide and documentation, but for generated pages."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    names = [page for page in written if not page.relative_to(ROOT).as_posix().startswith(GENERATED)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *names]


def texts(page: str) -> list[str]:
    """Return the paragraphs and list items of a Markdown page as plain text."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^(\s*)(```|~~~).*?^\s*\2\s*$", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"\$\$.*?\$\$", "\n", page, flags=re.DOTALL)
    blocks: list[list[str]] = [[]]
    for line in page.splitlines():
        if not line.strip() or re.match(r"\s*(#|\||!!!|\?\?\?|:::|<|---)", line):
            blocks.append([])
            continue
        if line.startswith("    ") and not blocks[-1]:
            continue  # indented code
        item = re.match(r"\s*([-*+]|\d+\.)\s+", line)
        if item:
            blocks.append([])
            line = line[item.end() :]
        blocks[-1].append(line.strip().removeprefix("> "))
    return [_plain(" ".join(block)) for block in blocks if block]


def _plain(text: str) -> str:
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = SHORT.sub(r"\1", text)
    return re.sub(r"[*_]{1,2}([^*_]+)[*_]{1,2}", r"\1", text).strip()


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph; a colon at the end of a line before code ends one too."""
    parts = re.split(r"(?<=[.!?])[\"”)]*\s+(?=[\"“(]?[\wΑ-ω0-9])", text)
    return [part for part in parts if re.search(r"\w", part)]


def prose(page: str) -> Prose:
    """Return the measures of a Markdown page."""
    every = [sentence for text in texts(page) for sentence in sentences(text)]
    lengths = tuple(len(re.findall(r"[^\s]*\w[^\s]*", sentence)) for sentence in every)
    semicolons = sum(sentence.count(";") for sentence in every)
    return Prose(lengths, semicolons, longest=max(every, key=lambda sentence: len(sentence.split())))


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or pages():
        text = path.read_text(encoding="utf-8")
        measured = prose(text)
        print(
            f"{len(text.splitlines()):4} lines  median {measured.median:4.1f}  90 % {measured.ninetieth:3}  "
            f"semicolons {measured.semicolons_in_100:5.1f}  {len(measured.words):4} sentences  {path.name}: "
            f"{measured.longest[:60]!r}"
        )
