import sys


def test_missing_packages_are_named_as_pip_knows_them(moon, monkeypatch):
    from moon.cli import report

    monkeypatch.setattr(report, "find_spec", lambda name: None if name in ("jinja2", "matplotlib") else sys)
    code, _, err = moon("report", "runs")
    assert code == 2
    assert err == "moon report: the report needs jinja2 and matplotlib; pip install jinja2 matplotlib\n"
