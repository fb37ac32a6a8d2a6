from moon.suggest import did_you_mean, first_line


def test_it_suggests_the_closest_name_or_nothing():
    assert did_you_mean("rgl", ["set", "rigl"]) == " (did you mean 'rigl'?)"
    assert did_you_mean("xyz", ["set", "rigl"]) == ""


def test_it_suggests_the_same_parts_in_another_order():
    choices = ("none", "cutout", "trivial", "trivial+cutout")
    assert did_you_mean("cutout+trivial", choices) == " (did you mean 'trivial+cutout'?)"


def test_an_error_without_a_message_is_named_by_its_class():
    assert first_line(ValueError("\nwrong shape\nexpected 3")) == "wrong shape"
    assert first_line(AssertionError()) == "AssertionError"
