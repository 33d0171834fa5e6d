"""What runs the pages' examples: it finds them, runs them in order, and tells right output from wrong."""

import pytest

PAGE = """# A page

```sh
exit 1
```

```yaml title="greeting.yaml"
word: hello
```

<!-- exact -->
```console
$ cat greeting.yaml
word: hello
$ echo one \\
>   two
one two
```

```python
assert open("greeting.yaml").read() == "word: hello\\n"
```
"""


def test_a_page_runs_in_its_order_and_shows_what_is_printed(examples, tmp_path):
    done = list(examples.follow(PAGE, tmp_path))
    assert [command.text.split("\n")[0] for command, _ in done] == [
        "cat greeting.yaml",
        "echo one \\",
        "python - <<'END'",
    ]
    assert [code for _, code in done] == [0, 0, 0]
    assert [command.exact for command, _ in done] == [True, True, False]
    assert all(examples.agree(command.expected, command.printed, exact=command.exact) for command, _ in done)


def test_lines_of_progress_are_left_out(examples, tmp_path):
    lines = (
        "begin\\nmerge: 6 of 104 tensors, 9 s, about 2 min 21 s left\\nfa: 60 of 60 steps, 1 min 02 s\\nend"
    )
    ((command, _),) = examples.follow(f"```console\n$ printf '{lines}'\n```\n", tmp_path)
    assert command.printed == ["begin", "end"]


def test_a_failing_command_is_seen(examples, tmp_path):
    ((_, code),) = examples.follow("```console\n$ exit 3\n```\n", tmp_path)
    assert code == 3


def test_a_block_that_begins_with_output_is_refused(examples):
    with pytest.raises(ValueError, match="line 2: a console block begins with a command"):
        list(examples.steps("```console\nhello\n```\n"))


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("read 94.4% of 360", "read 96.1% of 360", True),  # a share may differ by a few points
        ("read 94.4% of 360", "read 81.0% of 360", False),
        ("read 94.4% of 360", "read 94.4% of 361", False),  # a count may not
        ("done in 12.3 s", "done in 99 s", True),  # a time says nothing
        ("error 0.250", "error 0.270", True),
        ("error 0.250", "error 0.500", False),
        ("wrote merged", "wrote other", False),
        ("norm  1.00", "norm 1.00", True),  # columns move with their widest cell
        ("from … to b", "from somewhere to b", True),
        ("from … to b", "from somewhere to c", False),
        ("from … to b", "from far away to b", True),
        ("kept in …/merged, 3 files", "kept in here/merged, 3 files", True),
        ("kept in …/merged, 3 files", "kept in here/merged, 4 files", False),
        ("at strength …, error 0.25", "at strength 3, error 0.26", True),
    ],
)
def test_words_are_compared_exactly_and_numbers_by_their_kind(examples, page, printed, same):
    assert examples.agree([page], [printed]) is same


def test_the_spread_of_figures_is_told_in_points_and_in_parts_of_their_size(examples):
    entries, other = (
        ["read 94.4% in 3.1 s", "norm 2.00 of 5", "one"],
        ["read 90.4% in 9 s", "norm 2.50 of 5", "two"],
    )
    apart = examples.differences(entries, other)
    assert apart["points"] == pytest.approx(4.0)
    assert apart["share"] == pytest.approx(0.25)


def test_lines_may_be_left_out_where_the_page_says_so(examples):
    assert examples.agree(["a", "…", "d"], ["a", "b", "c", "d"])
    assert not examples.agree(["a", "…", "d"], ["a", "b", "c"])
    assert not examples.agree(["a"], ["a", "b"])
    assert not examples.agree(["a", "b"], ["a"])


def test_an_exact_block_allows_no_other_number(examples):
    assert not examples.agree(["norm 0.250"], ["norm 0.251"], exact=True)
    assert examples.agree(["norm 0.250"], ["norm 0.250"], exact=True)


def test_the_script_writes_what_was_printed_where_it_differs(examples, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo new\nold\n$ echo kept\nkept\n```\n", encoding="utf-8")
    assert examples._check(page, tmp_path, write=True) == 1
    assert page.read_text(encoding="utf-8") == "```console\n$ echo new\nnew\n$ echo kept\nkept\n```\n"
