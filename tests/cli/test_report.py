import sys


def test_missing_packages_are_named_as_pip_knows_them(moon, monkeypatch):
    from moon.cli import report

    monkeypatch.setattr(report, "find_spec", lambda name: None if name in ("jinja2", "matplotlib") else sys)
    code, _, err = moon("report", "runs")
    assert code == 2
    assert err == "moon report: the report needs jinja2 and matplotlib; pip install jinja2 matplotlib\n"


def test_a_page_that_cannot_be_written_is_refused_first(moon, monkeypatch, tmp_path):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, out, err = moon("report", tmp_path, "-o", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert "page.html: cannot be written (no permission to write to " in err
    assert "choose another file (--out)" in err
