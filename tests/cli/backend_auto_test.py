"""`--backend auto`, the default: what is said of a GPU that this build or a command leaves idle. The GPU is a stand-in for what NVIDIA's
kernel module shows, below another root.

    DSV4_BINARY=build/release/dsv4 backend_auto_test.py
"""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from dsv4_process import dsv4, dsv4_json

QUESTION = "What is the capital of France?"

# Opens what is asked for below /proc/driver/nvidia and /dev/nvidia* under $FAKE_ROOT.
SHIM = r"""
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static const char* Moved(const char* path, char* buffer) {
  if (strncmp(path, "/proc/driver/nvidia", 19) != 0 && strncmp(path, "/dev/nvidia", 11) != 0) return path;
  snprintf(buffer, 4096, "%s%s", getenv("FAKE_ROOT"), path);
  return buffer;
}
#define REAL(name) ((name##_type)dlsym(RTLD_NEXT, #name))
typedef DIR* (*opendir_type)(const char*);
DIR* opendir(const char* path) { char b[4096]; return REAL(opendir)(Moved(path, b)); }
typedef int (*access_type)(const char*, int);
int access(const char* path, int mode) { char b[4096]; return REAL(access)(Moved(path, b), mode); }
typedef FILE* (*fopen_type)(const char*, const char*);
FILE* fopen(const char* path, const char* mode) { char b[4096]; return REAL(fopen)(Moved(path, b), mode); }
typedef FILE* (*fopen64_type)(const char*, const char*);
FILE* fopen64(const char* path, const char* mode) { char b[4096]; return REAL(fopen64)(Moved(path, b), mode); }
typedef int (*openat_type)(int, const char*, int, ...);
int openat(int at, const char* path, int flags, ...) { char b[4096]; return REAL(openat)(at, Moved(path, b), flags, 0600); }
typedef int (*open_type)(const char*, int, ...);
int open(const char* path, int flags, ...) {
  char b[4096]; va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
  return REAL(open)(Moved(path, b), flags, mode);
}
"""
WITHOUT_CUDA = " cuda" not in dsv4("--version").stdout


@unittest.skipUnless(WITHOUT_CUDA, "a build with CUDA asks CUDA")
class ASeenGpu(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        source, library = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(SHIM, encoding="utf-8")
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source], check=True)
        gpu = self.folder / "proc/driver/nvidia/gpus/0000:01:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA H200\nDevice Minor: \t 0\n", encoding="utf-8")
        (self.folder / "dev").mkdir()
        (self.folder / "dev/nvidia0").touch()
        self.environment = {"LD_PRELOAD": str(library), "FAKE_ROOT": str(self.folder), "ASAN_OPTIONS": "verify_asan_link_order=0"}

    def run_with_gpu(self, *arguments, **environment):
        return dsv4(*arguments, env=self.environment | environment)

    def test_an_idle_gpu_is_said_in_one_line(self):
        answer = self.run_with_gpu("run", "-q", QUESTION, "--max-tokens", 4)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertRegex(answer.stderr, r"^warning: GPU NVIDIA H200: idle, this build has no CUDA backend \(./dev build --cuda[^\n]*\)\n")
        self.assertEqual(answer.stderr.count("H200"), 1)

    def test_so_is_one_beside_a_named_cpu(self):
        named = self.run_with_gpu("run", "-q", QUESTION, "--max-tokens", 4, "--backend", "cpu")
        self.assertEqual(named.returncode, 0, named.stderr)
        self.assertIn("GPU NVIDIA H200: idle, as --backend cpu was named\n", named.stderr)
        disk = self.run_with_gpu("run", "-q", QUESTION, "--max-tokens", 4, "--experts", "disk")
        self.assertIn("GPU NVIDIA H200: idle, as --experts disk is for --backend cpu\n", disk.stderr)

    def test_gpus_that_are_hidden_or_closed_are_none(self):
        hidden = self.run_with_gpu("run", "-q", QUESTION, "--max-tokens", 4, CUDA_VISIBLE_DEVICES="")
        self.assertNotIn("idle", hidden.stderr)
        (self.folder / "dev/nvidia0").unlink()
        self.assertNotIn("idle", self.run_with_gpu("run", "-q", QUESTION, "--max-tokens", 4).stderr)

    def test_doctor_says_what_is_used(self):
        text = self.run_with_gpu("doctor").stdout
        self.assertRegex(text, r"(?m)^note +backend +cpu \(--backend auto\): GPU NVIDIA H200: idle, this build has no CUDA backend")
        self.assertRegex(text, r"(?m)^note +GPU +GPU NVIDIA H200, and this build has no CUDA backend")


@unittest.skipUnless(WITHOUT_CUDA, "of a build without CUDA")
class WithoutAGpu(unittest.TestCase):
    def test_the_backend_is_said_everywhere(self):
        report = dsv4_json("run", QUESTION, "--json", "--max-tokens", 4)
        self.assertEqual(report["backend"], "cpu")
        self.assertRegex(report["device"], r"^CPU \(\w+\)$")
        self.assertRegex(dsv4("run", QUESTION, "--max-tokens", 4).stderr, r", on cpu \(\w+\)\n")
        self.assertEqual(dsv4_json("run", QUESTION, "--json", "--max-tokens", 4, "--backend", "reference")["device"], "CPU")
        self.assertRegex(dsv4("doctor").stdout, r"(?m)^ok +backend +cpu \(--backend auto\)$")

    def test_options_that_want_a_gpu_say_why_there_is_none_in_one_line(self):
        for arguments in (("--gpus", 2), ("--gpu-memory", 8), ("--host-memory", 8), ("--experts", "auto"), ("--experts", "cached=100%")):
            with self.subTest(arguments=arguments):
                refused = dsv4("run", QUESTION, *arguments)
                self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1), refused.stderr)
                self.assertIn(arguments[0], refused.stderr)
                self.assertIn("this build has no CUDA backend (./dev build --cuda makes one with it", refused.stderr)
        self.assertIn("--explain: wants a GPU: this build has no CUDA backend", dsv4("bench", "--explain").stderr)
        named = dsv4("run", QUESTION, "--gpu-memory", 8, "--backend", "cpu")
        self.assertIn("--gpu-memory 8: got --backend cpu, want cuda", named.stderr)

    def test_a_plan_stands_for_a_gpu(self):
        plan = dsv4_json("inspect", "--experts", "cached=100%", "--gpu-memory", 3, "--json")["experts"]
        self.assertEqual(plan["host"], 0)

    def test_a_named_backend_is_never_replaced(self):
        refused = dsv4("run", QUESTION, "--backend", "cuda")
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("not in this build", refused.stderr)

    def test_settings_name_it_too(self):
        report = dsv4_json("run", QUESTION, "--json", "--max-tokens", 4, env={"DSV4_BACKEND": "reference"})
        self.assertEqual(report["backend"], "reference")


if __name__ == "__main__":
    unittest.main()
