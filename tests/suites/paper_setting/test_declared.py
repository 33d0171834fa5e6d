"""What every suite of a paper's own setting declares."""

from __future__ import annotations

import pytest

from transship.cli import main
from transship_suites import load_suite, suite_names
from transship_suites.runner.page import note_sections

# rows whose printed mean is not that of their columns; the paper's notes name them
SLIPS = {
    ("theseus-clip", "pinv, B = 2"),
    ("theseus-clip", "pinv, B = 5"),
    ("theseus-clip", "mean, B = 2"),
    ("otmf-clip", "TSV-M"),
    ("otmf-clip", "α = 0.7"),
    ("otmf-clip", "α = 0.9"),
}
PAPERS = [name for name in suite_names() if set(load_suite(name).scales) == {"paper"}]


def test_the_four_papers_have_their_settings():
    ours = {"theseus-clip", "otmf-clip", "otmf-flan-t5", "irp-table2"}
    assert sorted(ours | {"recraft-nasbench360", "recraft-pdebench"}) == PAPERS


@pytest.mark.parametrize("name", [name for name in suite_names() if name != "shared-geometry"])
def test_a_page_says_where_its_paper_cannot_be_right(name: str):
    assert sum(map(len, load_suite(name).paper.notes)) > 200


def test_a_paper_of_two_suites_is_commented_on_once():
    names = ("otmf-clip", "otmf-flan-t5", "irp-table2", "shared-geometry")
    titles = [note_section.title for note_section in note_sections(load_suite(name).paper for name in names)]
    assert [title.split("“")[1][:7] for title in titles] == ["Merging", "Latent "]


@pytest.mark.parametrize("name", PAPERS)
def test_cases_are_listed_once_and_every_need_says_where_it_comes_from(name: str):
    suite = load_suite(name)
    cases = [tuple(sorted(case.items())) for case in suite.cases(suite.scales["paper"].options)]
    assert len(cases) == len(set(cases)) > 0
    needs = suite.needs_at("paper")
    assert {"gpu", "model", "data"} <= {need.kind for need in needs}
    for need in needs:
        assert need.source
        folder = {"model": "$TRANSSHIP_MODELS/", "data": "$TRANSSHIP_DATA/"}.get(need.kind, "")
        assert folder in need.source
    assert any(table.paper for table in suite.tables)


@pytest.mark.parametrize("name", PAPERS)
def test_all_that_is_missing_is_listed_and_the_exit_code_is_2(hub, capsys, monkeypatch, name: str):
    from transship_suites.runner import needs

    monkeypatch.setattr(needs, "_CARDS", ())
    monkeypatch.setattr("pathlib.Path.home", lambda: hub.data)
    with pytest.raises(SystemExit) as left:
        main(["bench", name, "--scale", "paper"])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert f"error: {name}: " in err
    for need in load_suite(name).needs_at("paper"):
        if need.kind != "library":
            assert f"\n  {need.kind:8}{need.name} ({need.source})" in err


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_figures_are_numbers_of_its_own_table(name: str):
    """A row's mean is the mean of its columns, to the paper's rounding; printed slips are named here."""
    for table in load_suite(name).tables:
        names = [column.name for column in table.columns]
        if "mean" not in names:
            continue
        each = names[: names.index("mean")]
        for row in table.rows:
            values = [table.paper.get((row.name, entry)) for entry in each]
            mean = table.paper.get((row.name, "mean"))
            if mean is not None and None not in values and (name, row.name) not in SLIPS:
                assert sum(values) / len(values) == pytest.approx(mean, abs=0.12), (table.title, row.name)
