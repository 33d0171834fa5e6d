"""Sequences in FASTA files, as columns of a table."""

from __future__ import annotations

from transship.errors import DataError

FASTA = (".fasta", ".fa", ".fna", ".faa")


def fasta_columns(text: str, source: str) -> dict[str, list[str]]:
    """Return the columns id, sequence and header, and one for each `key=value` that all headers have.

    `>seq1 label=donor split=train` gives label and split. Letters become capitals, as the format has them; a
    final stop `*` is left out.
    """
    headers, bodies = [], []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith(">"):
            headers.append(line[1:].strip())
            bodies.append("")
        elif line and not line.startswith(";"):
            if not headers:
                what = f"line {number} is a sequence without a header"
                raise DataError(what, where=source, fix="begin each sequence with a line such as >name")
            bodies[-1] += "".join(line.split()).upper()
    empty = next((header for header, body in zip(headers, bodies, strict=True) if not body), None)
    if empty is not None:
        raise DataError(f"'>{empty}' has no sequence", where=source, fix="fill it in, or drop the header")
    facts = [dict(word.split("=", 1) for word in header.split()[1:] if "=" in word) for header in headers]
    keys = [key for key in (facts[0] if facts else {}) if all(key in own for own in facts)]
    return {
        **{key: [own[key] for own in facts] for key in keys},
        "id": [(header.split() or [""])[0] for header in headers],
        "header": headers,
        "sequence": [body.removesuffix("*") for body in bodies],
    }
