"""Fine-tunes whose files fit the base and that do not belong to it: other words, adapters of other bases."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from transship.cli import group
from transship.errors import CheckpointError, TransshipWarning
from transship.verbs.merge.fusion import Fusion

Family = Callable[[str], Path]


def respelt(words: str, tokenizer: dict[str, Any]) -> dict[str, Any]:
    rows = dict(tokenizer["model"]["vocab"])
    if words == "swapped":
        rows["word3"], rows["word4"] = rows["word4"], rows["word3"]
    elif words == "more":
        rows["word-of-its-own"] = len(rows)
    else:
        rows = {f"another-{word}": row for word, row in rows.items()}
        return {**tokenizer, "model": {**tokenizer["model"], "vocab": rows}, "added_tokens": []}
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": rows}}


@pytest.mark.parametrize(
    ("words", "message"),
    [("swapped", r"'word3' is in row 11, there in row 10"), ("other", r"'\[PAD\]' is missing"), ("more", "")],
)
def test_a_fine_tune_with_words_in_other_rows_is_refused(
    words: str, message: str, family: Family, tmp_path: Path
):
    shutil.copytree(family("bert"), tmp_path / "models")
    path = tmp_path / "models" / "task-1" / "tokenizer.json"
    path.write_text(json.dumps(respelt(words, json.loads(path.read_text()))))
    out = tmp_path / "out"
    Fusion(tmp_path / "models" / "base", "average", heads="own").save(out)
    result = CliRunner().invoke(group, ["merge", "add", str(out), str(path.parent)])
    if not message:
        assert result.exit_code == 0, result.output  # words that only it has are no harm
        return
    assert isinstance(result.exception, CheckpointError)
    with pytest.raises(CheckpointError, match=f"its vocabulary differs from that of .*base: {message}"):
        raise result.exception
    assert not Fusion.load(out).tasks


def test_an_adapter_of_another_base_is_refused_and_of_another_name_is_said(family: Family, tmp_path: Path):
    import peft
    import transformers

    base, adapter = family("llama") / "base", tmp_path / "adapter"
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    transformers.LlamaForCausalLM(model.config).save_pretrained(tmp_path / "other")
    peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    about = json.loads((adapter / "adapter_config.json").read_text())

    def added(named: str) -> Fusion:
        text = json.dumps({**about, "base_model_name_or_path": named})
        (adapter / "adapter_config.json").write_text(text)
        return Fusion(base, "average").add(adapter, ["word1 word2"])

    with pytest.raises(
        CheckpointError, match=r"adapter: it was trained on .*other, which is another model than"
    ):
        added(str(tmp_path / "other"))
    with pytest.warns(
        TransshipWarning, match="says that it was trained on somebody/other, and it is added to"
    ):
        added("somebody/other")
    assert [task.name for task in added("somebody/base").tasks] == ["adapter"]  # nothing is said
    assert [task.name for task in added(str(base)).tasks] == ["adapter"]
