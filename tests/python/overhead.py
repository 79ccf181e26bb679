"""Time that Python adds to the library: eight texts in one batch, Python's own CPU time beside the time in the library's calls.

    DSV4_LIBRARY=build/shared/libdsv4.so PYTHONPATH=python python3 tests/python/overhead.py [MODEL]
"""

import sys
import time

import dsv4


class Timed:
    """The library, whose every function counts its time. What counting takes is Python's."""

    def __init__(self, library) -> None:
        self._library, self.seconds, self.cpu_seconds, self.calls = library, 0.0, 0.0, 0

    def __getattr__(self, name: str):
        function = getattr(self._library, name)

        def timed(*arguments):
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begin
                self.cpu_seconds += time.thread_time() - begin_cpu
                self.calls += 1
        setattr(self, name, timed)
        return timed


def main() -> int:
    """Prints one line; fails at 2 %."""
    library = dsv4._lib = Timed(dsv4._lib)
    llm = dsv4.LLM(sys.argv[1] if len(sys.argv) > 1 else "models/tiny")
    prompts = [f"Tell me a story about {number} geese and" for number in range(8)]
    greedy = dsv4.Sampling(temperature=0)
    llm.generate(prompts, greedy, max_tokens=8)
    library.seconds, library.cpu_seconds, library.calls, begin = 0.0, 0.0, 0, time.thread_time()
    texts = llm.generate(prompts, greedy, max_tokens=200)
    outside = time.thread_time() - begin - library.cpu_seconds  # Of this thread: what else the machine does is not Python's.
    inside, calls = library.seconds, library.calls
    tokens = sum(len(llm.tokenize(text)) for text in texts)
    print(f"{tokens} tokens in batches of 8: {1e3 * inside:.1f} ms in {calls} calls of the library, {1e3 * outside:.1f} ms outside, "
          f"{100 * outside / inside:.2f} %")
    return 0 if outside < 0.02 * inside else 1


if __name__ == "__main__":
    sys.exit(main())
