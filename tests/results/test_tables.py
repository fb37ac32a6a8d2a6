"""Tables of scored runs in a terminal."""

from rich.console import Console

from moon.results.tables import describe_images, known_table, summary_table, unknown_table
from moon.results.temperatures import describe_temperatures


def scored(auroc, with_unknown):
    row = {"auroc": auroc, "fpr95": 1 - auroc}
    run = {
        "benchmark": "digits",
        "images": {"known": 900, "letters": 1000},
        "sha256": {"known": "0123456789abcdef", "letters": "fedcba9876543210"},
        "missing": [],
        "known": {"accuracy": 0.9, "ece": 0.0123, "nll": 0.5},
        "p_unknown": {},
        "detectors": {"msp": {"sets": {"letters": row}, "near": row}},
    }
    if with_unknown:
        run["p_unknown"] = {"letters": {"p_unknown_correct": 0.001, "p_unknown_wrong": 0.02, "p_unknown_unknown": 0.3}}
        run["detectors"]["unknown"] = {"sets": {"letters": row}, "near": row}
    return run


def text(table, width=160):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


METHODS = {"plain": [scored(0.8, False)], "moon": [scored(0.9, True)]}


def test_known_table():
    shown = text(known_table(METHODS))
    assert "0.012" in shown
    assert "30.00" in shown
    assert shown.count(" - ") == 3  # a plain model has no unknown output


def test_unknown_table():
    shown = text(unknown_table(METHODS))
    assert "80.0/20.0" in shown
    assert "90.0/10.0" in shown
    assert shown.count(" - ") == 2  # and no score of the detector `unknown`
    assert "near" in shown
    assert "far" not in shown


def test_the_table_fits_80_columns():
    row = {"auroc": 0.987, "fpr95": 0.123}
    sets = dict.fromkeys(("letters", "textures", "photos"), row)
    run = scored(0.8, False) | {"detectors": {"unknown": {"sets": sets, "near": row, "far": row}}}
    shown = text(unknown_table({"plain RigL": [run], "MOON + RigL": [run]}), width=80)
    assert sum("MOON + RigL" in line and line.count("98.7/12.3") == 5 for line in shown.splitlines()) == 1, shown


def test_several_seeds_show_their_deviation():
    methods = {"moon": [scored(0.8, True), scored(0.9, True)]}
    assert "85.0 ± 7.1" in text(unknown_table(methods))
    for table in (known_table, unknown_table, summary_table):
        assert "; mean ± standard deviation over runs" in text(table(methods), width=500)
        assert "deviation" not in text(table(METHODS), width=500)  # one run of each method


def test_tables_name_the_scored_images():
    line = "digits: known 900 01234567, letters 1,000 fedcba98"
    assert line in text(unknown_table(METHODS))
    assert line in text(summary_table(METHODS))
    run = scored(0.8, False)
    other = run | {"images": {"known": 900, "letters": 10}, "sha256": {}, "missing": ["photos"]}
    assert describe_images([run, run, other]).splitlines() == [
        f"Images scored (count, SHA-256): {line} (2 runs)",
        "digits: known 900, letters 10; not found: photos (1 run)",
    ]


def test_temperatures_are_named_below_the_tables():
    fitted = {"value": 0.135, "from": "fitted on validation images"}
    of_loss = {"value": 1.0, "from": "the loss"}
    unscaled = {"value": 1.0, "from": "the suffix :unscaled"}
    methods = {
        "plain": [scored(0.8, False) | {"temperatures": {"ebo": of_loss, "ebo:scaled": fitted | {"value": 1.4}}}],
        "normalised": [
            scored(0.9, True) | {"temperatures": {"ebo": fitted, "p_unknown": fitted}},
            scored(0.9, True) | {
                "temperatures": {"gen:unscaled": unscaled}, "p_unknown": {}, "p_unknown_unscaled": {"letters": {}},
                "detectors": {"gen:unscaled": METHODS["moon"][0]["detectors"]["msp"]},
            },
        ],
    }  # fmt: skip
    expected = (
        "Logits are divided by T = 1, as in the loss (1 of 3 runs): ebo; T = 0.135 to 1.4, fitted on validation images "
        "(2 of 3 runs): ebo:scaled, ebo, p_unknown; T = 1, not fitted (1 of 3 runs): gen:unscaled. "
        "Not scored at the fitted T (1 of 3 runs): gen, p_unknown"
    )
    runs = [run for of_method in methods.values() for run in of_method]
    assert describe_temperatures(runs) == expected
    assert expected in text(unknown_table(methods), width=500)
    assert expected in text(summary_table(methods), width=500)
    assert describe_temperatures(runs, {"gen"}) == expected.rpartition(". ")[2].removesuffix(", p_unknown")
    assert describe_temperatures([scored(0.8, False)]) == ""


def test_a_group_of_one_set_has_no_mean_of_its_own():
    row, mean = {"auroc": 0.987, "fpr95": 0.123}, {"auroc": 0.5, "fpr95": 0.5}
    run = scored(0.8, False) | {"near": ["letters"], "far": ["textures", "photos"]}
    run["images"] |= {"textures": 100, "photos": 100}
    sets = dict.fromkeys(("letters", "textures", "photos"), row)
    run["detectors"] = {"msp": {"sets": sets, "near": row, "far": mean}}
    headings, numbers = [line.split() for line in text(unknown_table({"plain": [run]})).splitlines()[3:6:2]]
    assert headings == ["detector", "method", "(near)", "textures", "photos", "mean"]
    assert numbers == ["msp", "plain", "98.7/12.3", "98.7/12.3", "98.7/12.3", "50.0/50.0"]


def test_detectors_that_some_runs_lack_say_so():
    runs = [scored(0.8, True), scored(0.9, True)]
    del runs[1]["detectors"]["unknown"]
    shown = text(summary_table({"moon": runs})).splitlines()
    assert [line.split()[:5] for line in shown if "unknown" in line][-1] == ["unknown", "1", "of", "2", "80.0"]
    assert any(line.split()[:3] == ["moon", "msp", "2"] for line in shown)
    assert "moon (n = 1)" in text(unknown_table({"moon": runs}))
    assert text(unknown_table({"moon": runs})).count("(n = ") == 1
