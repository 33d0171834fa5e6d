"""Files that are nearly right: valid ones with a few bytes, values or words exchanged."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = [0, 1, -1, 2, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**9]
WORDS = [
    *("", " ", "a", "\0", "\n", "\r", "\t", '"', "'", ",", ":", "{", "}", "[", "]"),
    *("&a ", "*a", "- ", "? ", "!!int ", "---\n", "<<: ", "../../x", "~", "%s%n"),
    *("null", "true", "NaN", "1e999", "-1", "0x7fffffff", "99999999999999999999"),
    *("é", "\u202e", "\ud83d\ude00", "x" * 300, "\x1b]0;title\x07", "<script>window.hacked=1</script>"),
]
VALUES: list[Any] = [
    *(None, True, False, *NUMBERS, 10**20, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *(*WORDS, "\ud800", "F32", "BF16"),
    *([], {}, [[]], [0], [1, 2], [None], ["a"], {"a": 1}, {"": None}, [1] * 70, ["x"] * 3, [[[[[[1]]]]]]),
]


@st.composite
def changed_bytes(draw: Any, valid: Sequence[bytes]) -> bytes:
    """A valid file with up to six stretches flipped, cut, doubled, exchanged or overwritten by a number."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 6))):
        # most that matters stands at the ends
        near = st.integers(0, max(0, min(len(data), 300)))
        place = draw(
            st.one_of(near, near.map(lambda back: max(0, len(data) - back)), st.integers(0, len(data)))
        )
        length = draw(st.integers(0, 40))
        match draw(st.sampled_from(["flip", "cut", "end", "double", "number", "word", "splice", "byte"])):
            case "flip" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "byte" if place < len(data):
                data[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B]))
            case "cut":
                del data[place : place + length]
            case "end":
                del data[place:]
            case "double":
                data[place:place] = data[place : place + length]
            case "number":
                size, form = draw(st.sampled_from([(2, "<H"), (4, "<I"), (8, "<Q"), (4, ">I"), (8, ">Q")]))
                number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * size)
                data[place : place + size] = struct.pack(form, number)
            case "word":
                data[place:place] = draw(st.sampled_from(WORDS)).encode("utf-8", "surrogatepass")
            case "splice":
                other = draw(st.sampled_from(valid))
                start = draw(st.integers(0, len(other)))
                data[place : place + length] = other[start : start + length]
            case _:
                pass
    return bytes(data)


@st.composite
def changed_json(draw: Any, valid: Sequence[bytes]) -> bytes:
    """A valid JSON file with up to three values exchanged, taken away, named anew or put deeper."""
    document = json.loads(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 3))):
        holders = list(_holders(document))
        if not holders:
            break
        holder, key = draw(st.sampled_from(holders))
        match draw(st.sampled_from(["value", "value", "value", "drop", "rename", "deeper", "other"])):
            case "value":
                holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            case "drop":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from(WORDS))] = holder.pop(key)
            case "deeper":
                for _ in range(draw(st.sampled_from([1, 2, 60, 150]))):
                    holder[key] = [holder[key]]
            case "other":
                other, name = draw(st.sampled_from(holders))
                holder[key] = json.loads(json.dumps(other[name])) if _has(other, name) else None
            case _:
                pass
    return json.dumps(document).encode()


def changed_document(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """JSON, changed as a document or as bytes."""
    return st.one_of(changed_json(valid), changed_json(valid), changed_bytes(valid))


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def _holders(value: Any) -> Any:
    """Yield (container, key) of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(items):
        yield value, key
        yield from _holders(part)
