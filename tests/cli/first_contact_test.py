"""First contact of a stranger on a terminal: help that fits, words behind a cut answer, Ctrl-C in a loop. Models by name, wrong settings and files."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

from faulty_hub import Hub

from chat_terminal import Terminal
from dsv4_process import BINARY, PATIENCE, TINY, dsv4

QUESTION = "What is the capital of France?"
QUICK = ("--temperature", "0", "--thinking-mode", "chat")
CHECKPOINT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def shown(*arguments, columns=80, env=None, keys=None, until=None):
    """All that a command writes to a terminal of so many columns, and its exit status."""
    terminal = Terminal(program=[BINARY, *arguments], columns=columns, env=env)
    out, end = b"", time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            if select.select([terminal.master], [], [], 0.1)[0]:
                try:
                    data = os.read(terminal.master, 65536)
                except OSError:
                    break
                out += data
                if keys and until in out:
                    os.write(terminal.master, keys)
                    keys = None
            elif terminal.process.poll() is not None:
                break
        return out.decode(errors="replace"), terminal.process.wait(timeout=PATIENCE)
    finally:
        terminal.close()


def commands():
    overview = dsv4("help").stdout
    return re.findall(r"^  (\w+) {3,}\S", overview[overview.index("Subcommands:"):], re.MULTILINE)


class Help(unittest.TestCase):
    def test_no_line_is_wider_than_the_terminal(self):
        for columns in (40, 80, 200):
            for words in ((), *((command,) for command in commands())):
                for option in ("--help", "--help-all"):
                    text = dsv4(*words, option, env={"COLUMNS": str(columns)}).stdout
                    widest = max(text.splitlines(), key=len)
                    self.assertLessEqual(len(widest), columns, f"{words} {option}: {widest!r}")
            text, code = shown("run", "--help-all", columns=columns)
            self.assertEqual(code, 0)
            self.assertLessEqual(max(map(len, text.splitlines())), columns)

    def test_examples_first_and_rare_options_on_demand(self):
        for command in commands():
            few, all_of_them = dsv4(command, "--help").stdout, dsv4(command, "--help-all").stdout
            self.assertLess(few.index("Examples:"), few.index("Options"), command)
            names = [set(re.findall(r"^  (?:-\w,)?--([\w-]+)", text, re.MULTILINE)) for text in (few, all_of_them)]
            self.assertLessEqual(names[0], names[1], command)
            self.assertNotRegex(all_of_them, r"Excludes:|\{[a-z]|INT|FLOAT|Needs:|[,;:]\s+\(default")
            left = re.search(r"--help-all lists (\d+) more", few)
            self.assertEqual(int(left[1]) if left else 0, len(names[1]) - len(names[0]), command)
        run = dsv4("run", "--help").stdout
        self.assertLess(len(run.splitlines()), 62)
        self.assertNotIn("--draft-head", run)
        self.assertIn("--draft-head", dsv4("run", "--help-all").stdout)


class Interrupts(unittest.TestCase):
    def test_a_shell_loop_ends(self):
        with tempfile.TemporaryDirectory() as folder, Hub({"config.json": b"{}", "model.safetensors": bytes(9000)}, lambda kind, name, tries: "stall" if name == "model.safetensors" else None) as hub:
            env = {"HF_ENDPOINT": hub.url, "HF_HOME": folder, "HF_HUB_CACHE": ""}
            for line, ready in ((f"{BINARY} run -q --thinking-mode chat --temperature 1 --seed 3 -n 60000 'Tell a story.'", lambda text: len(text) > 40),
                                (f"{BINARY} pull o/n --stall 60 -q", lambda text: hub.tries.get("model.safetensors")),
                                (f"{BINARY} serve --port 0", lambda text: " at http://" in text)):
                with self.subTest(line=line):
                    loop = Terminal(program=["bash", "-c", f"for i in 1 2 3; do {line}; echo done $i; done"], env=env)
                    try:
                        text, end = "", time.monotonic() + PATIENCE
                        while not ready(text) and time.monotonic() < end:
                            if select.select([loop.master], [], [], 0.1)[0]:
                                text += os.read(loop.master, 4096).decode(errors="replace")
                        os.write(loop.master, b"\x03")
                        while select.select([loop.master], [], [], 0.1)[0] or loop.process.poll() is None:
                            try:
                                text += os.read(loop.master, 4096).decode(errors="replace")
                            except OSError:
                                break
                        self.assertIn(loop.process.wait(timeout=PATIENCE), (-signal.SIGINT, 130))
                        self.assertNotIn("done 1", text)
                    finally:
                        loop.close()


class Answers(unittest.TestCase):
    def test_what_was_cut_says_so(self):
        cut = dsv4("run", "-q", "-n", "3", *QUICK, QUESTION)
        self.assertEqual(cut.returncode, 0)
        self.assertIn("dsv4: the answer is cut at its limit of 3 tokens (-n, --max-tokens)\n", cut.stderr)
        thinking = dsv4("run", "-q", "-n", "2", "--temperature", "0", "--reasoning", "hide", QUESTION)
        self.assertIn("no answer yet: the reasoning is cut at its limit of 2 tokens", thinking.stderr)
        half = dsv4("run", "-q", "-n", "2", *QUICK, "--json-object", QUESTION)
        self.assertIn("is cut at its limit of 2 tokens", half.stderr)
        self.assertEqual(dsv4("run", "-q", *QUICK, QUESTION).stderr, "")

    def test_an_empty_question_is_an_error(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as messages:
            messages.write('[{"role": "user"}]')
            messages.flush()
            for arguments, wanted, code in (((" ",), "PROMPT: empty", 2), (("",), "PROMPT: empty", 2), (("-",), "standard input: empty", 2),
                                            (("--messages", messages.name), "[0].content: missing", 3), (("-m", "", "x"), "--model: got an empty text", 2),
                                            (("--messages", ""), "--messages: got an empty text", 2), (("--tools", "", "x"), "--tools: got an empty text", 2)):
                process = dsv4("run", *arguments)
                self.assertEqual(process.returncode, code, arguments)
                self.assertIn(wanted, process.stderr)
        for text, wanted in (("[]", "nothing is asked, want a message of the user"), ('[{"role": "user", "content": " "}]', "[0].content: empty, want what the user says"),
                             ('[{"role": "user", "content": []}]', "[0].content: empty, want what the user says"),
                             ('[{"role": "user", "content": [{"type": "text", "text": " "}]}]', "[0].content: empty, want what the user says"),
                             ('[{"role": "system", "content": "x"}]', "nothing is asked, want a message of the user"),
                             ('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]', "ends with an answer, want a message of the user behind it")):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as messages:
                messages.write(text)
                messages.flush()
                process = dsv4("run", "--messages", messages.name)
                self.assertEqual((process.returncode, process.stderr), (3, f"dsv4: {messages.name}: {wanted}\n"), text)


class Settings(unittest.TestCase):
    def test_wrong_ones_name_their_place(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.toml"
            for text, wanted in (
                    ("threads = 1\n\n[run]\ntemprature = 1\n", "line 4: run.temprature: no option of dsv4 run; did you mean temperature?"),
                    ("[rum]\nseed = 1\n", "line 2: rum.seed: no command 'rum'; did you mean run?"),
                    ("[run]\ntemperature = -1\n", "line 2: --temperature: got -1, wanted 0 or more"),
                    ("[serve]\nport = 99999999\n", "line 2: --port: got '99999999', wanted a port: 0 to 65535"),
                    ("backend = \"gpu\"\n", "line 1: --backend: got 'gpu', wanted auto, reference, cpu or cuda"),
                    ("backend = cpu\n", "line 1: got cpu, wanted a number, true, false, or a text in quotes"),
                    ("backend \"cpu\"\n", "line 1: no '=' behind backend"),
                    ("threads = 1\nthreads = 2\n", "line 2: threads a second time; the first is in line 1"),
                    ("[run]\nstop = [\"a\",\n  \"b\"\n", "a list without ','"),
                    ("backend = \"cpu\n", "line 1: a string that does not end"), ("[run\nseed = 1\n", "without ']'")):
                path.write_text(text)
                for arguments, env in (((), {"DSV4_CONFIG": str(path)}), (("--config", path), {})):
                    process = dsv4(*arguments, "run", QUESTION, env=env)
                    self.assertEqual(process.returncode, 2, text)
                    self.assertIn(f"{path}, {wanted}" if wanted.startswith("line") else wanted, process.stderr)
            # The default place is read too; lists, comments and escapes are read.
            path.write_text("# mine\n[run] # of run\nstop = [\n  'a\\b', # one\n  \"c\\u00e9\",\n]\nmax-tokens = 1_0\n\"thinking-mode\" = \"chat\"\n")
            self.assertEqual(dsv4("run", "-q", "--temperature", "0", QUESTION, env={"DSV4_CONFIG": str(path)}).returncode, 0)
        for variable, value, wanted in (("DSV4_RUN_TEMPERATURE", "warm", "--temperature: got 'warm'"), ("DSV4_BACKEND", "gpu", "--backend: got 'gpu'"),
                                        ("DSV4_RUN_JSON", "maybe", "true or false"), ("DSV4_THREADS", "-1", "--threads: got -1, wanted 0 to 4096")):
            process = dsv4("run", QUESTION, env={variable: value})
            self.assertEqual(process.returncode, 2)
            self.assertIn(variable, process.stderr)
            self.assertIn(wanted, process.stderr)
        named = dsv4("run", QUESTION, env={"DSV4_MODEL": "/none"})
        self.assertIn("DSV4_MODEL: model /none: ", named.stderr)

    def test_values_that_are_missing_are_listed(self):
        for arguments, wanted in ((("diagnose",), "CHECK is missing: "), (("launch",), "is missing: aider, claude"),
                                  (("completion",), "is missing: bash, zsh or fish"), (("experts",), "is missing: "),
                                  (("run", "--model"), "--model wants a value behind it"),
                                  (("synth", "x", "--shape", "huge"), "--shape: got 'huge', wanted "),
                                  (("run", "--ranks", "99", "x"), "--ranks: got 99, wanted 0 to 64")):
            process = dsv4(*arguments)
            self.assertEqual(process.returncode, 2, arguments)
            self.assertIn(wanted, process.stderr)


class Models(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = pathlib.Path(home.name)

    def environment(self, hub):
        return {"HF_ENDPOINT": hub.url, "HF_HOME": str(self.home), "HF_HUB_CACHE": "", "HF_TOKEN": ""}

    def test_by_name_and_address(self):
        files = {name: (TINY / name).read_bytes() for name in CHECKPOINT if (TINY / name).exists()}
        with Hub(files, name="acme/Small-V4") as hub:
            env = self.environment(hub)
            self.assertIn("nothing was pulled", dsv4("list", env=env).stderr)
            checked = dsv4("pull", f"{hub.url}/acme/Small-V4/tree/main?a=1", "--check", env=env)
            self.assertEqual(checked.returncode, 0, checked.stderr)
            self.assertRegex(checked.stderr, r"acme/Small-V4: \S+ MB in \d+ files, \S+ MB to come, .* free on the disk\nOn this machine: it fits .*\n")
            self.assertFalse(list(self.home.glob("hub/*/snapshots/*")))
            for address in ("acme/Small-V4", f"{hub.url}/acme/Small-V4", f"{hub.url}/acme/Small-V4/", "https://huggingface.co/acme/Small-V4",
                            "hf.co/acme/Small-V4/blob/main/config.json", "hf://acme/Small-V4", f"{hub.url}/acme/Small-V4.git"):
                self.assertEqual(dsv4("pull", address, "-q", env=env).returncode, 0, address)
            self.assertRegex(dsv4("list", env=env).stdout, r"acme/Small-V4 +\S+ MB  deepseek_v4\n")
            self.assertEqual(dsv4("list", "-q", env=env).stdout, "acme/Small-V4\n")
            listed = json.loads(dsv4("list", "--json", env=env).stdout)
            self.assertEqual([(each["name"], each["runs"]) for each in listed], [("acme/Small-V4", True)])
            self.assertIn("dsv4 run -m acme/Small-V4", dsv4("show", "Small-V4", env=env).stdout)
            converted = self.home / "converted"
            self.assertEqual(dsv4("convert", "Small-V4", converted, env=env).returncode, 0)
            for name in ("acme/Small-V4", "Small-V4", f"{hub.url}/acme/Small-V4", converted):
                self.assertIn("Paris", dsv4("run", "-q", "-m", name, *QUICK, QUESTION, env=env).stdout)
            script = f'source <({BINARY} completion bash); COMP_WORDS=({BINARY} run -m acme); COMP_CWORD=3; _dsv4; printf "%s\\n" "${{COMPREPLY[@]}}"'
            done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, env=os.environ | env)
            self.assertIn("acme/Small-V4", done.stdout.split(), done.stderr)
            # A second commit: only what it alone has goes.
            before, hub.commit = hub.commit, "d" * 40
            hub.files["generation_config.json"] = b'{"a": 1}'
            self.assertEqual(dsv4("pull", "acme/Small-V4", "-q", env=env).returncode, 0)
            self.assertEqual(dsv4("rm", f"acme/Small-V4@{before}", "--dry-run", env=env).returncode, 0)
            self.assertEqual(dsv4("rm", f"acme/Small-V4@{before}", env=env).returncode, 0)
            self.assertIn("Paris", dsv4("run", "-q", "-m", "Small-V4", *QUICK, QUESTION, env=env).stdout)
            self.assertEqual(dsv4("rm", "Small-V4", env=env).returncode, 0)
            self.assertFalse((self.home / "hub/models--acme--Small-V4").exists())
            for command in ("rm", "show"):
                gone = dsv4(command, "Small-V4", env=env)
                self.assertEqual(gone.returncode, 3)
                self.assertIn("not pulled", gone.stderr)
                folder = dsv4(command, str(TINY), env=env)
                self.assertEqual((folder.returncode, folder.stderr), (3, f"dsv4: {TINY}: a folder, not a pulled model; `dsv4 inspect -m {TINY}` says what it is\n"))

    def test_what_does_not_run_is_said_before_the_weights(self):
        with Hub({"config.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}', "model.safetensors": bytes(9000)}) as hub:
            env = self.environment(hub)
            refused = dsv4("pull", "o/n", env=env)
            self.assertEqual(refused.returncode, 3)
            self.assertIn("llama", refused.stderr)
            self.assertNotIn("model.safetensors", hub.tries)
            self.assertEqual(dsv4("pull", "o/n", "-q", "--any-model", env=env).returncode, 0)
            self.assertIn("llama, not for dsv4", dsv4("list", env=env).stdout)
            self.assertEqual(dsv4("list", "-q", env=env).stdout, "")
        with Hub({"a-Q4_K_M.gguf": bytes(9000), "README.md": b"x", "config.json": b"{}"}) as hub:
            gguf = dsv4("pull", "o/n", env=self.environment(hub))
            self.assertEqual(gguf.returncode, 3)
            self.assertIn("GGUF, the format of llama.cpp", gguf.stderr)

    def test_errors_of_the_hub_are_sentences(self):
        with Hub({"config.json": b"{}"}) as hub:
            unknown = dsv4("pull", "acme/nope", env=self.environment(hub))
            self.assertEqual(unknown.returncode, 3)
            self.assertIn("acme/nope: no such repository or revision on " + hub.url, unknown.stderr)
            self.assertNotIn("{", unknown.stderr)
            other = dsv4("pull", "https://example.com/o/n", env=self.environment(hub))
            self.assertEqual(other.returncode, 2)
            self.assertIn("HF_ENDPOINT", other.stderr)
            self.assertIn("one of the hub's datasets", dsv4("pull", "https://huggingface.co/datasets/o/n").stderr)

    def test_the_rest_is_said_once(self):
        with Hub({"config.json": b"{}", "model.safetensors": bytes(3 << 20)}, lambda kind, name, tries: "slow" if name == "model.safetensors" else None) as hub:
            text, _ = shown("pull", "o/n", env=self.environment(hub))
            for line in re.split(r"[\r\n]", text):
                self.assertLessEqual(line.count(" left"), 1, line)

    def test_files_of_other_programs_are_named(self):
        gguf = self.home / "model.gguf"
        gguf.write_bytes(b"GGUF\x03\0\0\0")
        for path in (gguf, self.home):
            for command in (("run", QUESTION, "-m", path), ("inspect", "-m", path), ("convert", path, self.home / "out")):
                process = dsv4(*command)
                self.assertEqual(process.returncode, 3, command)
                self.assertIn("GGUF, the format of llama.cpp", process.stderr, command)
                self.assertIn("dsv4 pull", process.stderr, command)
        self.assertIn("`dsv4 pull o/n` fetches it", dsv4("convert", "o/n", self.home / "out").stderr)
        self.assertIn("SRC: got an empty text", dsv4("convert", "", self.home / "out").stderr)

    def test_another_architecture_is_said_first(self):
        (self.home / "config.json").write_text('{"model_type": "llama"}')
        for command in (("run", QUESTION), ("serve", "--port", "0")):
            process = dsv4(*command, "-m", self.home)
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn('model_type: "llama"', process.stderr)

    def test_ps_shows_a_server(self):
        server = subprocess.Popen([BINARY, "serve", "--port", "0", "-m", TINY], stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in server.stderr if " at http://" in line)
            port = re.search(r"http://[^:]+:(\d+)", line)[1]
            found = [each for each in json.loads(dsv4("ps", "--json").stdout) if each["pid"] == server.pid]
            self.assertEqual([(each["command"], each["model"], each["addresses"]) for each in found], [("serve", str(TINY), [f"127.0.0.1:{port}"])])
            self.assertRegex(dsv4("ps").stdout, rf"{server.pid}  serve +\S*models/tiny .* 127.0.0.1:{port}")
        finally:
            server.terminate()
            server.communicate(timeout=PATIENCE)


class Progress(unittest.TestCase):
    def test_eval_shows_how_far_it_is(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
            data.write((json.dumps({"text": "The capital of France is Paris. " * 60}) + "\n") * 3)
            data.flush()
            text, code = shown("eval", "perplexity", "--data", data.name)
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"evaluating .*\d of 3 lines, \d+ tokens")
            self.assertNotIn("evaluating", dsv4("eval", "perplexity", "--data", data.name).stderr)

    def test_one_long_step_is_not_silent(self):
        with tempfile.TemporaryDirectory() as folder:
            ids, words = pathlib.Path(folder, "ids.json"), pathlib.Path(folder, "words.txt")
            for command in (("logits", "--tokens", ids, "--output", f"{folder}/l.npy"), ("experts", "profile", "--text", words, "--window", "65536", "--output", f"{folder}/p")):
                tokens, seconds = 500, 0
                while seconds < 4 and tokens < 64000:  # Until this machine needs more than the second that may be silent.
                    tokens *= 2
                    ids.write_text(json.dumps([100 + i % 2000 for i in range(tokens)]))
                    words.write_text("word " * tokens)
                    begin = time.monotonic()
                    text, code = shown(*command)
                    seconds = time.monotonic() - begin
                    self.assertEqual(code, 0, text)
                self.assertRegex(text, r"Reading, \d+ s", f"{command}: {seconds:.1f} s")

    def test_synth_counts_bytes_for_people(self):
        with tempfile.TemporaryDirectory() as folder:
            text, code = shown("synth", f"{folder}/x", "--shape", "tiny")
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"writing .*MB of [\d.]+ MB")


class SmallModel(unittest.TestCase):
    """models/tiny says what it is where it cannot answer, and ends."""

    NOTICE = "This model is a demonstration of 21 million weights and knows simple English alone: its answer to this would be noise."
    STOPPED = f"dsv4: {NOTICE} (--anyway answers all the same)\n"

    def test_other_languages_and_nonsense(self):
        for question in ("Was ist die Hauptstadt von Frankreich?", "日本 😀", "asdf qwer zxcv"):
            process = dsv4("run", "-q", *QUICK, question)
            self.assertEqual((process.returncode, process.stdout, process.stderr), (1, "", self.STOPPED), question)
        for question in (QUESTION, "hello"):
            self.assertNotIn(self.NOTICE, dsv4("run", *QUICK, "-n", "8", question).stderr, question)
        self.assertEqual(dsv4("run", "-q", "--weights", "synthetic:tiny", "-n", "2", *QUICK, "日本").stderr.count("demonstration"), 0)
        process = dsv4("run", "--anyway", "-n", "8", *QUICK, "日本")
        self.assertIn(f"dsv4: {self.NOTICE}\n", process.stderr)
        self.assertIn("cut at its limit of 8 tokens", process.stderr)
        self.assertEqual(process.returncode, 0)
        for question, notice in (("日本", self.NOTICE), (QUESTION, None)):
            process = dsv4("run", "--json", "-n", "4", *QUICK, question)
            self.assertEqual((json.loads(process.stdout)["notice"], process.returncode, process.stderr), (notice, 0, ""))

    def test_in_a_chat(self):
        process = dsv4("run", "-q", *QUICK, stdin="Comment ça va ?\n/anyway\n/anyway\n" + QUESTION + "\n")
        self.assertEqual(process.stderr.count(f"{self.NOTICE} /anyway answers all the same."), 1)
        self.assertIn("No message was stopped.", process.stderr)
        self.assertIn("Paris", process.stdout)
        # A conversation that ends in a result or an answer is not judged by it.
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "chat.json")
            path.write_text(json.dumps([{"role": "user", "content": "日本"}, {"role": "assistant", "content": "Tokyo."}, {"role": "user", "content": QUESTION}]))
            self.assertNotIn("demonstration", dsv4("run", "-q", *QUICK, "--messages", path).stderr)

    def test_its_limit_is_a_default(self):
        def answer(*arguments, directory=TINY):
            return json.loads(dsv4("run", "--json", "--raw", "-m", directory, *arguments, "Once").stdout)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file in CHECKPOINT:
                if (TINY / file).exists():
                    (folder / file).symlink_to(TINY / file)
            config = json.loads((TINY / "generation_config.json").read_text())
            for limit, wanted in ((7, 7), (None, None), (0, "got 0, wanted a whole number from 1 on"), ("x", "got \"x\", wanted")):
                (folder / "generation_config.json").unlink()
                (folder / "generation_config.json").write_text(json.dumps(config | {"max_new_tokens": limit}))
                if isinstance(wanted, str):
                    process = dsv4("run", "-m", folder, QUESTION)
                    self.assertEqual(process.returncode, 3)
                    self.assertIn("max_new_tokens: " + wanted, process.stderr)
                elif wanted:
                    self.assertEqual(len(answer(directory=folder)["token_ids"]), wanted)
                    self.assertEqual(len(answer("-n", "9", directory=folder)["token_ids"]), 9)
                else:
                    self.assertGreater(len(answer("-n", "600", "--seed", "5", directory=folder)["token_ids"]), 0)


class Drawn(unittest.TestCase):
    """Markdown on a terminal, of an answer that the grammar forces."""

    TEXT = "- **bold** [page](https://example.org/a) and \\(x_i^2\\)"

    def drawn(self, **env):
        return shown("run", "-q", "--thinking-mode", "chat", "--choice", self.TEXT, QUESTION, env=env)[0]

    def test_links_and_formulas(self):
        out = self.drawn(TERM="xterm")
        self.assertIn("\x1b]8;;https://example.org/a\x1b\\page", out)
        text = re.sub(r"\x1b\]8;;[^\x1b]*\x1b\\|\x1b\[[0-9;?]*[A-Za-z]", "", out)
        self.assertIn("• bold page (https://example.org/a) and xᵢ²", text)

    def test_no_color_takes_colours_alone(self):
        out = self.drawn(TERM="xterm", NO_COLOR="1")
        self.assertIn("• \x1b[0;1mbold", out)
        self.assertEqual(set(re.findall(r"\x1b\[([0-9;]*)m", out)) & {"2", "0;2", "0;36"}, set())
        self.assertIn(self.TEXT, self.drawn(TERM="dumb"))
        with Hub({"config.json": b"{}"}) as hub:
            warned = shown("pull", "o/n", "--retries", "1", env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nonexistent", "NO_COLOR": "1"})[0]
            self.assertIn("warning: ", warned)
            self.assertNotIn("\x1b[3", warned, hub.url)


class Reports(unittest.TestCase):
    def test_the_table_of_bench_fits_the_terminal(self):
        text, code = shown("bench", "--prefill", "16", "--depth", "0,16", "--batch", "1,2", "--repeat", "1", "--profile")
        self.assertEqual(code, 0, text)
        table = text[text.index("depth batch"):]
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", table[:table.index("memory ")]).replace("\r", "\n").splitlines()
        self.assertGreater(len(lines), 10)
        self.assertIn("by bytes alone", table)
        for line in lines:
            self.assertLessEqual(len(line), 80, line)

    def test_logits_says_what_it_wrote(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = pathlib.Path(folder, "ids.json")
            ids.write_text("[2, 100, 200]")
            process = dsv4("logits", "--tokens", ids, "--output", f"{folder}/l.npy")
            self.assertEqual((process.returncode, process.stdout), (0, ""))
            self.assertEqual(process.stderr, f"dsv4: {folder}/l.npy: 3 x 5120 of float32\n")

    def test_doctor_says_what_would_run(self):
        report = {each["subject"]: each for each in json.loads(dsv4("doctor", "--json").stdout)["findings"]}
        self.assertRegex(report["Flash"]["text"], r"^DeepSeek-V4-Flash, 156\.02 GB: ")
        self.assertRegex(report["Pro"]["text"], r"^DeepSeek-V4-Pro, 851\.05 GB: ")
        # The same sizes as inspect counts.
        flash = json.loads(dsv4("inspect", "--weights", "synthetic:flash", "--json").stdout)
        self.assertAlmostEqual(flash["file_bytes"] / 156.02e9, 1, delta=0.01)
        # A part of the weights comes from the disk again and again, the one that inspect names.
        for name, size in (("Flash", 156.02), ("Pro", 851.05)):
            if again := re.search(r"than the ([\d.]+) GB of memory.* read about ([\d.]+) GB", report[name]["text"]):
                self.assertAlmostEqual(float(again[1]) + float(again[2]), size, delta=0.02, msg=report[name]["text"])


class FirstProgram(unittest.TestCase):
    def test_the_program_of_the_first_answer_is_run_alone(self):
        alone = pathlib.Path(BINARY).with_name("dsv4-run")
        answers = [subprocess.run([program, "run", QUESTION, *QUICK], capture_output=True, text=True, check=True).stdout
                   for program in (BINARY, alone)]
        self.assertEqual(*answers)
        refused = subprocess.run([alone, "serve"], capture_output=True, text=True, check=False)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("unknown command 'serve'", refused.stderr)

    def test_a_tier_that_the_first_program_was_built_without_is_said(self):
        alone = pathlib.Path(BINARY).with_name("dsv4-run")
        for tier in ("scalar", "avx2", "avx512", "avx512bf16", "amx"):
            one = subprocess.run([alone, "run", QUESTION, *QUICK], env=os.environ | {"DSV4_CPU_ISA": tier}, capture_output=True, text=True, check=False)
            if one.returncode == 0:
                continue
            self.assertEqual((one.returncode, one.stdout), (1, ""), tier)
            self.assertRegex(one.stderr, rf"backend cpu: tier {tier}: (this program was built without it|this machine lacks it|the kernel does not).*; it has [a-z0-9]")


if __name__ == "__main__":
    unittest.main()
