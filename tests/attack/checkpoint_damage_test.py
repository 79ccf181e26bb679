"""Checkpoints damaged at random: every file of the model directory, read by `inspect`, `run` and `logits`. Each run ends with 0, 1 or 3 and
says why, in bounded time and memory."""

import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

from attack_testing import SIZE, dice, sized

from dsv4_process import BINARY, PATIENCE, SLOWNESS, TINY

FILES = ("config.json", "tokenizer.json", "generation_config.json", "hf_quant_config.json", "model.safetensors header", "model.safetensors")
JSON_VALUES = (None, True, -1, 0, 2**31, 2**63, 2**64, 1e308, 1e-320, "", "x", "\0", [], {}, [[]], [-1], ["\ud800"], "y" * 100000, [0] * 10000)


def damage_bytes(chance, data):
    data = bytearray(data)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(max(1, len(data)))
        match chance.randrange(6):
            case 0:
                data[at:at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at:at + 1] = bytes([chance.choice(b'0123456789{}[]",:-.eE\\\x00\xff')])
            case 2:
                del data[at:at + chance.randint(1, 50)]
            case 3:
                data[at:at] = data[at:at + chance.randint(1, 100)]
            case 4:
                data[at:at] = bytes(chance.choice(b'[{"-9e,') for _ in range(1)) * chance.randint(1, 2000)
            case 5:
                del data[at:]
    return bytes(data)


def damage_json(chance, text):
    """One value of the document, wherever it is, becomes another."""
    document = json.loads(text)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = chance.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.7:
            place = place[key]
            continue
        if chance.random() < 0.2 and isinstance(place, dict):
            del place[key]
        else:
            place[key] = chance.choice(JSON_VALUES)
        return json.dumps(document).encode()


def damage(chance, directory):
    """Which file, and what it then holds."""
    name = chance.choice(FILES)
    path = directory / name.split()[0]
    data = path.read_bytes()
    if name == "model.safetensors header":
        (length,) = struct.unpack("<Q", data[:8])
        header = data[8:8 + length]
        header = damage_json(chance, header) if chance.random() < 0.6 else damage_bytes(chance, header)
        lie = len(header) if chance.random() < 0.9 else chance.choice((0, 1, 2**20, 2**32, 2**63, 2**64 - 1))
        changed = struct.pack("<Q", lie) + header + data[8 + length:]
    elif name == "model.safetensors":
        changed = bytearray(data)
        for _ in range(chance.randint(1, 200)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 0x7F, 0xFF, chance.randrange(256)))
        changed = bytes(changed[:chance.randrange(len(changed))] if chance.random() < 0.2 else changed)
    elif chance.random() < 0.6:
        changed = damage_json(chance, data)
    else:
        changed = damage_bytes(chance, data)
    path.write_bytes(changed)
    return name


def limited():
    if SLOWNESS == 1:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


def try_one(number):
    """Three commands on one damaged checkpoint: their exit codes, the slowest one's seconds, and what was wrong."""
    chance = dice(f"checkpoint {number}")
    codes, slowest, bad = [], 0.0, []
    with tempfile.TemporaryDirectory() as name:
        model = pathlib.Path(name) / "model"
        shutil.copytree(TINY, model)
        file = damage(chance, model)
        ids, output = pathlib.Path(name) / "ids", pathlib.Path(name) / "out.npy"
        ids.write_text("0 5 9 77")
        for command in (("inspect",), ("run", "Hi", "--max-tokens", "2", "--temperature", "0"), ("logits", "--tokens", ids, "--output", output)):
            begin = time.perf_counter()
            process = subprocess.run([BINARY, *map(str, command), "-m", model], capture_output=True, text=True, errors="replace",
                                     stdin=subprocess.DEVNULL, preexec_fn=limited, timeout=PATIENCE, check=False)
            slowest = max(slowest, time.perf_counter() - begin)
            codes.append(process.returncode)
            said = process.returncode == 0 or process.stderr.strip()
            if process.returncode not in (0, 1, 3) or not said or "Sanitizer" in process.stderr:
                bad.append((number, file, command[0], process.returncode, process.stderr[-300:]))
            if process.returncode == 3 and process.stdout:
                bad.append((number, file, command[0], "output of a refused file"))
    return codes, slowest, bad


class Damage(unittest.TestCase):
    def test_every_run_ends_and_says_why(self):
        codes, slowest, bad = {}, 0.0, []
        cases = sized(24, 3338)
        # All cases are hours for one core. The part in `./dev test` has other tests beside it.
        with multiprocessing.Pool(min(len(os.sched_getaffinity(0)), cases) if SIZE > 1 else 1) as pool:
            for done, (ended, seconds, wrong) in enumerate(pool.imap_unordered(try_one, range(cases)), 1):
                slowest = max(slowest, seconds)
                bad += wrong
                for code in ended:
                    codes[code] = codes.get(code, 0) + 1
                if done % 100 == 0:
                    print(f"damaged checkpoints: {done} of {cases}, wrong so far {bad}", flush=True)
        print(f"damaged checkpoints: {sum(codes.values())} runs, by exit code {dict(sorted(codes.items()))}, slowest {slowest:.1f} s")
        self.assertEqual(bad, [])
        self.assertLess(slowest, 20 * SLOWNESS * 3)


if __name__ == "__main__":
    unittest.main()
