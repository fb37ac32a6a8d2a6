"""Files of earlier versions are read, and answer as they did."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from moon_runtime import Network, load

KEPT = Path(__file__).parent / "kept"


def test_format_1() -> None:
    file = (KEPT / "format1.moon").read_bytes()
    # Not to be written again: what a new version writes is not what it must still read.
    assert hashlib.sha256(file).hexdigest() == "0ad7188fdaf5c04153de4c326ee6657ea05b662c956fef0c59a1ab6958bccbfc"
    expected = json.loads((KEPT / "format1.json").read_text())
    images = np.array(expected["images"], np.uint8)
    model = load(file)
    assert model.classes == ["cat", "dog", "Füchse"]
    assert (model.detector, model.accept, model.confidence) == ("kept", 0.5, None)
    for answers in (model(images), model(list(images)[:3])):
        for key in ("label", "is_known", "p_value"):
            assert getattr(answers, key).tolist() == expected[key][: len(answers)]
        np.testing.assert_allclose(answers.probability, expected["probability"][: len(answers)], rtol=1e-4)
        np.testing.assert_allclose(answers.score, expected["score"][: len(answers)], rtol=1e-4)
    values = ((images / 255 - [0.45, 0.5, 0.4]) / [0.25, 0.2, 0.3]).transpose(0, 3, 1, 2)
    outputs = Network(file)(values)
    for name in ("features", "logits"):
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-4)
