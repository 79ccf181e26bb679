"""GPUs of two machines as ranks of one model, over NCCL's sockets: one GPU each of this machine's, in network namespaces that share nothing else."""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

from ranks_command_test import ENDLESS, MachinesTest, children

from dsv4_process import PATIENCE, dsv4_json

QUESTION = ("Write a long story about a sailor.", "--temperature", "0", "--max-tokens", "60", "--json")


def num_gpus():
    if shutil.which("nvidia-smi") is None:
        return 0
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")


class GpusOfTwoMachines(MachinesTest):
    mounts = True

    def start(self, *arguments, second=()):
        """Rank 0 on the first machine, rank 1 on the second, whose arguments may be others."""
        ranks = []
        for rank, machine in enumerate((self.one, self.other)):
            # Neither memory of the other GPU nor of the host is there: on two machines it is not.
            env = {"CUDA_VISIBLE_DEVICES": str(rank), "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}
            own = (*arguments, *(second if rank == 1 else ()))
            ranks.append(machine.start(rank, 0, 2, *own, "--backend", "cuda", "--log-level", "info", env=env))
        return ranks

    def test_the_answer_is_that_of_one_gpu(self):
        """In every placement of two ranks; those that add in another order in plain numerics, which no rounding tips over."""
        planned = [each["placement"] for each in dsv4_json("inspect", "--ranks", "2", "--context", "4096", "--json")["placements"]]
        self.assertGreaterEqual(len(planned), 5)
        for placement in planned:
            numerics = "plain" if "tensor" in placement or "entries" in placement else "release"
            with self.subTest(placement=placement):
                alone = dsv4_json("run", *QUESTION, "--numerics", numerics, "--backend", "cuda")
                ranks = self.start("run", *QUESTION, "--numerics", numerics, "--placement", placement)
                outputs = [rank.communicate(timeout=PATIENCE) for rank in ranks]
                self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
                answer = json.loads(outputs[0][0])
                self.assertEqual(answer["token_ids"], alone["token_ids"])
                ours, one = (1e3 / each["timings"]["decode_tokens_per_second"] for each in (answer, alone))
                print(f"{placement}: {ours:.2f} ms a token, {one:.2f} on one GPU", file=sys.stderr)
                for rank, machine in enumerate(("node-a", "node-b")):
                    self.assertRegex(outputs[rank][1], f"(?i)warn.*{machine}: GPUs of other machines are reached over TCP.*no RDMA device")

    def test_a_wrong_rank_is_named(self):
        for rank in self.start("run", *QUESTION, "--rank-timeout", "20", second=("--numerics", "plain")):
            _, errors = rank.communicate(timeout=PATIENCE)
            self.assertIn(rank.returncode, (1, 2), errors)
            self.assertRegex(errors, "rank 1 runs .*--numerics plain.*rank 0 .*--numerics release")

    def lose(self, lose, found):
        ranks = self.start("run", *ENDLESS, "--rank-timeout", "20")
        for rank in ranks:  # All have loaded, so they have met before.
            said = []
            while ": placement " not in "".join(said[-1:]):
                said.append(rank.stderr.readline())
                self.assertNotEqual(said[-1], "", said)
        lose(ranks)
        _, errors = ranks[0].communicate(timeout=50)  # The deadline of 20 s, and the end of what runs.
        self.assertEqual(ranks[0].returncode, 1, errors)
        self.assertRegex(errors, found)
        ranks[1].wait(timeout=50)

    def test_a_killed_rank_is_named(self):
        def kill(ranks):
            (rank,) = children(ranks[1].pid)
            os.kill(rank, signal.SIGKILL)
        self.lose(kill, r"rank 1 (of 2 )?\(process \d+ of node-b\)")

    def test_a_cut_line_is_named_by_the_deadline(self):
        self.lose(lambda _: self.cut(), r"rank 1 (of 2 )?\(process \d+ of node-b\)(: not there within| is not reached any more)")


if __name__ == "__main__":
    if num_gpus() < 2:
        print("skipped: this needs two GPUs")
        sys.exit(77)
    unittest.main()
