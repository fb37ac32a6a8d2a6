"""Tables as LaTeX."""

from rich.console import Group
from rich.table import Table

from moon.results.latex import escape, group_as_latex, latex


def test_special_characters_are_escaped():
    assert escape("a_b & 95% ± 1 {x}") == r"a\_b \& 95\% $\pm$ 1 \{x\}"


def test_a_table_in_literals():
    text = latex("Two numbers", "tab:two", "lr", [["", "a"], ["x", "1"], [], ["y", "2"]])
    assert text.splitlines() == [
        r"\begin{table}", r"\caption{Two numbers}", r"\label{tab:two}", r"\begin{tabular}{lr}", r"\toprule",
        r" & a \\", r"\midrule", r"x & 1 \\", r"\midrule", r"y & 2 \\", r"\bottomrule", r"\end{tabular}",
        r"\end{table}",
    ]  # fmt: skip


def test_a_table_of_the_terminal_keeps_its_rows_and_sections():
    table = Table()
    table.add_column("method")
    table.add_column("near\nmean %", justify="right")
    table.add_row("moon", "[bold]90.1 ± 0.2[/]", end_section=True)
    table.add_row("plain", "-", end_section=True)
    text = group_as_latex(Group("AUROC %", table, "images"), "tab:all")
    assert text == latex(
        r"AUROC \%", "tab:all", "lr", [["method", r"near mean \%"], ["moon", r"90.1 $\pm$ 0.2"], [], ["plain", "-"]]
    )
