"""dsv4_timing answers what it has planned for, and refuses more by name."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from workloads import Workload

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
VOCABULARY = 1000  # The first ids of any model.


class Timing(unittest.TestCase):
    def answers(self, planned, workloads):
        with tempfile.TemporaryDirectory() as folder:
            asked = "".join(json.dumps(workload.request(VOCABULARY, Path(folder) / "state")) + "\n" for workload in workloads)
            command = [os.environ["DSV4_TIMING"], MODEL, "1", "release", *map(str, planned)]
            process = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
        return process.returncode, [json.loads(line) for line in process.stdout.splitlines()][1:], process.stderr

    def test_a_workload_at_the_edge_of_the_plan_is_timed(self):
        workloads = [Workload("prefill", 40), Workload("decode", 2, depth=36), Workload("decode", 2, batch=3)]
        self.assertEqual(max(workload.positions() for workload in workloads), 40)
        status, answers, errors = self.answers((3, 40), workloads)
        self.assertEqual(status, 0, errors)
        self.assertEqual([len(answer["seconds"]) for answer in answers], [1, 4, 4])

    def test_more_than_was_planned_is_refused(self):
        for workload, got in ((Workload("prefill", 41), "1 sequences of up to 41"), (Workload("decode", 2, batch=4), "4 sequences of up to 4"),
                              (Workload("decode", 2, depth=37), "1 sequences of up to 41")):
            with self.subTest(workload=str(workload)):
                status, answers, errors = self.answers((3, 40), [workload])
                self.assertEqual((status, answers), (1, []))
                self.assertIn(f"workload: {got} tokens, wanted at most 3 of 40", errors)

    def test_a_plan_of_nothing_is_no_plan(self):
        for planned in ((0, 40), (3, 0), (3,)):
            status, _, errors = self.answers(planned, [])
            self.assertEqual(status, 1)
            self.assertIn("usage: ", errors)


if __name__ == "__main__":
    unittest.main()
