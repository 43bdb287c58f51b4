"""One SQLite connection behind a server's workers: the main process has the database, in memory,
and serves a kernel; the workers, processes that it has started, sell by it.

A kernel runs as a whole, so it is a transaction: no worker sells what another one has sold. An
error of the database comes back as what it is.

    python examples/served_database.py
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading

import mdispatch as md

WORKERS, SALES = 4, 25
STOCK = {"rope": 40, "lamp": 30, "net": 12}


def sell(number: int) -> None:
    """A worker. It has no database, and imports no kernel."""
    shop = md.ops.shop
    with md.routing("shop", timeout=60.0):
        for sale in range(SALES):
            what = list(STOCK)[(number + sale) % len(STOCK)]
            try:
                assert shop.sell(what, number) >= 0
            except sqlite3.IntegrityError as error:  # of the owner's database
                if "left >= 0" not in str(error):
                    raise


def serve(library: md.Library) -> sqlite3.Connection:
    """Registers the kernel. It, and the connection, stay in this process."""
    # Calls of several workers run in several threads of this process.
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("CREATE TABLE stock (what TEXT PRIMARY KEY, left INT CHECK (left >= 0))")
    base.execute("CREATE TABLE sales (what TEXT, worker INT)")
    base.executemany("INSERT INTO stock VALUES (?, ?)", STOCK.items())
    base.commit()
    one_at_a_time = threading.Lock()

    def sell(what: str, worker: int) -> int:
        with one_at_a_time, base:
            base.execute("INSERT INTO sales VALUES (?, ?)", (what, worker))
            base.execute("UPDATE stock SET left = left - 1 WHERE what = ?", (what,))
            [left] = base.execute("SELECT left FROM stock WHERE what = ?", (what,)).fetchone()
            return int(left)

    library.define("sell(str what, int worker) -> int")
    library.impl("sell", sell, "CompositeExplicitAutograd", serve="host")
    return base


def main() -> None:
    library = md.Library("shop", "DEF")
    base = serve(library)
    start = multiprocessing.get_context("spawn")  # as a server would: it forks before, or spawns
    workers = [start.Process(target=sell, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    left = dict(base.execute("SELECT what, left FROM stock"))
    sold = dict(base.execute("SELECT what, COUNT(*) FROM sales GROUP BY what"))
    assert {what: sold[what] + left[what] for what in STOCK} == STOCK
    assert left["net"] == 0
    print(
        f"{WORKERS} workers sold {sum(sold.values())} things over one connection, and were refused "
        f"{WORKERS * SALES - sum(sold.values())} that were not there any more"
    )


if __name__ == "__main__":
    main()
