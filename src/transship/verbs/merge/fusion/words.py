"""Whether a fine-tune speaks the base's words: merged rows of an embedding mean one word each."""

from transship.checkpoints import Checkpoint
from transship.errors import CheckpointError
from transship.verbs.merge.recipe.tokenizers import file_hash, read_vocabulary, vocabulary_file


def check_words(base: Checkpoint, tuned: Checkpoint) -> None:
    """Refuse a fine-tune whose tokenizer has words of the base in other rows.

    Words that only one of the two has are no harm: many fine-tunes add some, or rename unused rows.
    """
    files = vocabulary_file(base.folder), vocabulary_file(tuned.folder)
    if files[0] is None or files[1] is None:
        return
    if files[0].name == files[1].name and file_hash(files[0]) == file_hash(files[1]):
        return
    mine, theirs = read_vocabulary(base.folder) or {}, read_vocabulary(tuned.folder) or {}
    moved = next((word for word, row in mine.items() if theirs.get(word, row) != row), None)
    if moved is None and mine and theirs and mine.keys().isdisjoint(theirs):
        moved = next(iter(mine))
    if moved is not None:
        place = f"is in row {theirs[moved]}" if moved in theirs else "is missing"
        raise CheckpointError(
            f"its vocabulary differs from that of {base.name}: {moved!r} {place}, there in row {mine[moved]}",
            where=tuned.name,
            fix="give a fine-tune with the base's tokenizer, or use a recipe with tokenizer_source: union",
        )
