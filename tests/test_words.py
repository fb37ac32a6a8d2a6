from moon.words import nearest


def test_the_nearest_word_or_nothing():
    assert nearest("rgl", ["set", "rigl"]) == ", did you mean 'rigl'?"
    assert nearest("xyz", ["set", "rigl"]) == ""
