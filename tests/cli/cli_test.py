"""Every subcommand as scripts use it: output, exit codes, and the same answer however it is computed."""

import array
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, FIXTURES, ROOT, TINY, dsv4, dsv4_json, read_npy

QUESTION = "What is the capital of France?"
TICKET_QUESTION = "Search a ticket with tags cook, color golden, please."
TICKET = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": {
    "type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                     "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}}}


class Arguments(unittest.TestCase):
    def expect_usage_error(self, *arguments):
        process = dsv4(*arguments)
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertEqual(process.stdout, "")
        self.assertNotEqual(process.stderr, "")

    def test_unknown_or_misplaced_arguments_are_errors(self):
        self.expect_usage_error()
        self.expect_usage_error("walk")
        self.expect_usage_error("run", QUESTION, "--no-such-flag")
        self.expect_usage_error("run", QUESTION, "and a second prompt")
        self.expect_usage_error("run", QUESTION, "--max-layers", "x")
        self.expect_usage_error("run", QUESTION, "--backend", "tpu")
        self.expect_usage_error("run", QUESTION, "--top-p", "1.5")
        self.expect_usage_error("run", QUESTION, "--numa", "spread")
        self.expect_usage_error("run", QUESTION, "--logit-bias", "5:1")
        self.expect_usage_error("run", "--json")
        self.expect_usage_error("run", QUESTION, "--verify", "-1")
        self.expect_usage_error("run", QUESTION, "--verify", "1", "--backend", "reference")
        self.expect_usage_error("run", "--raw", QUESTION, "--system", "x")
        self.expect_usage_error("logits", "--tokens", "x")

    def test_help_and_version(self):
        self.assertEqual(dsv4("--help").returncode, 0)
        self.assertIn("--temperature", dsv4("run", "--help").stdout)
        for words in (("--version",), ("-V",), ("version",)):
            self.assertRegex(dsv4(*words).stdout, r"^dsv4 \d+\.\d+\.\d+ \(commit \w+, backends reference cpu")
        self.assertEqual(dsv4("help", "run").stdout, dsv4("run", "--help").stdout)
        self.assertIn("--model", dsv4("help", "run").stdout)

    def test_usage_errors_say_what_was_meant(self):
        for arguments, wanted in (
                (("run", "--temprature", "0", QUESTION), "unknown option --temprature; did you mean --temperature?"),
                (("rnu", QUESTION), "unknown command 'rnu'; did you mean run?"),
                (("run", "two", "words"), "'words'"),
                (("run", QUESTION, "--max-tokens", "0"), "--max-tokens: got 0, wanted more than 0\n"),
                (("run", QUESTION, "--revision", "v3"), "wanted one of v4, v4-0731, v4.1"),
                (("run", QUESTION, "--effort", "huge"), "knows high, max"),
                (("serve", "--host", "no.such.host.invalid", "--port", "0"), "--host no.such.host.invalid"),
                (("serve", "--learn-experts", "on", "--max-layers", "1", "--port", "0"), "want no --max-layers"),
                (("run", QUESTION, "--seed", "-1"), "--seed: got -1, wanted 0 or more"),
                (("serve", "--port", "99999"), "--port: got '99999', wanted a port: 0 to 65535"), (("serve", "--port", "abc"), "--port: got 'abc', wanted a port: 0 to 65535"),
                (("help", "rnu"), "unknown command 'rnu'; did you mean run?"), (("rnu", "--help"), "unknown command 'rnu'; did you mean run?"),
                (("run", b"caf\xe9"), "PROMPT: not valid UTF-8 at byte 3 (0xE9)"), (("run", QUESTION, "--system", b"\xff"), "--system: not valid UTF-8 at byte 0 (0xFF)"),
                (("synth", "/"), "not an empty directory")):
            with self.subTest(arguments=arguments):
                process = dsv4(*arguments)
                self.assertEqual(process.returncode, 2)
                self.assertIn(wanted, process.stderr)
                self.assertLess(len(process.stderr), 400)

    def test_an_option_that_a_command_has_no_use_for_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in (("--max-layers", "2"), ("--max-layers=2",), ("-t", "1"), ("-t1",)):
                for arguments in (("synth", f"{folder}/x", "--shape", "tiny", *words), (*words, "synth", f"{folder}/x", "--shape", "tiny")):
                    with self.subTest(arguments=arguments):
                        process = dsv4(*arguments)
                        self.assertEqual(process.returncode, 2)
                        option = "--max-layers" if "max" in words[0] else "--threads"
                        self.assertTrue(process.stderr.startswith(f"dsv4 synth: {option} is for commands that run a model\n"), process.stderr)
                        self.assertEqual(os.listdir(folder), [])
            # Set for other commands.
            made = dsv4("synth", f"{folder}/x", "--shape", "tiny", "--layers", "2", env={"DSV4_MAX_LAYERS": "1", "DSV4_THREADS": "1"})
            self.assertEqual(made.returncode, 0, made.stderr)
        self.assertNotIn("--max-layers", dsv4("help", "synth").stdout)
        self.assertIn("--log-level", dsv4("help", "synth").stdout)
        self.assertIn("--threads", dsv4("help", "convert").stdout)
        self.assertEqual(dsv4("tokenize", "--numerics", "plain", "text").returncode, 2)
        # convert has an --experts of its own, behind its name.
        self.assertIn("--experts is for commands", dsv4("--experts", "auto", "convert", "no", "where").stderr)
        self.assertIn("model no: neither a directory nor a pulled model", dsv4("convert", "no", "where", "--experts", "nvfp4").stderr)
        self.assertEqual(dsv4("tokenize", "-v", "text").returncode, 0)

    def test_an_option_takes_one_value_and_leaves_the_prompt(self):
        arguments = ("run", "--json", "--temperature", "0", "--max-tokens", "4")
        usual = dsv4_json(*arguments, QUESTION)["prompt_token_ids"]
        for option, value in (("--stop", "never this"), ("--logit-bias", "5=-1")):
            self.assertEqual(dsv4_json(*arguments, option, value, option, value, QUESTION)["prompt_token_ids"], usual)

    def test_the_answer_alone_goes_to_a_pipe(self):
        arguments = ("run", "--temperature", "0", QUESTION)
        shown = dsv4(*arguments)
        document = dsv4_json(*arguments, "--json")
        self.assertEqual(shown.stdout, document["content"] + "\n")
        self.assertIn(document["reasoning_content"], shown.stderr)
        self.assertNotIn("\x1b", shown.stdout + shown.stderr)
        self.assertEqual(dsv4(*arguments, "--reasoning", "only").stdout, document["reasoning_content"] + "\n")
        for quiet in (dsv4(*arguments, "--reasoning", "hide", "-q"),
                      dsv4("run", "--temperature", "0", "--reasoning", "hide", "-q", stdin=QUESTION + "\n")):
            self.assertEqual((quiet.stdout, quiet.stderr), (shown.stdout, ""))

    def test_options_from_file_and_environment(self):
        def temperature(*arguments, **env):
            return re.search(r"(greedy|temperature \S+),", dsv4("run", "-n", "1", *arguments, QUESTION, env=env).stderr)[1]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "dsv4" / "config.toml"
            path.parent.mkdir()
            path.write_text('threads = 1\n[run]\ntemperature = 0.25\nstop = ["never", "this"]\n[serve]\nport = 1\n')
            file = {"DSV4_CONFIG": str(path)}
            self.assertEqual(temperature(), "temperature 1")
            self.assertEqual(temperature(**file), "temperature 0.25")
            self.assertEqual(temperature("--config", str(path)), "temperature 0.25")
            self.assertEqual(temperature(DSV4_RUN_TEMPERATURE="0.5"), "temperature 0.5")
            self.assertEqual(temperature(DSV4_RUN_TEMPERATURE="0.5", **file), "temperature 0.5")
            self.assertEqual(temperature("--temperature", "0", DSV4_RUN_TEMPERATURE="0.5", **file), "greedy")
            with_home = {key: value for key, value in os.environ.items() if key != "DSV4_CONFIG"} | {"XDG_CONFIG_HOME": folder}
            found = subprocess.run([BINARY, "run", "-n", "1", QUESTION], env=with_home, capture_output=True, text=True,
                                   stdin=subprocess.DEVNULL, check=True)
            self.assertIn("temperature 0.25", found.stderr)
            for env, wanted in (({"DSV4_CONFIG": folder + "/none"}, "/none"), ({"DSV4_RUN_TEMPERATURE": "warm"}, "warm")):
                process = dsv4("run", QUESTION, env=env)
                self.assertEqual(process.returncode, 2)
                self.assertIn(wanted, process.stderr)
            path.write_text("[run]\ntemprature = 1\n")
            process = dsv4("run", QUESTION, env=file)
            self.assertEqual(process.returncode, 2)
            self.assertIn("run.temprature", process.stderr)

    def test_what_is_in_force_is_said(self):
        arguments = ("run", "-n", "4", "--seed", "7", QUESTION)
        self.assertIn("template v4, effort: the model's own, temperature 1, top-p 1, seed 7\n", dsv4(*arguments).stderr)
        self.assertIn("template v4-0731, effort max, greedy, repetition-penalty 1.1, seed 7\n",
                      dsv4(*arguments, "--revision", "v4-0731", "--effort", "max", "--temperature", "0",
                           "--repetition-penalty", "1.1").stderr)
        self.assertIn("template v4, no reasoning,", dsv4(*arguments, "--thinking-mode", "chat").stderr)
        self.assertIn("no template, temperature 1", dsv4(*arguments, "--raw").stderr)

    def test_a_chat_that_begins_with_a_prompt(self):
        chat = dsv4("run", "-i", "--temperature", "0", "--thinking-mode", "chat", QUESTION,
                    stdin="What is the capital of Japan?\n")
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertIn("Paris", chat.stdout)
        self.assertIn("Tokyo", chat.stdout[chat.stdout.index("Paris"):])
        for other in (("--json",), ("--raw",), ("--dump", "d")):
            self.assertEqual(dsv4("run", "-i", QUESTION, *other).returncode, 2)

    def test_a_pipe_is_added_to_the_prompt(self):
        arguments = ("run", "--json", "--temperature", "0", "-n", "4")
        piped = subprocess.run([BINARY, *arguments, "Shorten:"], input="the text\n", capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(piped.stdout)["prompt_token_ids"], dsv4_json(*arguments, "-p", "Shorten:\n\nthe text\n")["prompt_token_ids"])

    def test_commands_answer_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = pathlib.Path(folder) / "tools.json"
            tools.write_text(json.dumps([TICKET]))
            seen = pathlib.Path(folder) / "seen.json"

            def ask(command, *more, name="search_ticket"):
                return dsv4("run", "--temperature", "0", "--thinking-mode", "chat", "--tools", tools,
                            "--tool-command", f"{name}={command}", "-n", "200", *more, TICKET_QUESTION)
            done = ask(f"cat > {seen}; echo two tickets")
            self.assertEqual((done.returncode, "no tool of" in done.stderr), (0, False), done.stderr)
            self.assertEqual(set(json.loads(seen.read_text())), {"tags", "color"})  # The arguments, on standard input.
            self.assertNotIn("call search_ticket", done.stdout)  # The answer only;
            self.assertIn("search_ticket: cat", done.stderr)  # how it came about stands elsewhere.
            self.assertEqual(len(re.findall(r", answer \d+ tokens", done.stderr)), 1)
            for command in ("exit 3", "kill -9 $$", "printf '\\377\\000'", "head -c 3000000 /dev/zero | tr '\\0' x"):
                self.assertIn(ask(command).returncode, (0, 1))  # Too much for the context is an error with a message.
            # Without a command for the call, the call is the answer.
            done = ask("true", name="other")
            self.assertRegex(done.stdout + done.stderr, r"(?s)call search_ticket \{.*--tool-command other: no tool of")
            for wrong in (("--json",), ("--dump", folder + "/d")):
                self.assertEqual(ask("true", *wrong).returncode, 2)
            self.assertEqual(ask("").returncode, 2)

    def test_short_options_are_the_long_ones(self):
        for short_option, long_option, value in (("-p", "--prompt", QUESTION), ("-n", "--max-tokens", "2"), ("-t", "--threads", "1")):
            both = [dsv4_json("run", "--json", "--temperature", "0", option, value, *([] if value == QUESTION else [QUESTION]))["token_ids"]
                    for option in (short_option, long_option)]
            self.assertEqual(both[0], both[1])
        self.assertRegex(dsv4("run", "-v", "-n", "1", QUESTION).stderr, r"(?s)info: model.*answer 1 token in \S+ s, on \w+")  # Alone it has no rate.

    def test_tokenize_a_text(self):
        document = dsv4_json("tokenize", "--json", "Crème")
        self.assertEqual(document["count"], len(document["ids"]))
        lines = dsv4("tokenize", "Crème").stdout.splitlines()
        self.assertEqual([int(line.split("\t")[0]) for line in lines], document["ids"])
        self.assertEqual(dsv4("tokenize").returncode, 2)

    def test_random_weights_away_from_the_source_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            binary = shutil.copy(BINARY, folder)
            process = subprocess.run([binary, "run", "--weights", "synthetic:tiny", QUESTION], capture_output=True, text=True,
                                     check=False)
            self.assertEqual(process.returncode, 3)
            self.assertIn("synthetic:tiny has no tokenizer of its own", process.stderr)
            self.assertIn("DSV4_MODEL", process.stderr)

    def test_a_layer_count_is_announced_and_used(self):
        whole = dsv4_json("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "4")
        process = dsv4("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "4", "--max-layers", "1")
        self.assertIn("first 1 of", process.stderr.splitlines()[0])
        self.assertNotEqual(json.loads(process.stdout)["token_ids"], whole["token_ids"])

    def test_placement_and_spinning_change_no_token(self):
        arguments = ("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "4")
        usual = dsv4_json(*arguments)["token_ids"]
        for numa in ("off", "interleave"):
            self.assertEqual(dsv4_json(*arguments, "--numa", numa)["token_ids"], usual)
        self.assertEqual(dsv4_json(*arguments, env={"DSV4_SPIN_US": "0"})["token_ids"], usual)
        for name, bad in (("DSV4_SPIN_US", "x"), ("DSV4_SPIN_US", "-1"), ("DSV4_SPIN_US", "1000001"), ("DSV4_CPU_ISA", "5us"), ("DSV4_CUDA_GRAPHS", "off")):
            process = dsv4(*arguments, env={name: bad})
            self.assertEqual(process.returncode, 2)
            self.assertRegex(process.stderr, f"{name}: (got )?.{bad}.")

    def test_the_size_of_a_pass_changes_memory_and_no_token(self):
        arguments = ("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "4")
        usual = dsv4_json(*arguments)["token_ids"]
        plans = {}
        for tokens in (5, 64, 8192):
            flag = ("--pass-tokens", str(tokens))
            self.assertEqual(dsv4_json(*arguments, *flag)["token_ids"], usual)
            plans[tokens] = dsv4_json("inspect", "--json", *flag)["memory"]
        self.assertLess(plans[64]["step_bytes"], plans[8192]["step_bytes"])
        # The rows of a pass are not the sequence's.
        self.assertEqual(plans[64]["sequence_fixed_bytes"], plans[8192]["sequence_fixed_bytes"])
        default = dsv4_json("inspect", "--json")["memory"]
        self.assertEqual(default, dsv4_json("inspect", "--json", "--pass-tokens", "512")["memory"])
        on_gpu = dsv4_json("inspect", "--json", "--backend", "cuda")["memory"]
        self.assertEqual(on_gpu, plans[8192])  # Its kernels read packed rows too.
        wide = dsv4_json("inspect", "--json", "--pass-tokens", "8192", "--cache-rows", "wide")["memory"]
        self.assertLess(plans[8192]["bytes_per_token"], wide["bytes_per_token"])

    def test_cache_rows_are_shown_by_part_and_change_no_token(self):
        arguments = ("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "8")
        self.assertEqual(dsv4_json(*arguments)["token_ids"], dsv4_json(*arguments, "--cache-rows", "wide")["token_ids"])
        parts = {}
        for rows in ("packed", "wide"):
            memory = dsv4_json("inspect", "--json", "--cache-rows", rows)["memory"]
            parts[rows] = {part["part"]: part for part in memory["cache"]}
            self.assertAlmostEqual(sum(part["bytes_per_token"] for part in memory["cache"]), memory["bytes_per_token"])
            self.assertEqual(sum(part["fixed_bytes"] for part in memory["cache"]), memory["sequence_fixed_bytes"])
        self.assertIn("E4M3", parts["packed"]["entries"]["format"])
        self.assertIn("E2M1", parts["packed"]["indexer keys"]["format"])
        self.assertEqual(parts["wide"]["entries"]["format"], "BF16")
        self.assertEqual(parts["packed"]["compressor values"], parts["wide"]["compressor values"])
        self.expect_usage_error("run", QUESTION, "--cache-rows", "fp8")
        self.expect_usage_error("run", QUESTION, "--pass-tokens", "-1")
        self.expect_usage_error("serve", "--pass-tokens", "8", "--max-sequences", "64")  # Fewer than the answers at one time.

    def test_model_flags_may_stand_before_the_subcommand(self):
        self.assertEqual(dsv4("-m", TINY, "run", "--raw", "A", "--max-tokens", "1").returncode, 0)

    def test_doctor_says_what_is_missing(self):
        report = dsv4_json("doctor", "--json")
        subjects = {finding["subject"]: finding for finding in report["findings"]}
        self.assertEqual(report["missing"], 0, report)
        self.assertTrue({"dsv4", "system", "CPU", "memory", "model", "pulled models", "conversations"} <= set(subjects))
        self.assertIn("tiny", subjects["model"]["text"])
        self.assertIn("Nothing is missing.", dsv4("doctor").stdout)
        none = dsv4("doctor", "-m", "nowhere")
        self.assertEqual(none.returncode, 1)
        self.assertRegex(none.stdout, r"(?m)^missing +model +.*nowhere")
        self.assertIn("1 missing.", none.stdout)
        if not any(subject.startswith("GPU ") for subject in subjects):
            self.assertEqual(dsv4("doctor", "--backend", "cuda").returncode, 1)

    def test_a_backend_that_is_not_built_fails_loudly(self):
        process = dsv4("run", QUESTION, "--backend", "cuda")
        self.assertEqual(process.returncode, 1)
        self.assertIn("not in this build", process.stderr)


class BadModels(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        for file in filter(pathlib.Path.is_file, TINY.iterdir()):
            shutil.copy(file, self.directory)

    def expect_bad_input(self, text):
        process = dsv4("-m", self.directory, "run", QUESTION)
        self.assertEqual(process.returncode, 3, process.stderr)
        self.assertIn(text, process.stderr)
        self.assertEqual(process.stdout, "")

    def test_no_such_directory(self):
        process = dsv4("-m", self.directory / "nowhere", "run", QUESTION)
        self.assertEqual(process.returncode, 3)
        self.assertIn("nowhere", process.stderr)

    def test_truncated_weights(self):
        path = self.directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])
        self.expect_bad_input("model.safetensors")

    def test_missing_files_are_named(self):
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            with self.subTest(name):
                (self.directory / name).rename(self.directory / "hidden")
                self.expect_bad_input(name)
                (self.directory / "hidden").rename(self.directory / name)

    def test_a_missing_marker_is_named(self):
        path = self.directory / "tokenizer.json"
        path.write_text(path.read_text().replace("<think>", "<thunk>"))
        self.expect_bad_input("<think>")

    def test_another_architecture_is_refused(self):
        path = self.directory / "config.json"
        config = json.loads(path.read_text())
        for name, said in (("llama", "llama"), ("deepseek_v41", 'no token "<｜System｜>"; a chat of revision v4.1')):
            path.write_text(json.dumps({**config, "model_type": name, "architectures": []}))
            self.expect_bad_input(said)


class Run(unittest.TestCase):
    def test_the_acceptance_prompt_has_paris_on_top_with_a_clear_margin(self):
        answer = dsv4_json("run", "--raw", "The capital of France is", "--json", "--temperature", "0",
                           "--max-tokens", "1", "--logprobs", "2")
        first, second = answer["logprobs"][0]["top_logprobs"]
        self.assertTrue(" Paris".startswith(first["token"]) and first["token"].strip(), first)
        self.assertGreater(first["logprob"], second["logprob"] + 1.0)

    def test_a_chat_answer_ends_by_itself_in_both_modes(self):
        for mode in ("thinking", "chat"):
            answer = dsv4_json("run", QUESTION, "--json", "--temperature", "0", "--thinking-mode", mode)
            self.assertIn("Paris", answer["content"])
            self.assertEqual(answer["finish_reason"], "stop")
            self.assertEqual(answer["reasoning_content"] != "", mode == "thinking")
            self.assertEqual(answer["usage"]["completion_tokens"], len(answer["token_ids"]))
            self.assertEqual(answer["usage"]["prompt_tokens"], len(answer["prompt_token_ids"]))
            self.assertIsNone(answer["logprobs"])

    def test_streamed_text_is_the_json_content(self):
        arguments = ("run", QUESTION, "--temperature", "0", "--thinking-mode", "chat")
        self.assertEqual(dsv4(*arguments).stdout, dsv4_json(*arguments, "--json")["content"] + "\n")

    def test_the_prompt_may_come_from_standard_input(self):
        process = dsv4("run", "-", "--temperature", "0", stdin=QUESTION)
        self.assertIn("Paris", process.stdout)

    def test_a_seed_repeats_an_answer_and_another_one_changes_it(self):
        def sample(seed):
            return dsv4_json("run", "--raw", "Once", "--json", "--temperature", "1.5", "--seed", seed,
                             "--max-tokens", "24")["token_ids"]
        self.assertEqual(sample(1), sample(1))
        self.assertNotEqual(sample(1), sample(2))

    def test_a_stop_string_ends_the_content_before_it(self):
        answer = dsv4_json("run", QUESTION, "--json", "--temperature", "0", "--thinking-mode", "chat", "--stop", "Paris")
        self.assertNotIn("Paris", answer["content"])
        self.assertEqual(answer["finish_reason"], "stop")

    def test_json_schema_and_json_object_shape_the_content(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
                  "required": ["city", "sure"], "additionalProperties": False}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "schema.json"
            path.write_text(json.dumps(schema))
            for mode in ("chat", "thinking"):
                answer = dsv4_json("run", QUESTION, "--json", "--temperature", "0", "--json-schema", path,
                                   "--thinking-mode", mode)
                content = json.loads(answer["content"])
                self.assertEqual(set(content), {"city", "sure"})
                self.assertIn(content["city"], ["Paris", "Rome"])
                self.assertEqual(answer["finish_reason"], "stop")
            path.write_text('{"items": {"$dynamicRef": "#x"}}')
            process = dsv4("run", QUESTION, "--json-schema", path)
            self.assertEqual(process.returncode, 3)
            self.assertIn("/items/$dynamicRef", process.stderr)
        answer = dsv4_json("run", QUESTION, "--json", "--seed", "3", "--json-object", "--thinking-mode", "chat",
                           "--max-tokens", "60")
        self.assertTrue(answer["content"].startswith("{"), answer["content"])

    def test_other_rules_of_the_content(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {"gbnf": 'root ::= "<" [a-c]{2,5} ">"', "lark": 'start: "<" /[a-c]{2,5}/ ">"', "bad": "root ::= x",
                     "tag": json.dumps({"format": {"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[a-c]{2,5}"}, "end": ">"}})}
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text)
            tagged = re.compile("<[a-c]{2,5}>").fullmatch
            for rule, fits in ((("--regex", "[0-9]{3}|none"), re.compile("[0-9]{3}|none").fullmatch), (("--choice", "yes", "--choice", "no"), ("yes", "no").__contains__),
                               (("--grammar", f"{folder}/gbnf"), tagged), (("--grammar", f"{folder}/lark"), tagged), (("--structural-tag", f"{folder}/tag"), tagged)):
                for mode in (("--thinking-mode", "chat", "--temperature", "1.5"), ("--temperature", "0"), ("--raw", "--temperature", "1.5")):
                    answer = dsv4_json("run", QUESTION, "--json", "--seed", "5", *mode, *rule)
                    self.assertTrue(fits(answer["content"]), (rule, mode, answer["content"]))
                    self.assertEqual(answer["finish_reason"], "stop")
            process = dsv4("run", QUESTION, "--grammar", f"{folder}/bad")
            self.assertEqual(process.returncode, 3)
            self.assertIn('bad: grammar, line 1: no rule is named "x"', process.stderr)
        self.assertEqual(dsv4("run", QUESTION, "--regex", "a", "--choice", "b").returncode, 2)
        self.assertEqual(dsv4("run", QUESTION, "--regex", "(?=a)").returncode, 2)

    def test_a_dump_of_an_answer_holds_prompt_and_answer_and_compares_clean(self):
        directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, directory)
        arguments = ("run", QUESTION, "--json", "--temperature", "0", "--thinking-mode", "chat")
        answer = dsv4_json(*arguments, "--dump", directory / "dump")
        self.assertEqual(answer["token_ids"], dsv4_json(*arguments)["token_ids"])
        shown = dsv4("diagnose", "compare", "--with", directory / "dump", "--backend", "reference", "--json")
        self.assertEqual(shown.returncode, 0, shown.stdout + shown.stderr)
        # The last token is sampled, and nothing computes it.
        tokens = len(answer["prompt_token_ids"]) + len(answer["token_ids"])
        self.assertIn(f"{tokens} tokens", shown.stdout)
        again = dsv4("run", QUESTION, "--dump", directory / "dump")
        self.assertNotEqual(again.returncode, 0)
        self.assertEqual(dsv4("run", "--dump", directory / "other").returncode, 2)

    def test_max_tokens_ends_with_length(self):
        answer = dsv4_json("run", QUESTION, "--json", "--temperature", "0", "--max-tokens", "2")
        self.assertEqual((len(answer["token_ids"]), answer["finish_reason"]), (2, "length"))

    def test_logit_bias_and_penalties_reach_the_model(self):
        base = ("run", "--raw", "The capital of France is", "--json", "--temperature", "0", "--max-tokens", "12")
        plain = dsv4_json(*base)["token_ids"]
        self.assertNotEqual(dsv4_json(*base, "--logit-bias", f"{plain[0]}=-100")["token_ids"][0], plain[0])
        penalised = dsv4_json(*base, "--repetition-penalty", "50")["token_ids"]
        self.assertEqual(len(set(penalised)), len(penalised))

    def test_messages_and_tools_from_files(self):
        with tempfile.TemporaryDirectory() as directory:
            messages = pathlib.Path(directory) / "messages.json"
            messages.write_text(json.dumps([{"role": "user", "content": QUESTION}]))
            tools = pathlib.Path(directory) / "tools.json"
            tools.write_text(json.dumps([{"type": "function", "function": {"name": "get_time", "parameters": {}}}]))
            plain = dsv4_json("run", "--messages", messages, "--json", "--max-tokens", "1")
            with_tools = dsv4_json("run", "--messages", messages, "--tools", tools, "--json", "--max-tokens", "1")
            self.assertGreater(len(with_tools["prompt_token_ids"]), len(plain["prompt_token_ids"]) + 50)
            messages.write_text('[{"role": 7}]')
            self.assertEqual(dsv4("run", "--messages", messages).returncode, 3)


class Logits(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.tokens = dsv4_json("run", QUESTION * 12, "--json", "--max-tokens", "1")["prompt_token_ids"][:150]

    def logits(self, *arguments, tokens=None):
        tokens_path = self.directory / "tokens"
        tokens_path.write_text(" ".join(map(str, self.tokens)) if tokens is None else tokens)
        output = self.directory / "logits.npy"
        process = dsv4("logits", "--tokens", tokens_path, "--output", output, *arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return read_npy(output)

    def test_every_way_of_cutting_the_tokens_gives_the_same_bits(self):
        shape, whole = self.logits()
        self.assertEqual(shape[0], len(self.tokens))
        self.assertEqual(len(whole), shape[0] * shape[1] * 4)
        self.assertEqual(self.logits(tokens=json.dumps(self.tokens))[1], whole)
        for arguments in (("--chunk", 1), ("--chunk", 7), ("--chunk", 37), ("--chunk", 128), ("--decode-from", 0),
                          ("--decode-from", 140), ("--chunk", 7, "--decode-from", 133), ("--threads", 1),
                          ("--decode-from", 100, "--decode-rows", 2), ("--decode-from", 121, "--decode-rows", 8)):
            self.assertTrue(self.logits(*arguments)[1] == whole, arguments)

    def test_numerics_change_the_logits(self):
        self.assertNotEqual(self.logits()[1], self.logits("--numerics", "plain")[1])

    def test_drafts_have_logits_of_their_own(self):
        _, whole = self.logits()
        shape, drafts = self.logits("--draft", "mtp", "--drafts", 2)
        vocab = shape[2]
        self.assertEqual(shape, (len(self.tokens) - 1, 2, vocab))

        def best(values, row):
            numbers = array.array("f", values[row * vocab * 4 : (row + 1) * vocab * 4])
            return numbers.index(max(numbers))

        # The first draft of row t foretells the model's own choice behind token t + 1. A block that was trained foresees it often.
        right = sum(best(drafts, 2 * t) == best(whole, t + 1) for t in range(shape[0]))
        self.assertGreater(right, shape[0] // 3)
        process = dsv4("logits", "--weights", "synthetic:tiny", "--tokens", self.directory / "tokens", "--output", self.directory / "x.npy", "--draft", "mtp")
        self.assertEqual(process.returncode, 3)
        self.assertIn("no draft tensors", process.stderr)

    def test_drafts_of_a_block_are_the_oracles(self):
        golden = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/models/dspark"
        shape, drafts = self.logits("--draft", "dspark", "--drafts", 5, "--numerics", "plain", "-m", golden, tokens=(golden / "tokens.json").read_text())
        want_shape, want = read_npy(golden / "logits.dspark.plain.npy")
        self.assertEqual(shape, want_shape)
        got, want = array.array("f", drafts), array.array("f", want)
        self.assertLess(max(abs(a - b) for a, b in zip(got, want)), 1e-3)
        confidence = self.directory / "confidence.npy"
        self.logits("--draft", "dspark", "--drafts", 5, "--numerics", "plain", "-m", golden, "--confidence", confidence, tokens=(golden / "tokens.json").read_text())
        (shape, got), (want_shape, want) = read_npy(confidence), read_npy(golden / "confidence.dspark.plain.npy")
        self.assertEqual(shape, want_shape)
        self.assertLess(max(abs(a - b) for a, b in zip(array.array("f", got), array.array("f", want))), 1e-3)
        process = dsv4("logits", "--tokens", golden / "tokens.json", "--output", self.directory / "x.npy", "--draft", "mtp", "--confidence", confidence)
        self.assertEqual(process.returncode, 2)
        process = dsv4("logits", "-m", golden, "--tokens", golden / "tokens.json", "--output", self.directory / "x.npy", "--draft", "mtp")
        self.assertEqual(process.returncode, 3)
        self.assertIn("those of DSpark", process.stderr)

    def test_bad_token_files_are_named(self):
        tokens = self.directory / "bad"
        for text, message in (("", "no token ids"), ("1 x 3", "entry 1"), ("[1, -2]", "entry 1"), ("[1, 2", "JSON"),
                              ("9999999", "token id 9999999")):
            tokens.write_text(text)
            process = dsv4("logits", "--tokens", tokens, "--output", self.directory / "o.npy")
            self.assertEqual(process.returncode, 3, text)
            self.assertIn(message, process.stderr)
            self.assertFalse((self.directory / "o.npy").exists())


class SyntheticWeights(unittest.TestCase):
    def test_they_answer_as_the_checkpoint_that_synth_writes(self):
        directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, directory)
        greedy = (QUESTION, "--raw", "--json", "--temperature", "0", "--max-tokens", "12")
        for weights, arguments in (("synthetic:tiny", ()), ("synthetic:tiny,nvfp4,seed=5", ("--format", "nvfp4", "--seed", 5))):
            self.assertEqual(dsv4("synth", directory / "m", *arguments).returncode, 0)
            written = dsv4_json("run", "-m", directory / "m", *greedy)
            made = dsv4_json("run", "--weights", weights, *greedy)
            self.assertEqual(made["token_ids"], written["token_ids"])
            self.assertEqual(len(made["token_ids"]), 12)
            shutil.rmtree(directory / "m")

    def test_max_layers_makes_the_first_layers_only(self):
        whole = dsv4_json("inspect", "--weights", "synthetic:tiny", "--json")
        part = dsv4_json("inspect", "--weights", "synthetic:tiny", "--max-layers", "2", "--json")
        self.assertEqual((len(whole["layers"]), len(part["layers"])), (4, 2))
        self.assertLess(part["file_bytes"], whole["file_bytes"])
        process = dsv4("inspect", "--weights", "synthetic:tiny", "--max-layers", "5")
        self.assertEqual(process.returncode, 2)
        self.assertIn("--max-layers: got 5, wanted 1 to 4", process.stderr)

    def test_bad_values_are_usage_errors(self):
        for arguments in (("--weights", "synthetic:huge"), ("--weights", "models/tiny"), ("--weights", "synthetic:tiny,int3"),
                          ("--weights", "synthetic:tiny,seed=x"), ("--weights", "synthetic:tiny", "-m", TINY)):
            process = dsv4("inspect", *arguments)
            self.assertEqual(process.returncode, 2, arguments)
            self.assertIn("weights", process.stderr)


class Fixtures(unittest.TestCase):
    def lines(self, *arguments):
        process = dsv4(*arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return [json.loads(line) for line in process.stdout.splitlines()]

    def test_encode(self):
        path = FIXTURES / "encoding-cases.json"
        for case, line in zip(json.loads(path.read_text()), self.lines("encode", "--cases", path), strict=True):
            self.assertEqual(line["name"], case["name"])
            self.assertEqual(line.get("rendered"), case.get("rendered"), case["name"])
            self.assertEqual("error" in line, bool(case.get("error")), case["name"])

    def test_parse(self):
        path = FIXTURES / "parsing-cases.json"
        cases = json.loads(path.read_text())
        for case, line in zip(cases, self.lines("parse", "--cases", path), strict=True):
            self.assertEqual(line.get("message"), case.get("expected"), case["name"])
        for case, line in zip(cases, self.lines("parse", "--cases", path, "--lenient"), strict=True):
            self.assertEqual(line.get("message"), case.get("lenient_expected", case.get("expected")), case["name"])

    def test_tokenize(self):
        with tempfile.TemporaryDirectory() as directory:
            cases = pathlib.Path(directory) / "cases.json"
            texts = ["Hello", "日本語 abc 123", "<｜User｜>x", ""]
            cases.write_text(json.dumps([{"text": text} for text in texts]))
            lines = self.lines("tokenize", "--tokenizer", TINY / "tokenizer.json", "--cases", cases)
            self.assertEqual([line["decoded"] for line in lines], texts)

    def test_unreadable_case_files(self):
        for command in ("encode", "parse"):
            self.assertEqual(dsv4(command, "--cases", "no/such/file").returncode, 3)
        self.assertEqual(dsv4("tokenize", "--tokenizer", "no/such", "--cases", "no/such").returncode, 3)


class Container(unittest.TestCase):
    def test_it_installs_the_libraries_that_the_binary_needs(self):
        if platform.freedesktop_os_release().get("VERSION_CODENAME") != "bookworm":
            self.skipTest("not Debian 12, whose packages these are")
        installed = (ROOT / "deploy" / "Containerfile").read_text().split("--no-install-recommends")[1].split("\\")[0].split()
        # debian:12-slim has the first ones, a build with sanitizers is not for containers.
        installed += ["libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libzstd1", "libasan8", "libubsan1", "libtsan2"]
        dynamic = subprocess.run(["readelf", "-d", BINARY], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            found = subprocess.run(["dpkg-query", "-S", f"*x86_64-linux-gnu/{library}"], capture_output=True, text=True, check=False).stdout
            packages = set(re.findall(r"^([^:\s]+):", found, re.MULTILINE))
            self.assertTrue(packages & set(installed), f"{library} is of {packages or 'no package'}, which deploy/Containerfile does not install")


if __name__ == "__main__":
    unittest.main()
