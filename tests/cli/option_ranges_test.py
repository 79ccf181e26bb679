"""Numbers outside the range of their option: bad usage, with what was got and wanted, whether or not the command looks at the option."""

import unittest

from dsv4_process import dsv4

QUESTION = "What is the capital of France?"


class OptionRanges(unittest.TestCase):
    def test_a_sampling_option_outside_its_range_is_bad_usage(self):
        """Options of a command that samples, and of a check that does not look at it."""
        for command in (("run", QUESTION), ("diagnose", "visible")):
            for option, value, wanted in (
                ("--temperature", "-3", "0 or more"),
                ("--temperature", "nan", "0 or more"),
                ("--top-p", "0", "more than 0, at most 1"),
                ("--top-p", "1.5", "more than 0, at most 1"),
                ("--top-k", "-1", "0 or more"),
                ("--min-p", "1", "0 or more, less than 1"),
                ("--repetition-penalty", "0", "more than 0"),
                ("--presence-penalty", "inf", "a finite number"),
                ("--frequency-penalty", "nan", "a finite number"),
                ("--penalty-window", "-2", "0 or more"),
            ):
                with self.subTest(command=command, option=option, value=value):
                    process = dsv4(*command, option, value)
                    self.assertEqual(process.returncode, 2, process.stderr)
                    self.assertIn(f"{option}: got {value}, wanted {wanted}", process.stderr)
            for entry in ("-1=2", "3=nan"):
                process = dsv4(*command, "--logit-bias", entry)
                self.assertEqual(process.returncode, 2, process.stderr)
                self.assertIn(f"--logit-bias: got '{entry}', wanted ID=BIAS", process.stderr)

    def test_a_range_is_said_as_it_is_meant(self):
        for command, option, wanted in ((("bench", "--server", "http://127.0.0.1:1", "--input-tokens", "9"), "--length-spread", "0 to 0.99"),
                                        (("pull", "a/b"), "--retry-wait", "0 to 30"), (("serve",), "--thinking-tools-top-p", "0.001 to 1")):
            for value in ("nan", "-1", "99"):
                process = dsv4(*command, option, value)
                self.assertEqual(process.returncode, 2, process.stderr)
                self.assertIn(f"{option}: got {value}, wanted {wanted}\n", process.stderr)
        self.assertIn("got inf, wanted more than 0, at most 1e+18", dsv4("bench", "--server", "http://127.0.0.1:1", "--seconds", "inf").stderr)

    def test_an_option_of_another_check_is_looked_at(self):
        for option in ("--layer", "--position", "--min-tokens", "--tolerance", "--bound"):
            process = dsv4("diagnose", "residual", option, "-1")
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(f"{option}: got -1, wanted 0 or more", process.stderr)


if __name__ == "__main__":
    unittest.main()
