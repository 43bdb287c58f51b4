"""One tokenizer for all interpreters and processes: the main interpreter loads it and serves it;
four sub-interpreters and four processes, which have no tokenizer, call it.

The vocabulary is made of the story in ``data/harbour.txt``. Each worker encodes a part of the
story, and has its numbers filled into memory of its own. In this process the tokenizer writes to
that without a copy.

    python examples/served_tokenizer.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import mdispatch as md

STORY = Path(__file__).with_name("data") / "harbour.txt"
INTERPRETERS = PROCESSES = 4


class Tokenizer:
    """Knows the words of a text by their numbers: the more frequent a word, the lower."""

    def __init__(self, text: str) -> None:
        words = self.split(text)
        self.words = sorted(set(words), key=lambda word: (-words.count(word), word))
        self.numbers = {word: number for number, word in enumerate(self.words, 1)}
        self.calls = 0

    def split(self, text: str) -> list[str]:
        return re.findall(r"[a-z']+", text.lower())

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return [self.numbers.get(word, 0) for word in self.split(text)]


library = md.Library("tokens", "DEF")
library.define("encode(str text) -> int[]")
library.define("decode(int[] numbers) -> str[]")
library.define("fill(Tensor(a!) into, str text) -> int")

# What each worker runs. It imports no tokenizer.
WORKER = """
import array
import mdispatch as md

md.register_type(array.array, "CPU")
md.allow_routing("tokens", timeout=60.0)
tokens = md.ops.tokens
numbers = tokens.encode(PART)
into = array.array("q", bytes(8 * len(numbers)))
assert tokens.fill(into, PART) == len(numbers)
assert into.tolist() == numbers
words = tokens.decode(numbers)
with open(ANSWER, "w") as file:
    file.write(f"{len(words)} {sum(numbers)}")
"""


def serve(tokenizer: Tokenizer) -> None:
    """Registers the kernels. They stay in this interpreter."""

    def decode(numbers: list[int]) -> list[str]:
        return [tokenizer.words[number - 1] for number in numbers]

    def fill(into: Any, text: str) -> int:
        numbers = tokenizer.encode(text)
        for place, number in enumerate(numbers):
            into[place] = number
        return len(numbers)

    library.impl("encode", tokenizer.encode, "CompositeExplicitAutograd", serve="host")
    library.impl("decode", decode, "CompositeExplicitAutograd", serve="host")
    library.impl("fill", fill, "CPU", serve="host")


def main() -> None:
    from tempfile import TemporaryDirectory

    text = STORY.read_text(encoding="utf-8")
    tokenizer = Tokenizer(text)
    serve(tokenizer)
    lines = text.splitlines()
    workers = INTERPRETERS + PROCESSES
    parts = ["\n".join(lines[place::workers]) for place in range(workers)]
    with TemporaryDirectory() as folder:
        answers = [Path(folder, str(place)) for place in range(workers)]
        programs = [
            f"PART, ANSWER = {part!r}, {str(answer)!r}\n{WORKER}"
            for part, answer in zip(parts, answers, strict=True)
        ]

        def run(program: str) -> None:
            interpreter = md.create_interpreter()
            try:
                interpreter.exec(program)
            finally:
                interpreter.close()

        processes = [
            subprocess.Popen([sys.executable, "-c", program]) for program in programs[INTERPRETERS:]
        ]
        threads = [
            threading.Thread(target=run, args=(program,)) for program in programs[:INTERPRETERS]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in processes:
            assert process.wait() == 0
        got = [tuple(map(int, answer.read_text().split())) for answer in answers]
    calls = tokenizer.calls
    for part, answer in zip(parts, got, strict=True):
        numbers = tokenizer.encode(part)
        assert answer == (len(numbers), sum(numbers)), (answer, len(numbers))
    print(
        f"{INTERPRETERS} interpreters and {PROCESSES} processes encoded "
        f"{sum(count for count, _ in got)} words with one tokenizer of "
        f"{len(tokenizer.words)} words, in {calls} calls"
    )


if __name__ == "__main__":
    main()
