"""A prefix cache that was damaged while the server was away: the answers stay, or the start is refused and the path named."""

import collections
import os
import pathlib
import shutil
import tempfile
import unittest

from attack_testing import CHAT, REQUEST, dice, sized

from dsv4_process import wait_until
from server_process import Server

PROMPTS = [[{"role": "system", "content": " ".join(f"Fact {n}.{i}: a house is blue." for i in range(12))}, *REQUEST["messages"]] for n in range(3)]


NUM_DAMAGED = int(os.environ.get("DSV4_DAMAGED_STATES", sized(12, 500)))


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


def damaged_state(data, other, chance):
    """(kind, the bytes of a state after one damage). They always differ from before."""
    def cut(end):
        return data[:end]

    def over(begin, piece):
        return data[:begin] + piece + data[begin + len(piece):]

    def block(size, make):
        begin = chance.randrange(max(1, len(data) // size)) * size
        return over(begin, make(begin, min(size, len(data) - begin)))
    kinds = {
        "a bit": lambda: over(at := chance.randrange(len(data)), bytes([data[at] ^ 1 << chance.randrange(8)])),
        "a bit of the head": lambda: over(at := chance.randrange(144), bytes([data[at] ^ 1 << chance.randrange(8)])),
        "a number of the head": lambda: over(8 * chance.randrange(18), chance.choice((bytes(8), b"\xff" * 8, chance.randbytes(8)))),
        "cut": lambda: cut(chance.randrange(len(data))),
        "cut at a block": lambda: cut(chance.randrange(1 + len(data) // 4096) * 4096),
        "longer": lambda: data + chance.randbytes(1 + chance.randrange(5000)),
        "a sector of zeros": lambda: block(512, lambda begin, size: bytes(size)),
        "a page of zeros": lambda: block(4096, lambda begin, size: bytes(size)),
        "a page of noise": lambda: block(4096, lambda begin, size: chance.randbytes(size)),
        "a page of another state": lambda: block(4096, lambda begin, size: other[begin:begin + size].ljust(size, b"\0")),
        "a page of another place": lambda: block(4096, lambda begin, size: data[(from_ := chance.randrange(len(data) - size + 1)):from_ + size]),
        "the head of another state": lambda: over(0, other[:144]),
        "another state": lambda: other,
        "bytes exchanged": lambda: over(at := chance.randrange(len(data) - 1), data[at + 1:at + 2] + data[at:at + 1]),
    }
    while True:
        kind = chance.choice(list(kinds))
        if (changed := kinds[kind]()) != data:
            return kind, changed


def answers(server, prompts):
    return [server.post(CHAT, {**REQUEST, "messages": prompt})["choices"][0]["message"] for prompt in prompts]


def keep(cache, prompts):
    """The answers of a server that writes the states of these prompts."""
    with Server("--prefix-cache-dir", cache, "--context", 4096) as server:
        expected = answers(server, prompts)
        wait_until(lambda: server.metric("dsv4_prefix_disk_written_total") >= len(prompts), "the states are written")
    return expected


class Caches(unittest.TestCase):
    def test_no_damaged_state_is_used(self):
        """Every state has a damage of its own: none is read, and the answers are those of a server without them."""
        chance, left, kinds = dice("states"), NUM_DAMAGED, collections.Counter()
        prompts = [[{"role": "system", "content": " ".join(f"Fact {n}.{i}: a house is blue." for i in range(12))}, *REQUEST["messages"]] for n in range(12)]
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            pristine, cache = root / "pristine", root / "cache"
            expected = keep(pristine, prompts)
            with Server("--prefix-cache-dir", pristine, "--context", 4096).with_states() as server:
                self.assertEqual(answers(server, prompts), expected)
                self.assertEqual(server.metric("dsv4_prefix_disk_read_total"), len(prompts))  # Undamaged ones are.
            while left > 0:
                shutil.copytree(pristine, cache)
                states = all_states(cache)
                contents = [path.read_bytes() for path in states]
                for number, path in enumerate(states):
                    kind, data = damaged_state(contents[number], contents[number - 1], chance)
                    path.write_bytes(data)
                    kinds[kind] += 1
                    left -= 1
                with Server("--prefix-cache-dir", cache, "--context", 4096).with_states() as server:
                    self.assertEqual(answers(server, prompts), expected)
                    self.assertEqual(server.metric("dsv4_prefix_disk_read_total"), 0)
                self.assertEqual(server.process.returncode, 0)
                shutil.rmtree(cache)
        print(f"{kinds.total()} damaged states, 0 read, 0 wrong answers: {dict(kinds)}")

    def test_damage_changes_no_answer(self):
        chance = dice("caches")
        right, refused = 0, 0
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            pristine, cache = root / "pristine", root / "cache"
            expected = keep(pristine, PROMPTS)
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
                            self.assertEqual(answers(server, PROMPTS), expected)
                            self.assertEqual(answers(server, PROMPTS), expected)
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
