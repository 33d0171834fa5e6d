"""The listing of `transship bench` says of every need where it comes from."""

from __future__ import annotations

from click.testing import CliRunner

from transship.cli.bench import _need_lines, command
from transship_suites import load_suite, suite_names


def test_many_needs_of_one_place_share_a_line_and_keep_their_source():
    many = [("model", f"owner/m{n}@main", f"hub model, or in $MODELS/owner/m{n}", n == 0) for n in range(7)]
    other = ("model", "mine", "github.com/me/mine", True)
    names = ", ".join(f"owner/m{n}@main" for n in range(7))
    assert _need_lines([*many, other]) == [
        f"model × 7, 1 here: {names} (hub model, or in $MODELS/NAME)",
        "model mine (github.com/me/mine): here",
    ]


def test_few_needs_have_a_line_each():
    few = [("data", name, "PyPI package both", False) for name in ("a", "b")]
    assert _need_lines(few) == [f"data {name} (PyPI package both): missing" for name in ("a", "b")]


def test_every_need_of_every_suite_is_listed_with_its_place():
    listed = CliRunner().invoke(command, []).stdout
    for suite in map(load_suite, suite_names()):
        for scale in suite.scales:
            for need in suite.needs_at(scale):
                plain = need.name.partition("@")[0]
                assert need.name in listed
                assert need.source in listed or need.source.replace(plain, "NAME") in listed, need
