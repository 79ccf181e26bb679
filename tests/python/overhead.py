"""What Python adds to the library: eight texts in one batch, Python's own time on the core beside the time in the library's calls.

    DSV4_LIBRARY=build/shared/libdsv4.so PYTHONPATH=python python3 tests/python/overhead.py [MODEL]
"""

import sys
import time

import dsv4


def main() -> int:
    """Prints one line; fails at 2 %."""
    llm = dsv4.LLM(sys.argv[1] if len(sys.argv) > 1 else "models/tiny")
    inside = inside_cpu = 0.0
    for name in ("dsv4_step", "dsv4_sample", "dsv4_session_append"):
        function = getattr(dsv4._lib, name)

        def timed(*arguments, function=function):
            nonlocal inside, inside_cpu
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments)
            finally:
                inside += time.perf_counter() - begin
                inside_cpu += time.thread_time() - begin_cpu
        setattr(dsv4._lib, name, timed)
    prompts = [f"Tell me a story about {number} geese and" for number in range(8)]
    greedy = dsv4.Sampling(temperature=0)
    llm.generate(prompts, greedy, max_tokens=8)
    inside, inside_cpu, begin = 0.0, 0.0, time.thread_time()
    texts = llm.generate(prompts, greedy, max_tokens=200)
    outside = time.thread_time() - begin - inside_cpu  # Of this thread: what else the machine does is not Python's.
    tokens = sum(len(llm.tokenize(text)) for text in texts)
    print(f"{tokens} tokens in batches of 8: {1e3 * inside:.1f} ms in the library, {1e3 * outside:.1f} ms outside, {100 * outside / inside:.2f} %")
    return 0 if outside < 0.02 * inside else 1


if __name__ == "__main__":
    sys.exit(main())
