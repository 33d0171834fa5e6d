"""Tokenizer files as plain data: the vocabulary they hold, and how to add tokens. Needs no library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transship.checkpoints import read_json
from transship.errors import CheckpointError

FILES = ("tokenizer.json", "vocab.json", "vocab.txt")


def vocabulary_file(folder: Path | None) -> Path | None:
    """Return the file that holds the vocabulary, the fast tokenizer's first."""
    if folder is None:
        return None
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def file_hash(path: Path) -> str:
    """Return a hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_vocabulary(folder: Path | None) -> dict[str, int] | None:
    """Return token → row of a model's tokenizer, None where it has none that can be read as text."""
    path = vocabulary_file(folder)
    if path is None:
        return None
    if path.name == "vocab.txt":
        return {line: row for row, line in enumerate(path.read_text(encoding="utf-8").splitlines())}
    data = read_json(path)
    if path.name == "vocab.json":
        found = {str(token): int(row) for token, row in data.items()}
        added = path.parent / "added_tokens.json"
        return found | (
            {str(token): int(row) for token, row in read_json(added).items()} if added.is_file() else {}
        )
    return tokens_of(data, path)


def tokens_of(data: dict[str, Any], path: Path) -> dict[str, int]:
    """Return token → row of a `tokenizer.json`: its model's vocabulary and the added tokens."""
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocabulary, dict):
            found = {str(token): int(row) for token, row in vocabulary.items()}
        elif isinstance(vocabulary, list):
            found = {str(entry[0]): row for row, entry in enumerate(vocabulary)}
        else:
            raise TypeError("no vocabulary")
        for token in data.get("added_tokens") or ():
            found[str(token["content"])] = int(token["id"])
    except (TypeError, ValueError, KeyError, IndexError):
        raise CheckpointError(
            "its vocabulary cannot be read", where=str(path), fix="save the tokenizer again with transformers"
        ) from None
    return found


def special_tokens(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the added tokens of a `tokenizer.json` by content, with their settings."""
    path = vocabulary_file(folder)
    if path is None or path.name != "tokenizer.json":
        return {}
    return {str(token["content"]): token for token in read_json(path).get("added_tokens") or ()}


def extended(
    data: dict[str, Any], tokens: Iterable[tuple[str, int, dict[str, Any] | None]]
) -> dict[str, Any]:
    """Return a `tokenizer.json` with (token, row, settings) added; settings may be another tokenizer's."""
    added = list(data.get("added_tokens") or ())
    for content, row, settings in tokens:
        plain = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": False,
        }
        entry = {key: (settings or {}).get(key, value) for key, value in plain.items()}
        added.append({"id": row, "content": content, **entry})
    return {**data, "added_tokens": added}


def read_chat_template(folder: Path | None) -> str | None:
    """Return a model's chat template, from its own file or from `tokenizer_config.json`."""
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.is_file() else None
    return template if isinstance(template, str) else None


def without_template(folder: Path | None) -> str | None:
    """Return `tokenizer_config.json` without its chat template, None where there is nothing to change."""
    path = folder / "tokenizer_config.json" if folder is not None else None
    if path is None or not path.is_file():
        return None
    config = read_json(path)
    if config.pop("chat_template", None) is None:
        return None
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


_TURNS = "{% for message in messages %}"
_HEADER = "'<|start_header_id|>'"
CHAT_TEMPLATES = {
    "chatml": _TURNS
    + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama3": "{{ bos_token }}"
    + _TURNS
    + f"{{{{ {_HEADER} + message['role'] + '<|end_header_id|>\\n\\n' }}}}"
    + "{{ (message['content'] | trim) + '<|eot_id|>' }}{% endfor %}"
    + f"{{% if add_generation_prompt %}}{{{{ {_HEADER} + 'assistant<|end_header_id|>\\n\\n' }}}}"
    + "{% endif %}",
    "mistral": "{{ bos_token }}"
    + _TURNS
    + "{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    + "{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}",
    "alpaca": _TURNS
    + "{% if message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    + "{% elif message['role'] == 'assistant' %}"
    + "{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}"
    + "{% else %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
    "exaone": _TURNS
    + "{{ '[|' + message['role'] + '|]' + message['content'] }}"
    + "{% if message['role'] == 'user' %}{{ '\\n' }}{% else %}{{ '[|endofturn|]\\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}",
}
