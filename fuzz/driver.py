"""How the Python targets are run: by atheris where it is installed, else by mutations of their own.

    python fuzz/fuzz_schema.py --runs 100000            # atheris: coverage decides what is kept
    python fuzz/fuzz_schema.py --runs 5000 --plain      # random changes of the kept inputs
    python fuzz/fuzz_schema.py --replay                 # the kept inputs as they are
    python fuzz/fuzz_schema.py --input '...'            # one, as a line of the corpus

The kept inputs are in corpus/NAME.txt, a JSON string a line; an input is the text in UTF-8, single
surrogates included. A plain run is a function of its seed. One that fails prints the input that
replays it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

Target = Callable[[bytes], None]


def kept(name: str) -> list[bytes]:
    lines = (CORPUS / f"{name}.txt").read_text("utf-8").splitlines()
    return [bytes_of(line) for line in lines if line]


def bytes_of(line: str) -> bytes:
    return json.loads(line).encode("latin-1")


def line_of(data: bytes) -> str:
    return json.dumps(data.decode("latin-1"))


def mutated(data: bytes, others: Sequence[bytes], words: Sequence[bytes], draw: random.Random):
    """Some changes: bytes, words, parts of another input, pieces dropped and repeated."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(data))
        end = min(len(data), at + draw.randint(0, 8))
        how = draw.randrange(6)
        if how == 0:
            data = data[:at] + data[end:]
        elif how == 1:
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        elif how == 2:
            other = draw.choice(others)
            start = draw.randint(0, len(other))
            data = data[:at] + other[start : start + draw.randint(1, 40)] + data[end:]
        elif how == 3:
            data = data[:end] + data[at:end] * draw.randint(1, 3) + data[end:]
        elif words:
            data = data[:at] + draw.choice(words) + data[at if how == 4 else end :]
        else:
            data = data[:at] + draw.randbytes(draw.randint(1, 4)) + data[at:]
    return data[:4096]


def attempt(name: str, target: Target, data: bytes) -> None:
    try:
        target(data)
    except BaseException:
        print(f"replay: python fuzz/fuzz_{name}.py --input '{line_of(data)}'", file=sys.stderr)
        raise


def plain(name: str, target: Target, words: Sequence[bytes], runs: int, seed: int) -> int:
    """Replays what is kept, then `runs` changes of it; how many executions that were."""
    inputs = kept(name)
    draw = random.Random(seed)
    for data in inputs:
        attempt(name, target, data)
    for _ in range(runs):
        attempt(name, target, mutated(draw.choice(inputs), inputs, words, draw))
    return len(inputs) + runs


def guided(name: str, target: Target, words: Sequence[bytes], args: argparse.Namespace) -> None:
    import atheris

    folder = args.folder or Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    folder.mkdir(exist_ok=True, parents=True)
    for number, data in enumerate(kept(name)):
        (folder / f"kept-{number}").write_bytes(data)
    print(f"inputs in {folder}, seed {args.seed}")
    options = [f"-runs={args.runs}", f"-max_total_time={args.seconds}", f"-seed={args.seed}"]
    options += ["-max_len=1024", "-timeout=10", "-print_final_stats=1", "-reload=0"]
    if words:
        dictionary = folder.parent / f"{folder.name}.dict"
        escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in words]
        dictionary.write_text("".join(f'"{word}"\n' for word in escaped))
        options.append(f"-dict={dictionary}")
    options += [f"-artifact_prefix={folder}.", str(folder)]
    atheris.Setup([sys.argv[0], *options], lambda data: attempt(name, target, data))
    atheris.Fuzz()


def keep(name: str, folder: Path) -> None:
    """Writes a folder of inputs (minimised by -merge=1, say) as the kept ones."""
    inputs = {path.read_bytes() for path in folder.iterdir()} - {b""}
    lines = [line_of(data) for data in sorted(inputs, key=lambda data: (len(data), data))]
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(f"{len(lines)} inputs kept")


def atheris_is_there() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def main(name: str, target: Target, words: Sequence[bytes] = ()) -> None:
    parser = argparse.ArgumentParser(description=f"Fuzzes mdispatch: {name}.")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=0, help="0: no limit (atheris)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, help="where atheris keeps its inputs")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--replay", action="store_true", help="only what is kept")
    parser.add_argument("--input", help="one input, as a line of the corpus")
    parser.add_argument("--keep", type=Path, help="a folder whose inputs become the kept ones")
    args = parser.parse_args()
    if args.keep:
        keep(name, args.keep)
    elif args.input is not None:
        target(bytes_of(args.input))
    elif args.replay or args.plain or not atheris_is_there():
        start = time.perf_counter()
        runs = plain(name, target, words, 0 if args.replay else args.runs, args.seed)
        print(f"{runs} executions, seed {args.seed}, {time.perf_counter() - start:.1f} s")
    else:
        guided(name, target, words, args)
