"""A prefix cache that was damaged while the server was away: the answers stay, or the start is refused and the path named."""

import os
import pathlib
import shutil
import tempfile
import unittest

from attack_testing import CHAT, REQUEST, dice, sized

from dsv4_process import wait_until
from server_process import Server

PROMPTS = [[{"role": "system", "content": " ".join(f"Fact {n}.{i}: a house is blue." for i in range(12))}, *REQUEST["messages"]] for n in range(3)]


def all_states(cache):
    return sorted((cache / "states").glob("*.state"))


def damages(cache, chance):
    """(name, what is done to the directory)."""
    def each(change):
        def do():
            for path in all_states(cache):
                change(path)
        return do

    def rotate():
        paths = all_states(cache)
        data = [path.read_bytes() for path in paths]
        for path, other in zip(paths, data[1:] + data[:1]):
            path.write_bytes(other)

    def rewrite(change):
        return each(lambda path: path.write_bytes(change(bytearray(path.read_bytes()))))

    def flip(data):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data

    def head(data):
        data[:64] = chance.randbytes(64)
        return data

    yield "a bit of each", rewrite(flip)
    yield "heads of noise", rewrite(head)
    yield "cut", rewrite(lambda data: data[:chance.randrange(len(data))])
    yield "longer", rewrite(lambda data: data + b"x" * 100)
    yield "empty", rewrite(lambda data: b"")
    yield "noise", rewrite(lambda data: chance.randbytes(len(data)))
    yield "zeros", rewrite(lambda data: bytes(len(data)))
    yield "names exchanged", rotate
    yield "pipes", each(lambda path: (path.unlink(), os.mkfifo(path)))
    yield "links to /dev/zero", each(lambda path: (path.unlink(), path.symlink_to("/dev/zero")))
    yield "directories", each(lambda path: (path.unlink(), path.mkdir()))
    yield "states gone", lambda: shutil.rmtree(cache / "states")
    for name in ("secret", "lock"):
        for kind, make in (("gone", lambda path: path.unlink()), ("empty", lambda path: path.write_bytes(b"")), ("noise", lambda path: path.write_bytes(chance.randbytes(4096))),
                           ("cut", lambda path: os.truncate(path, path.stat().st_size // 2)), ("a directory", lambda path: (path.unlink(), path.mkdir())),
                           ("a pipe", lambda path: (path.unlink(), os.mkfifo(path))), ("/dev/zero", lambda path: (path.unlink(), path.symlink_to("/dev/zero")))):
            yield f"{name}: {kind}", lambda make=make, name=name: make(cache / name) if (cache / name).exists() else None


class Caches(unittest.TestCase):
    def test_damage_changes_no_answer(self):
        chance = dice("caches")
        right, refused = 0, 0
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            pristine, cache = root / "pristine", root / "cache"

            def answers(server):
                return [server.post(CHAT, {**REQUEST, "messages": prompt})["choices"][0]["message"] for prompt in PROMPTS]
            with Server("--prefix-cache-dir", pristine, "--context", 4096) as server:
                expected = answers(server)
                wait_until(lambda: server.metric("dsv4_prefix_disk_written_total") >= len(PROMPTS), "the states are written")
            names = [name for name, _ in damages(pristine, dice("names"))]
            picked = set(dice("chosen").sample(names, min(len(names), sized(10))))
            for number, damaged in enumerate(names):
                if damaged not in picked:
                    continue
                shutil.copytree(pristine, cache)
                for i, (_, change) in enumerate(damages(cache, chance)):
                    if i == number:
                        change()
                with self.subTest(damage=damaged):
                    try:
                        with Server("--prefix-cache-dir", cache, "--context", 4096) as server:
                            self.assertEqual(answers(server), expected)
                            self.assertEqual(answers(server), expected)
                        self.assertEqual(server.process.returncode, 0)
                        right += 1
                    except AssertionError as error:
                        if "the server ended" not in str(error):
                            raise
                        self.assertIn(str(cache), str(error))
                        refused += 1
                shutil.rmtree(cache)
        print(f"damaged caches: {right} with right answers, {refused} refused with their path")
        self.assertGreater(right, refused)


if __name__ == "__main__":
    unittest.main()
