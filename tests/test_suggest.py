from moon.suggest import did_you_mean


def test_it_suggests_the_closest_name_or_nothing():
    assert did_you_mean("rgl", ["set", "rigl"]) == ", did you mean 'rigl'?"
    assert did_you_mean("xyz", ["set", "rigl"]) == ""
