import re
from pathlib import Path

import pytest

from moon.recipe import kinds, table
from moon.recipe.methods import card_of, find, methods

ROOT = Path(__file__).parents[2]


def test_every_method_is_listed_once_with_a_summary_and_a_card():
    listed = [(method.kind, method.name) for method in methods()]
    assert listed == [(kind, name) for kind in kinds() for name in table(kind)]
    for method in methods():
        assert 10 < len(method.summary) < 130, method.name
        if table(method.kind).is_builtin(method.name):
            assert method.source == card_of(method.kind, method.name)
            assert (ROOT / method.source).is_file(), method.name


def test_the_card_of_a_name_with_a_hyphen_has_an_underscore_in_every_kind():
    for kind in ("objective", "topology", "detector"):
        assert card_of(kind, "nearest-mean") == "docs/methods/nearest_mean.md"
    assert card_of("net", "lenet-norm") == "docs/methods/nets.md"


def test_the_index_of_cards_names_every_method():
    index = (ROOT / "docs" / "methods" / "README.md").read_text()
    for method in methods():
        assert re.search(rf"^\| .*`{re.escape(method.name)}`.*\|", index, re.MULTILINE), method.name


def test_papers_options_and_facts_are_read_from_the_code():
    (vos,) = find("vos")
    assert (vos.kind, vos.title, vos.paper) == ("objective", "VOS", "Du et al. 2022")
    assert vos.options["start_share"] == 0.4
    assert vos.facts == ("num_known", "num_features", "epochs")
    assert "queue" in vos.about
    assert [method.kind for method in find("moon")] == ["objective", "rates"]
    assert {method.kind for method in find("topology")} == {"topology"}
    (tickets,) = find("tickets")
    assert tickets.summary == "cosine from 0.1 to 0.001, the last 10% in 3 cycles up to 0.005"


def test_an_option_without_a_default_says_what_it_depends_on():
    (knn,) = find("knn")
    assert knn.options == {"k": None}
    assert "None: the 50th, and with fewer than 40,000 inputs one in 800 of them" in knn.unset[0]


def test_a_variant_of_a_detector_is_found():
    (ebo,) = find("ebo:released:temperature=2:scaled")
    assert (ebo.title, ebo.name) == ("EBO, the free energy", "ebo:released:temperature=2:scaled")
    assert ebo.options == {"temperature": 2.0, "released": True}
    assert ebo.about.endswith("divided by the temperature fitted on validation images.")
    with pytest.raises(ValueError, match="detector 'ebo' has no variant 'scale'"):
        find("ebo:scale")


def test_a_misspelled_name_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"there is no method or kind 'rgil' \(did you mean 'rigl'"):
        find("rgil")
