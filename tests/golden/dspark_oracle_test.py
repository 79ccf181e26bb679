"""The golden of the DSpark drafter: the oracle gives it again from the model's files, and every classic mistake departs from it.

Needs NumPy (tools/requirements.txt) and says that it was skipped without:
  python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt && .venv/bin/python tests/golden/dspark_oracle_test.py -v
"""

import json
import pathlib
import sys
import unittest
from dataclasses import fields, replace

try:
    import numpy as np
except ImportError:
    print("skipped: NumPy is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/models/dspark"
sys.path.insert(0, str(ROOT / "tools"))

from oracle.compare import cosines  # noqa: E402
from oracle.dspark import Dspark  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402

# Bound of a C++ implementation in `plain` numerics; a mistake must fall below it.
BOUND = 0.99999


def golden(name: str) -> np.ndarray:
    return np.load(GOLDEN / f"{name}.npy")


def rows(logits: np.ndarray) -> np.ndarray:
    return logits.reshape(-1, logits.shape[-1])


class DsparkOracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ids = np.array(json.loads((GOLDEN / "tokens.json").read_text()), np.int64)
        cls.model = Model(GOLDEN, Options.make(plain=True))
        cls.options = cls.model.num.options
        cls.streams = cls.model.all_streams(cls.ids)

    def drafts(self, teacher=False, **changes):
        self.model.num.options = replace(self.options, **changes)
        try:
            return Dspark(self.model)(self.ids, teacher, self.streams)
        finally:
            self.model.num.options = self.options

    def test_plain_is_computed_again(self):
        logits, chances = self.drafts()
        self.assertEqual(logits.shape, (len(self.ids) - 1, 5, 96))
        np.testing.assert_allclose(logits, golden("logits.dspark.plain"), atol=1e-4)
        np.testing.assert_allclose(chances, golden("confidence.dspark.plain"), atol=1e-4)

    def test_release_is_computed_again(self):
        logits, chances = Dspark(Model(GOLDEN))(self.ids)
        # another BLAS may sum in another order, and FP8 rounding shows it here and there
        cosine = cosines(rows(logits), rows(golden("logits.dspark.release")))
        self.assertGreater(np.median(cosine), 0.99993)
        self.assertLess(np.median(np.abs(chances - golden("confidence.dspark.release"))), 1e-3)
        self.assertLess(cosines(rows(logits), rows(golden("logits.dspark.plain"))).min(), BOUND)

    def test_trunk_is_that_of_the_model_golden(self):
        cosine = cosines(self.model.forward(self.ids), golden("logits.plain"))
        self.assertGreater(cosine.min(), 0.9999999)

    def test_a_block_is_a_function_of_its_prefix(self):
        ids = self.ids.copy()
        ids[60:] = 7
        logits, _ = Dspark(self.model)(ids)
        np.testing.assert_allclose(logits[:59], golden("logits.dspark.plain")[:59], atol=1e-4)
        self.assertGreater(np.abs(logits[59] - golden("logits.dspark.plain")[59]).max(), 1e-2)  # the anchor is token 60

    def test_greedy_chain(self):
        greedy, _ = self.drafts()
        teacher, _ = self.drafts(teacher=True)
        np.testing.assert_array_equal(greedy[:, 0], teacher[:, 0])
        known = np.flatnonzero(greedy[:-1, 0].argmax(1) == self.ids[2:])
        np.testing.assert_array_equal(greedy[known, 1], teacher[known, 1])
        self.assertLess(cosines(greedy[:, 1], teacher[:, 1]).min(), BOUND)

    def test_every_mistake_shows(self):
        want, want_chances = golden("logits.dspark.plain"), golden("confidence.dspark.plain")
        changes = {f.name: f.metadata.get("choices") or (not f.default,) for f in fields(Options) if f.name.startswith("dspark_")}
        self.assertGreaterEqual(len(changes), 11)
        for name, values in changes.items():
            for value in values:
                if value == getattr(self.options, name):
                    continue
                with self.subTest(f"{name}={value}"):
                    logits, chances = self.drafts(**{name: value})
                    lowest = cosines(rows(logits), rows(want)).min()
                    moved = np.abs(chances - want_chances).max()
                    print(f"{name}={value}: lowest cosine {lowest:.6f}, confidence moved by {moved:.4f}")
                    if name == "dspark_confidence":
                        self.assertGreater(moved, 1e-2)
                    else:
                        self.assertLess(lowest, BOUND)


if __name__ == "__main__":
    unittest.main()
