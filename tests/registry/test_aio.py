"""The awaitable waits: the same results and errors, and a task that waits blocks no other task."""

from __future__ import annotations

import asyncio
import threading

import pytest

import mdispatch as md


def test_a_task_that_waits_blocks_no_other_task(registry) -> None:
    async def main() -> tuple[str, int]:
        turns = 0
        waiting = asyncio.create_task(md.wait_for_def_async("a::f", 30.0, registry=registry))
        while not registry.dispatcher.facts.members()[0][4]:
            await asyncio.sleep(0)
            turns += 1
        for _ in range(100):
            await asyncio.sleep(0)
            turns += 1
        assert not waiting.done()
        md.Library("a", "DEF", registry=registry).define("f() -> ()")
        return (await waiting).body, turns

    body, turns = asyncio.run(main())
    assert body == "a::f() -> ()"
    assert turns >= 100


def test_many_tasks_wait_at_once_for_definitions_and_kernels(registry) -> None:
    async def main() -> list[str]:
        waits = [md.wait_for_def_async(f"a::f{i}", 30.0, registry=registry) for i in range(20)]
        waits += [
            md.wait_for_impl_async(f"a::f{i}", "CPU", 30.0, registry=registry) for i in range(20)
        ]
        tasks = [asyncio.create_task(w) for w in waits]
        while registry.dispatcher.facts.members()[0][4] < 40:
            await asyncio.sleep(0.001)
        lib = md.Library("a", "DEF", registry=registry)
        for i in range(20):
            lib.impl(lib.define(f"f{i}(Tensor x) -> int"), len, "CPU")
        return [fact.name for fact in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [f"a::f{i}" for i in range(20)] * 2


def test_a_cancelled_task_leaves_no_thread_behind(registry) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(md.wait_for_def_async("a::f", None, registry=registry))
        while not registry.dispatcher.facts.members()[0][4]:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before
    assert registry.dispatcher.facts.members()[0][4] == 0


def test_a_task_cancelled_at_once_leaves_no_thread_behind(registry) -> None:
    async def main() -> None:
        for _ in range(50):
            waiting = asyncio.create_task(md.wait_for_def_async("a::f", None, registry=registry))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before


def test_the_errors_are_those_of_the_blocking_waits(registry) -> None:
    md.Library("a", "DEF", registry=registry).define("first() -> ()")
    for name, error in (
        ("a::frist", md.errors.NameMismatchError),
        ("b::f", md.errors.MainNeverArrivedError),
    ):
        with pytest.raises(error):
            asyncio.run(md.wait_for_def_async(name, 0.01, registry=registry))
    with pytest.raises(md.errors.KeyMismatchError):
        asyncio.run(md.wait_for_impl_async("a::first", "CPU", 0.01, registry=registry))
    with pytest.raises(md.errors.InvalidArgumentError):
        asyncio.run(md.wait_for_def_async("a::f", -1, registry=registry))
    with pytest.raises(md.errors.InvalidNameError):
        asyncio.run(md.wait_for_def_async("f", 1, registry=registry))


def test_wait_for_with_a_shorter_limit_ends_the_wait(registry) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(md.wait_for_def_async("a::f", None, registry=registry), 0.05)

    asyncio.run(main())
    assert registry.dispatcher.facts.members()[0][4] == 0
