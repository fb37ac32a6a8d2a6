"""The remarks about the choices of `auto` name the methods where these differ."""

from moon.results.choices import describe_choices

KNN, RMDS = ({"auto": {"detector": name, "why": f"the best of {n}"}} for name, n in (("knn", 3), ("rmds", 4)))


def test_choices_that_differ_are_named_by_method():
    lines = describe_choices({"moon": [KNN, KNN], "set": [RMDS, KNN], "dense": [{}]})
    assert lines == [
        "moon: knn, the best of 3",
        "set: rmds, the best of 4 (1 run)",
        "set: knn, the best of 3 (1 run)",
    ]


def test_one_choice_of_all_runs_is_one_line():
    assert describe_choices({"moon": [KNN, KNN], "set": [KNN]}) == ["knn, the best of 3"]
    assert describe_choices({"moon": [{}], "set": []}) == []
