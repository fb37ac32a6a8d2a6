from moon.suggest import did_you_mean


def test_it_suggests_the_closest_name_or_nothing():
    assert did_you_mean("rgl", ["set", "rigl"]) == ", did you mean 'rigl'?"
    assert did_you_mean("xyz", ["set", "rigl"]) == ""


def test_it_suggests_the_same_parts_in_another_order():
    choices = ("none", "cutout", "trivial", "trivial+cutout")
    assert did_you_mean("cutout+trivial", choices) == ", did you mean 'trivial+cutout'?"
