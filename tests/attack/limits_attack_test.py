"""Options and files at their limits: each is refused by name, nothing hangs, nothing is lost."""

import unittest

from dsv4_process import dsv4


class Options(unittest.TestCase):
    def expect_refusal(self, *arguments, wanted, code=2):
        with self.subTest(arguments=arguments):
            process = dsv4(*arguments)
            self.assertEqual(process.returncode, code, process.stderr)
            self.assertIn(wanted, process.stderr)

    def test_serve(self):
        self.expect_refusal("serve", "--api-key", "", wanted="--api-key: got an empty key")
        self.expect_refusal("serve", "--api-key", " ", wanted="--api-key: got an empty key")
        self.expect_refusal("serve", "--timeout-seconds", "1e300", wanted="got 1e300, wanted 0 or more, at most 1000000000")
        self.expect_refusal("serve", "--client-seconds", "nan", wanted="got nan, wanted more than 0")
        self.expect_refusal("serve", "--max-body-mib", "17592186044416", wanted="at most 1073741824")
        self.expect_refusal("serve", "--state-mib", "1", "--port", "0", wanted="--state-mib 1: too little")
        self.expect_refusal("serve", "--unix-socket", "/tmp/" + "s" * 200, wanted="a socket's path has at most 107")


if __name__ == "__main__":
    unittest.main()
