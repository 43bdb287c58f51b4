"""A blocked matrix product whose tile four processes agree on.

How large the tiles should be depends on the machine and the sizes, so each size is tuned: every
candidate is measured, and the fastest is used. If each process tuned for itself, noise would have
them use different tiles, and their sums would differ in the last digits. With ``mdispatch.choose``
one of them measures, and all use what it has chosen. No process has to take part: the fourth one
never asks for the largest product, and nobody waits for it.
"""

from __future__ import annotations

import multiprocessing
import random
from array import array
from collections.abc import Callable
from time import perf_counter

import mdispatch as md

TILES = [8, 16, 32, 64]
SIZES = [(48, 48, 48), (64, 32, 96), (96, 96, 96)]


def matrix(rows: int, columns: int, seed: int) -> array[float]:
    dice = random.Random(seed)
    return array("d", [dice.random() for _ in range(rows * columns)])


def blocked(a: array[float], b: array[float], m: int, n: int, k: int, tile: int) -> array[float]:
    """The product of a, m times k, and b, k times n, both row by row."""
    c = array("d", bytes(8 * m * n))
    for k0 in range(0, k, tile):
        for j0 in range(0, n, tile):
            columns = range(j0, min(j0 + tile, n))
            for i in range(m):
                row = i * n
                for p in range(k0, min(k0 + tile, k)):
                    x, at = a[i * k + p], p * n
                    for j in columns:
                        c[row + j] += x * b[at + j]
    return c


def fastest(m: int, n: int, k: int) -> Callable[[], int]:
    """A small autotuner: measures every tile, and returns the best."""

    def decide() -> int:
        a, b = matrix(m, k, 1), matrix(k, n, 2)
        took = {}
        for tile in TILES:
            began = perf_counter()
            blocked(a, b, m, n, k, tile)
            took[tile] = perf_counter() - began
        return min(TILES, key=took.__getitem__)

    return decide


def matmul(a: array[float], b: array[float], m: int, n: int, k: int) -> tuple[int, array[float]]:
    """The product, and the tile that was used for it."""
    tile = md.choose("blocked::matmul", (m, n, k), TILES, fastest(m, n, k))
    return tile, blocked(a, b, m, n, k, tile)


def job(number: int) -> dict[tuple[int, int, int], tuple[int, array[float]]]:
    """The products of one process, with the tiles that it used."""
    sizes = SIZES if number < 3 else SIZES[:-1]
    sizes = sizes[number % len(sizes) :] + sizes[: number % len(sizes)]
    return {(m, n, k): matmul(matrix(m, k, 3), matrix(k, n, 4), m, n, k) for m, n, k in sizes}


def main() -> None:
    md.default_registry()  # before the processes, which find it
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        answers = pool.map(job, range(4), chunksize=1)
    for size in SIZES:
        used = [answer[size] for answer in answers if size in answer]
        assert all(each == used[0] for each in used), "the processes differ"
        print(f"{size}: {len(used)} processes, all with tiles of {used[0][0]}")
    for choice in md.choices.made("blocked::matmul"):
        where = f"in {choice.seconds:.3f} s by pid {choice.pid}"
        print(f"{choice.profile}: {choice.value}, {where}; {choice.waited} waited")


if __name__ == "__main__":
    main()
