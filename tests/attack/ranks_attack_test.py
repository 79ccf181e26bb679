"""Ranks that are killed or stopped, and strangers at their meeting place."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

from attack_testing import dice, sized

from dsv4_process import BINARY, PATIENCE, ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests" / "ranks"))
from ranks_command_test import ENDLESS, LONG_DEADLINE, alive, children  # noqa: E402


def shared_memory():
    return sorted(path.name for path in pathlib.Path("/dev/shm").iterdir() if "dsv4" in path.name)


class Ranks(unittest.TestCase):
    def test_killed_ranks_are_named_and_leave_nothing(self):
        chance = dice("ranks")
        before, slowest, kills = set(shared_memory()), 0.0, sized(4, 18)
        for i in range(kills):
            ranks = chance.randint(2, 4)
            run = subprocess.Popen([BINARY, "run", *ENDLESS, "--ranks", str(ranks), "--rank-network", ("auto", "tcp")[i % 2], *LONG_DEADLINE],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.kill)
            wait_until(lambda run=run, ranks=ranks: len(children(run.pid)) == ranks - 1, "all ranks are there")
            others = children(run.pid)
            time.sleep(chance.uniform(0, 1))
            victim = chance.choice(others)
            os.kill(victim, signal.SIGKILL)
            begin = time.perf_counter()
            _, errors = run.communicate(timeout=PATIENCE)
            slowest = max(slowest, time.perf_counter() - begin)
            self.assertEqual(run.returncode, 1, errors)
            self.assertRegex(errors, rf"rank \d of {ranks} \(process {victim}\) ended")
            self.assertEqual([rank for rank in others if alive(rank)], [])
        # Other tests' ranks come and go beside these.
        wait_until(lambda: not set(shared_memory()) - before, "no shared memory is left")
        print(f"killed ranks: {kills} of {kills} named, the group ended within {slowest:.2f} s, no shared memory left")

    def test_strangers_at_the_meeting_place(self):
        # Rank 0 waits for rank 1 at a port that anybody can reach. Only the magic number lets one in (docs/scaling.md says so).
        chance = dice("strangers")
        strangers = {
            "silent": lambda s: None,
            "noise": lambda s: s.sendall(chance.randbytes(1 << 20)),
            "HTTP": lambda s: s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            "a byte": lambda s: s.sendall(b"\0"),
            "reset": lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
            "hundreds": None,
        }
        for name, act in strangers.items():
            with self.subTest(stranger=name), contextlib.ExitStack() as stack:
                holder = stack.enter_context(socket.socket())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(("127.0.0.1", 0))
                port = holder.getsockname()[1]

                def start(rank, port=port, stack=stack):
                    environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                    process = subprocess.Popen([BINARY, "run", "What is the capital of France?", "--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "8", "--threads", "1",
                                                "--rank-timeout", "60"], env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE, text=True)
                    stack.callback(process.kill)
                    return process
                first = start(0)

                def reach(port=port):
                    try:
                        return socket.create_connection(("127.0.0.1", port), timeout=1)
                    except OSError:
                        return None
                connections = [wait_until(reach, "rank 0 listens")]
                if act is None:
                    for _ in range(sized(100, 600)):
                        with contextlib.suppress(OSError):
                            connections.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                else:
                    with contextlib.suppress(OSError):
                        act(connections[0])
                    if name == "reset":
                        connections.pop().close()
                second = start(1)
                output, errors = first.communicate(timeout=PATIENCE)
                self.assertEqual(first.returncode, 0, errors)
                self.assertIn("Paris", output)
                second.communicate(timeout=PATIENCE)
                self.assertEqual(second.returncode, 0)
                for connection in connections:
                    connection.close()


if __name__ == "__main__":
    unittest.main()
