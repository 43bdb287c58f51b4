"""A wait for a kernel ends when the main interpreter has one that can serve: it and
``has_kernel_for_dispatch_key`` say the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading

import pytest
from kinds import KINDS, run_main
from patience import limit
from seeds import seed_of

import mdispatch as md
from mdispatch import errors, torch_compat
from mdispatch.registry.c_kernels import implement_by_label


class Plain:
    __dispatch_keys__ = "CPU"


class Special(Plain):
    pass


def kernel(x):
    return "kernel"


def waiting(registry):
    """Waits for the kernel, in a thread; returns what the wait comes to."""
    found = []

    def wait():
        try:
            found.append(md.wait_for_impl("s::f", "CPU", limit(30), registry=registry))
        except errors.MdispatchError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()

    def result():
        thread.join()
        return found[0]

    return result


def until_asleep(registry, count=1):
    """Until so many waits of the members sleep."""
    while sum(member[4] for member in registry.dispatcher.facts.members()) < count:
        os.sched_yield()


def offered(registry, **more):
    """A provider in a library of its own."""
    library = md.Library("s", "IMPL", registry=registry)
    library.impl("f", kernel, "CPU", **{"provider": "p", **more})
    return library


@pytest.fixture
def f(registry, lib):
    lib.define("f(Tensor x) -> str")
    return registry.ops.s.f.default


# --- has_kernel and waits say the same ------------------------------------------------------------

KEYS = ["Undefined", "CPU", "CUDA", "AutogradCPU", "Autograd", "Meta", "CompositeExplicitAutograd"]
KEYS += ["CompositeImplicitAutograd", "AutogradOther", "BackendSelect"]


def _offers(key, name="p", **more):
    return lambda lib: lib.impl("f", kernel, key, provider=name, **more)


#: What can be registered, each in a library of its own.
UNITS = {
    "a fake kernel": lambda lib: lib.register_fake("f", kernel),
    "a kernel": lambda lib: lib.impl("f", kernel, "CPU"),
    "a second kernel": lambda lib: lib.impl("f", kernel, "CPU"),
    "an alias": lambda lib: lib.impl("f", kernel, "CompositeExplicitAutograd"),
    "a catch-all": lambda lib: lib.impl("f", kernel),
    "another catch-all": lambda lib: lib.impl("f", kernel, "Undefined"),
    "types": lambda lib: lib.impl("f", kernel, "CPU", types=Special),
    "a fallthrough": lambda lib: lib.impl("f", md.fallthrough_kernel, "CUDA"),
    "a formula": lambda lib: md.register_autograd("s::f", lambda ctx, grad: grad, lib=lib),
    "by its label": lambda lib: implement_by_label(
        lib.registry.dispatcher, "s::f", md.DispatchKey.CUDA, "c:lib.so:f", str, 0
    ),
    "a provider": _offers("CPU"),
    "for types": _offers("CPU", name="t", types=Special),
    "refuses": _offers("CPU", name="r", supports=lambda x: False),
    "may be lacked": _offers("CUDA", required=False),
    "not available": _offers("CPU", name="n", available=False),
    "not available, for types": _offers("CPU", name="m", available=False, types=Special),
    "not available, for all": _offers("CompositeImplicitAutograd", name="n", available=False),
    "not available, alias": _offers("Autograd", name="n", available=lambda: 1 / 0),
    "not available elsewhere": _offers("CUDA", name="n", available=lambda: 0, required=False),
}

CATCH_ALLS = {"a catch-all", "another catch-all", "not available, for all"}


def opened(registry, unit):
    """What ends the unit."""
    if unit == "a fallback":
        library = md.Library("_", "IMPL", registry=registry)
        library.fallback(kernel, "CUDA")
        return library.close
    if unit == "a strict priority":
        return md.set_priority("s::f", ["t", "nobody"], strict=True, registry=registry).close
    library = md.Library("s", "IMPL", registry=registry)
    handle = UNITS[unit](library)
    if unit != "by its label":
        return library.close
    return handle.close


def can_serve(registry, key):
    try:
        fact = md.wait_for_impl("s::f", key, 0, registry=registry)
    except errors.NotRegisteredError:
        return False
    assert fact.key is md.DispatchKey.parse(key)
    assert fact.provider_text.split(" ")[4:] == []
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["local", pytest.param("shared", marks=pytest.mark.shared)])
def test_has_kernel_and_wait_say_the_same_of_every_kind_of_kernel(where, long_form):
    chance = random.Random(seed_of(long_form))
    names = [*UNITS, "a fallback", "a strict priority"]
    seen = set()
    with getattr(md.Registry, {"local": "local", "shared": "create"}[where])() as registry:
        md.Library("s", "DEF", registry=registry).define("f(Tensor x) -> str")
        f = registry.ops.s.f.default
        ends = {}
        for step in range(4000 if long_form else 400):
            unit = names[step] if step < len(names) else chance.choice(names)
            if unit in ends:
                ends.pop(unit)()
            else:
                if where == "local" and unit == "by its label":
                    continue  # as of a kernel in C
                if unit == "a fake kernel" and CATCH_ALLS & {*ends}:
                    continue  # would be refused
                ends[unit] = opened(registry, unit)
            for key in KEYS:
                says = f.has_kernel_for_dispatch_key(key)
                assert says is can_serve(registry, key), (sorted(ends), key)
                seen.add((key, says))
            key_set = md.DispatchKeySet("CPU", "CUDA")
            any_says = f.has_kernel_for_any_dispatch_key(key_set)
            assert any_says is any(can_serve(registry, key) for key in ("CPU", "CUDA"))
    missing = {(key, says) for key in KEYS for says in (True, False)} - seen
    never = {"Undefined", "AutogradCPU", "AutogradOther", "BackendSelect"}  # only by alias keys
    assert missing == {(key, True) for key in never}


# --- a wait for a provider ------------------------------------------------------------------------


@pytest.mark.parametrize("local", [False, True])
def test_a_provider_that_is_not_available_ends_no_wait(local):
    with (md.Registry.local if local else md.Registry.create)() as registry:
        md.Library("s", "DEF", registry=registry).define("f(Tensor x) -> str")
        offered(registry, available=False)
        result = waiting(registry)
        until_asleep(registry)
        offered(registry, provider="q", available=lambda: None)
        offered(registry, provider="typed", available=False, types=Special)
        until_asleep(registry)
        offered(registry, provider="good")
        assert result().provider == "good"


def test_a_wait_returns_the_newest_kernel_that_can_serve(f, registry, lib):
    lib.impl("f", kernel, "CPU")
    offered(registry, provider="old")
    offered(registry, provider="new", available=False)
    assert md.wait_for_impl("s::f", "CPU", 0, registry=registry).provider == "old"


def test_a_provider_that_becomes_available_ends_the_wait(f, registry):
    library = offered(registry, available=False)
    result = waiting(registry)
    until_asleep(registry)
    library.close()
    offered(registry)
    assert result().lacks == ""


def test_an_error_says_why_the_providers_cannot_serve(f, registry):
    def driver():
        raise OSError("no driver")

    offered(registry, provider="old", available=False)
    offered(registry, provider="new", available=driver)
    with pytest.raises(errors.ProviderMissingError) as caught:
        md.wait_for_impl("s::f", "CPU", 0, registry=registry)
    error = caught.value
    assert (error.provider, error.name, error.key, error.kind) == ("new", "s::f", "CPU", "impl")
    assert error.reason.endswith("driver raised OSError: no driver")
    assert "has no kernel for s::f at CPU that can serve\n" in str(error)
    assert "old: available=False (" in str(error)
    assert f"new: {error.reason} ({error.there})" in str(error)
    with pytest.raises(errors.KeyMismatchError):
        md.wait_for_impl("s::f", "CUDA", 0, registry=registry)


def test_a_task_waits_for_a_provider_that_can_serve_and_can_be_cancelled(f, registry):
    offered(registry, available=False)

    async def main():
        async def begun(timeout):
            task = asyncio.create_task(
                md.wait_for_impl_async("s::f", "CPU", timeout, registry=registry)
            )
            while not registry.dispatcher.facts.members()[0][4]:
                await asyncio.sleep(0)
            return task

        task = await begun(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(errors.ProviderMissingError):
            await md.wait_for_impl_async("s::f", "CPU", 0, registry=registry)
        task = await begun(limit(30))
        offered(registry, provider="good")
        return await task

    assert asyncio.run(main()).provider == "good"
    assert registry.dispatcher.facts.members()[0][4] == 0


def test_the_names_of_torch_say_the_same(registry, lib):
    name = lib.define("f(Tensor x) -> str")
    both = md.DispatchKeySet("CPU", "Meta")

    def answers():
        op = registry.ops.s.f.default
        with torch_compat.using(registry):
            theirs = torch_compat._dispatch_has_kernel_for_dispatch_key(name, "CPU")
            any_of_theirs = torch_compat._dispatch_has_kernel_for_any_dispatch_key(name, both)
        return {
            theirs,
            any_of_theirs,
            op.has_kernel_for_dispatch_key("CPU"),
            op.has_kernel_for_any_dispatch_key(both),
            can_serve(registry, "CPU"),
        }

    offered(registry, available=False)
    assert answers() == {False}
    library = offered(registry, provider="good")
    assert answers() == {True}
    library.close()
    assert answers() == {False}


# --- other members --------------------------------------------------------------------------------

WORKER = """
import mdispatch as md
i_am_here()
fact = md.wait_for_impl("s::f", "CPU", limit(30))
report(provider=fact.provider, key=fact.key.name)
"""


@pytest.mark.shared
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_waits_for_the_provider_that_can_serve(kind, tmp_path):
    got = run_main(
        """
        kind, folder, text = args
        md.default_registry()
        workers = start(kind, text, 2, Path(folder))
        until_asleep(workers)
        lib = md.Library("s", "DEF")
        lib.define("f(Tensor x) -> str")
        lib.impl("f", str, "CPU", provider="gpu", available=False)
        until_asleep(workers)
        lib.impl("f", str, "CPU", provider="good")
        done(results=results(workers))
        """,
        kind,
        str(tmp_path),
        WORKER,
    )
    assert got["results"] == [{"provider": "good", "key": "CPU"}] * 2


@pytest.mark.shared
def test_a_peer_waits_for_the_provider_that_can_serve_whoever_registers(tmp_path):
    name = f"peers-{os.getpid()}"
    with md.Registry.elect(name) as first, md.Registry.elect(name) as second:
        lib = md.Library("s", "DEF", registry=first)
        lib.impl(lib.define("f(Tensor x) -> str"), kernel, "CPU", provider="p", available=False)
        result = waiting(second)
        until_asleep(second)
        with pytest.raises(errors.ProviderMissingError):
            md.wait_for_impl("s::f", "CPU", 0, registry=second)
        # The second one has it, too, and is no registrar: nothing has changed for the team.
        mine = md.Library("s", "FRAGMENT", registry=second)
        mine.impl("f", kernel, "CPU", provider="p", available=False)
        until_asleep(second)
        lib.impl("f", kernel, "CPU", provider="good")
        assert result().provider == "good"


@pytest.mark.shared
def test_a_kernel_in_c_is_verified_beside_kernels_for_types_and_providers(f, lib, registry, worker):
    offered(registry, available=False)
    lib.impl("f", kernel, "CPU", types=Special)
    key, label = md.DispatchKey.CPU, "c:lib.so:f"
    found = []

    def verify():
        found.append(implement_by_label(worker.dispatcher, "s::f", key, label, str, limit(30)))

    thread = threading.Thread(target=verify)
    thread.start()
    until_asleep(worker)
    implement_by_label(registry.dispatcher, "s::f", key, label, str, 0)
    thread.join()
    assert found[0] is not None
