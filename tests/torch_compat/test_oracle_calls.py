"""Calls and libraries against recordings of PyTorch 2.13, and errors where PyTorch crashes.

See test_oracle_compat.py for the recording, and for what mdispatch decides otherwise.
"""

from __future__ import annotations

import warnings

import pytest
from recordings import (
    RECORDED,
    Carrier,
    Player,
    fresh,
    in_a_thread,
    made,
    python_kernel,
    sets_of_thread,
)

import mdispatch as md

pytestmark = pytest.mark.specification

# --- calls ----------------------------------------------------------------------------------------


class Scenario:
    """The operators and kernels of a recorded scenario; what runs is noted in ``trace``."""

    def __init__(self, compat, recorded):
        self.compat = compat
        self.trace = []
        kernels = {name: self.kernel(name, what) for name, what in recorded["kernels"].items()}
        self.player = Player(compat, kernels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for do in recorded["setup"]:
                self.player.run(do)

    def kernel(self, name, what):
        def run(*args, **kwargs):
            own = None
            if what.get("with_keyset"):
                own, *args = args
                assert isinstance(own, self.compat.DispatchKeySet)
            if what.get("fallback"):
                _, *args = args
            raw = None if own is None else own.raw_repr()
            self.trace.append([name, raw, *sets_of_thread(self.compat)])
            acts = what.get("acts", ())
            result = self.act(acts, own, args, kwargs)
            if acts and acts[-1][0] in ("redispatch", "call", "with"):
                return result
            result = what.get("result", ["argument", 0])
            return args[result[1]] if isinstance(result, list) else result

        return run

    def act(self, acts, own, args, kwargs):
        compat, result = self.compat, None
        for what, *rest in acts:
            if what == "redispatch":
                op, how, raw = rest
                keys = compat.DispatchKeySet.from_raw_repr(raw)
                if how != "set":
                    keys = own & keys if how == "and" else own - keys
                result = self.find(op).redispatch_boxed(keys, *args, **kwargs)
            elif what == "call":
                result = compat._dispatch_call_boxed(self.find(rest[0]), *args, **kwargs)
            elif what == "with":
                name, arguments, inner = rest
                with getattr(compat, name)(*[made(compat, a) for a in arguments]):
                    result = self.act(inner, own, args, kwargs)
            elif what == "raise":
                raise KeyError("raised by a kernel")
            else:
                setter = getattr(compat, f"_dispatch_tls_set_dispatch_key_{what}")
                setter(compat.DispatchKey(rest[0]), rest[1])
        return result

    def find(self, op):
        base, _, overload = op.partition(".")
        return self.compat._dispatch_find_schema_or_throw(base, overload)

    def call(self, call):
        """Makes a recorded call and compares what ran, and what came of it."""
        compat = self.compat
        arguments = []

        def value(given):
            if isinstance(given, dict):
                given = Carrier(given["keys"])
            elif isinstance(given, list):
                given = [value(item) for item in given]
            arguments.append(given)
            return given

        args = [value(item) for item in call["args"]]
        kwargs = {name: value(item) for name, item in call.get("kwargs", {}).items()}
        self.trace.clear()
        guards = [
            getattr(compat, name)(*[made(compat, a) for a in given])
            for name, given in call["within"]
        ]
        for guard in guards:
            guard.__enter__()
        failed = result = None
        try:
            if "redispatch" in call:
                keys = compat.DispatchKeySet.from_raw_repr(call["redispatch"])
                result = self.find(call["op"]).redispatch_boxed(keys, *args, **kwargs)
            else:
                result = compat._dispatch_call_boxed(self.find(call["op"]), *args, **kwargs)
        except Exception as error:
            failed = error
        for guard in reversed(guards):
            guard.__exit__(None, None, None)
        assert self.trace == call["trace"]
        if "error" in call:
            assert failed is not None
            expected = {"RuntimeError": RuntimeError, "KeyError": KeyError}
            expected["NotImplementedError"] = NotImplementedError
            assert isinstance(failed, expected[call["error"]]), (failed, call["text"])
        elif failed is not None:
            raise failed
        elif isinstance(call["result"], dict):
            assert result is arguments[call["result"]["argument"]]
        else:
            assert result == call["result"]


def takes_none_for_a_tensor(call):
    # Its argument is declared as Tensor, not as Tensor?; n is declared as int.
    return call["args"] == [None] and call["op"] == "c1::f"


@pytest.mark.parametrize("recorded", RECORDED["calls"], ids=[c["title"] for c in RECORDED["calls"]])
def test_calls_run_the_recorded_kernels_with_the_recorded_sets(compat, recorded):
    def run():
        with fresh(compat):
            scenario = Scenario(compat, recorded)
            for call in recorded["calls"]:
                if not takes_none_for_a_tensor(call):
                    scenario.call(call)

    in_a_thread(run)  # a kernel may leave its thread's sets changed


def test_none_is_refused_where_a_tensor_is_declared(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "n", "")
        library.def_("f(Tensor x, Tensor? y=None) -> Tensor")
        library.impl("f", "CompositeImplicitAutograd", lambda x, y=None: x)
        handle = compat._dispatch_find_schema_or_throw("n::f", "")
        with pytest.raises(RuntimeError, match="x"):
            compat._dispatch_call_boxed(handle, None)
        carrier = Carrier(compat.DispatchKeySet("CPU").raw_repr())
        assert compat._dispatch_call_boxed(handle, carrier, None) is carrier


# --- libraries ------------------------------------------------------------------------------------


def test_registrations_end_when_their_library_dies(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        other = library.def_("f(Tensor x) -> Tensor").impl_t_t("f", "CPU")
        assert other is library
        del library
        assert compat._dispatch_has_kernel("d::f")
        del other
        assert not compat._dispatch_has_kernel("d::f")


def test_a_library_can_be_used_after_its_reset(compat):
    with fresh(compat):
        library = compat._dispatch_library("DEF", "d", "", "f.py", 3)
        library.def_("f(Tensor x) -> Tensor")
        assert library.reset() is None
        assert library.reset() is None
        assert not compat._dispatch_has_kernel("d::f")
        library.def_("f(Tensor x) -> Tensor").impl_t_t("f")
        assert compat._dispatch_has_kernel("d::f")
        # Its namespace is free since the first reset.
        second = compat._dispatch_library("DEF", "d", "", "g.py", 4)
        del library
        assert not compat._dispatch_has_kernel("d::f")
        with pytest.raises(RuntimeError, match=r"g\.py:4"):
            compat._dispatch_library("DEF", "d", "")
        del second
        compat._dispatch_library("DEF", "d", "")


def test_a_library_of_a_closed_registry_dies_in_peace(compat):
    with md.Registry.create() as registry, compat.using(registry):
        library = compat._dispatch_library("DEF", "d", "")
        library.def_("f(Tensor x) -> Tensor").impl_t_t("f")
    library.reset()
    del library


def test_registries_know_nothing_of_each_other(compat):
    with fresh(compat):
        outer = compat._dispatch_library("DEF", "d", "", "f.py", 3)
        outer.def_("f(Tensor x) -> Tensor")
        with fresh(compat):
            assert not compat._dispatch_has_kernel("d::f")
            inner = compat._dispatch_library("DEF", "d", "", "g.py", 4)
            inner.def_("g(Tensor x) -> Tensor")
            # A library registers where it was opened.
            outer.impl_t_t("f")
            assert compat._dispatch_get_all_op_names() == ["d::g"]
            del inner
        assert compat._dispatch_find_dangling_impls() == []
        assert compat._dispatch_get_all_op_names() == ["d::f"]
        assert "CompositeImplicitAutograd[alias]: impl_t_t" in compat._dispatch_dump("d::f")


def test_another_thread_uses_what_it_says_itself(compat):
    with fresh(compat):
        library = compat._dispatch_library("DEF", "only_here", "")
        library.def_("f(Tensor x) -> Tensor")
        assert not in_a_thread(lambda: compat._dispatch_has_kernel("only_here::f"))


# --- instead of a crash ---------------------------------------------------------------------------


def test_a_bare_name_in_a_library_without_a_namespace_is_refused(compat):
    # Undefined behaviour in PyTorch.
    with fresh(compat):
        library = compat._dispatch_library("IMPL", "_", "CPU", "f.py", 3)
        with pytest.raises(RuntimeError, match=r"f\.py:3"):
            library.impl_t_t("f")
        with pytest.raises(RuntimeError):
            library.impl("f", "CPU", python_kernel)
        assert compat._dispatch_get_all_op_names() == []


def test_an_unknown_operator_has_no_fallthrough(compat):
    # PyTorch ends the process.
    with fresh(compat), pytest.raises(RuntimeError, match="no::op"):
        compat._dispatch_kernel_for_dispatch_key_is_fallthrough("no::op", "CPU")


def test_a_handle_knows_when_its_operator_is_gone(compat):
    # PyTorch reads freed memory, and after another definition calls that one.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        library.def_("f(Tensor x) -> Tensor")
        handle = compat._dispatch_find_schema_or_throw("d::f", "")
        assert str(handle.schema()) == "d::f(Tensor x) -> Tensor"
        library.reset()
        library.def_("f(int x) -> int").impl("f", "CompositeImplicitAutograd", lambda x: x)
        for use in (handle.schema, handle.debug, lambda: compat._dispatch_call_boxed(handle, 1)):
            with pytest.raises(RuntimeError, match="d::f"):
                use()
        again = compat._dispatch_find_schema_or_throw("d::f", "")
        assert compat._dispatch_call_boxed(again, 1) == 1


@pytest.mark.parametrize("name", ["", "a b", "a::b"])
def test_a_namespace_that_no_name_can_have_is_refused(compat, name):
    # PyTorch registers operators there that nothing can find.
    with fresh(compat), pytest.raises(RuntimeError):
        compat._dispatch_library("FRAGMENT", name, "")


def test_none_is_no_text(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        for run in (
            lambda: library.impl_t_t("f", None),
            lambda: library.def_(None),
            lambda: compat._dispatch_library("IMPL", "d", None),
            lambda: compat._dispatch_dump(None),
            lambda: compat._parse_dispatch_key(None),
        ):
            with pytest.raises((TypeError, RuntimeError)):
                run()


def test_names_beyond_ascii_are_refused_in_words(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        with pytest.raises(RuntimeError):
            library.def_("äöü(Tensor x) -> Tensor")
        with pytest.raises(RuntimeError):
            library.impl_t_t("äöü")


def test_a_fallback_runs_for_arguments_that_carry_the_python_key(compat):
    # PyTorch looks the fallback up under the operator's name, where it is not.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        library.def_("f(Tensor x) -> Tensor")
        library.impl("f", "Python", md.fallthrough_kernel)
        star = compat._dispatch_library("IMPL", "_", "")
        star.fallback("FPGA", lambda op, x: x)
        keys = compat.DispatchKeySet("FPGA") | compat.DispatchKeySet("Python")
        carrier = Carrier(keys.raw_repr())
        handle = compat._dispatch_find_schema_or_throw("d::f", "")
        assert compat._dispatch_call_boxed(handle, carrier) is carrier
