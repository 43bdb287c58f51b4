"""Runs two texts of PyTorch's own as they are installed, with one line exchanged, the import of
torch, and prints the outcome of each check as JSON: ``python torch_texts.py custom_op_db|registry
ours|theirs``. An empty outcome is a check that holds. ``theirs`` exchanges nothing: the control.

custom_op_db.py has eleven operators with sample inputs. registry.py puts kernels over operators of
aten, under conditions.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
import types
import warnings
from pathlib import Path

import torch

OURS = "from mdispatch.torch_compat import torch"


def loaded(path, is_ours):
    """The module that a file of PyTorch makes with one line changed, or none."""
    file = Path(torch.__file__).parent / path
    text = file.read_text()
    if is_ours:
        text, changed = re.subn(r"^import torch(\.library)?$", OURS, text, flags=re.MULTILINE)
        assert changed == 1
    module = types.ModuleType(f"text_of_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # its dataclasses look it up
    exec(compile(text, str(file), "exec"), vars(module))
    return module


class Outcomes(dict):
    def tried(self, name, check, *args):
        try:
            check(*args)
        except BaseException:
            self[name] = traceback.format_exc()
        else:
            self[name] = ""


# --- custom_op_db ---------------------------------------------------------------------------------


class Database:
    """The checks of one operator, with its own sample inputs."""

    def __init__(self, module, info):
        self.module = module
        self.info = info
        self.op = info.op
        self.name = str(info.op).split(".")[1]
        self.definition = getattr(module, self.name)

    def sample(self, requires_grad=False):
        torch.manual_seed(0)
        (sample, *_) = self.info.sample_inputs("cpu", torch.float64, requires_grad=requires_grad)
        return (sample.input, *sample.args), sample.kwargs

    def checks(self):
        found = ["eager", "fake", "compile", "opcheck_of_torch", "opcheck"]
        if self.info.supports_autograd:
            found += ["grad", "gradcheck"]
        if self.name not in ("numpy_nonzero", "numpy_nms"):  # their rules refuse
            found += ["vmap"]
        return found

    def function(self, *args, **kwargs):
        own = getattr(self.definition, "function", None) or self.definition._init_fn
        return own(*args, **kwargs)

    def eager(self):
        args, kwargs = self.sample()
        torch.testing.assert_close(self.op(*args, **kwargs), self.function(*args, **kwargs))
        torch.testing.assert_close(self.definition(*args, **kwargs), self.op(*args, **kwargs))

    def fake(self):
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        from torch.utils._pytree import tree_leaves, tree_map_only

        args, kwargs = self.sample()
        real = tree_leaves(self.op(*args, **kwargs))
        with FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)) as mode:
            args = tree_map_only(
                torch.Tensor, lambda t: mode.from_tensor(t, static_shapes=True), args
            )
            fakes = tree_leaves(self.op(*args, **kwargs))
        assert len(real) == len(fakes)
        for one, other in zip(real, fakes, strict=True):
            if isinstance(one, torch.Tensor):
                assert isinstance(other, FakeTensor)
                assert (one.dtype, one.dim()) == (other.dtype, other.dim())
                if self.name not in ("numpy_nonzero", "numpy_nms"):
                    assert one.shape == other.shape

    def differentiable(self, result):
        leaves = torch.utils._pytree.tree_leaves(result)
        return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]

    def grad(self):
        args, kwargs = self.sample(requires_grad=True)
        results = self.differentiable(self.op(*args, **kwargs))
        leaves = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        leaves = [t for t in leaves if t.requires_grad]
        assert results
        assert leaves
        found = torch.autograd.grad(sum(t.sum() for t in results), leaves)
        assert [t.shape for t in found] == [t.shape for t in leaves]

    def gradcheck(self):
        args, kwargs = self.sample(requires_grad=True)
        leaves, spec = torch.utils._pytree.tree_flatten(args)
        tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]

        def of_tensors(*given):
            rest = iter(given)
            filled = [next(rest) if any(t is s for s in tensors) else t for t in leaves]
            again = torch.utils._pytree.tree_unflatten(filled, spec)
            return tuple(self.differentiable(self.op(*again, **kwargs)))

        assert torch.autograd.gradcheck(of_tensors, tensors)

    def compile(self):
        import torch._dynamo

        args, kwargs = self.sample()
        torch._dynamo.reset()
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(
                lambda *a, **k: self.op(*a, **k), fullgraph=True, backend="aot_eager"
            )
            torch.testing.assert_close(compiled(*args, **kwargs), self.op(*args, **kwargs))

    def opcheck_of_torch(self):
        args, kwargs = self.sample(requires_grad=self.info.supports_autograd)
        theirs = getattr(torch.ops._torch_testing, self.name).default
        found = torch.library.opcheck(theirs, args, kwargs)
        assert set(found.values()) == {"SUCCESS"}, found

    def opcheck(self):
        args, kwargs = self.sample(requires_grad=self.info.supports_autograd)
        if self.name in ("numpy_nonzero", "numpy_nms"):
            args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        found = self.module.torch.library.opcheck(self.definition, args, kwargs)
        assert set(found.values()) == {"SUCCESS"}, found

    def vmap(self):
        args, kwargs = self.sample()
        is_tensor = torch.utils._pytree.tree_map(lambda a: isinstance(a, torch.Tensor), args)
        batched = torch.utils._pytree.tree_map(
            lambda a: torch.stack([a, a + a, a]) if isinstance(a, torch.Tensor) else a, args
        )
        if self.name == "numpy_take":  # indices stay indices
            is_tensor = (True, False, False, False)
            batched = (batched[0], *args[1:])
        places = torch.utils._pytree.tree_map(lambda is_one: 0 if is_one else None, is_tensor)

        def row(i):
            return torch.utils._pytree.tree_map(
                lambda is_one, a: a[i] if is_one else a, is_tensor, batched
            )

        rows = [self.op(*row(i), **kwargs) for i in range(3)]
        outs = torch.utils._pytree.tree_map(
            lambda *each: torch.stack(each) if isinstance(each[0], torch.Tensor) else each[0], *rows
        )

        def plain(*a):
            return self.op(*a, **kwargs)

        out_dims = torch.utils._pytree.tree_map(
            lambda t: 0 if isinstance(t, torch.Tensor) else None, rows[0]
        )
        found = torch.vmap(plain, in_dims=places, out_dims=out_dims)(*batched)
        torch.testing.assert_close(found, outs)


def custom_op_db(is_ours):
    found = Outcomes()
    module = loaded("testing/_internal/custom_op_db.py", is_ours)
    for info in module.custom_op_db:
        operator = Database(module, info)
        for check in operator.checks():
            found.tried(f"{operator.name} {check}", getattr(operator, check))
    return found


# --- registry -------------------------------------------------------------------------------------

A = torch.arange(8.0).reshape(2, 2, 2)
RIGHT = torch.bmm(A, A)
BMM = "(Tensor self, Tensor mat2) -> Tensor"
_kept = []


def define_aten(library):
    """The operators of aten that the checks use, as operators of mdispatch."""
    aten = library.Library("aten", "FRAGMENT")
    for name, kernel in (("bmm", torch.bmm), ("mul.Tensor", torch.mul)):
        aten.define(f"{name}{BMM.replace('mat2', 'other') if '.' in name else BMM}")
        aten.impl(name, kernel, "CPU")
        aten._register_fake(name, kernel)
    return aten


class Registrar:
    """The checks of the text of registry.py. Each has a module of its own."""

    def __init__(self, is_ours):
        self.r = loaded("_native/registry.py", is_ours)
        self.ops = self.r.torch.ops
        self.r._node_id_counter = 1000 * len(_kept)  # as if the modules were one
        _kept.append(self.r)

    def close(self):
        for name, key in list(self.r._aten_override_libs):
            self.r._destroy_aten_override(name, key)

    def override(self, dsl, value, cond=lambda *_: True, op="bmm", **how):
        def kernel(x, y):
            return torch.full_like(x, value)

        self.r.register_op_override(dsl, "aten", op, "CPU", cond, kernel, **how)

    def registered(self, *overrides):
        for each in overrides:
            self.override(*each)
        self.r._register_all_overrides()

    def value(self, x=A):
        """The value of an override, or None for the kernel of aten."""
        found = self.ops.aten.bmm(x, x)
        return None if torch.equal(found, RIGHT[: len(x)]) else found.flatten()[0].item()

    def raises(self, cls, function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except cls:
            return
        raise AssertionError(f"no {cls.__name__}")

    # --- operators of aten

    def the_overload_of_a_bare_name_is_found(self):
        found = self.r._resolve_aten_overload("bmm")
        assert (found.name(), found._opname, found._overloadname) == ("aten::bmm", "bmm", "default")

    def the_overload_of_a_qualified_name_is_found(self):
        found = self.r._resolve_aten_overload("mul.Tensor")
        assert (found.name(), found._overloadname) == ("aten::mul.Tensor", "Tensor")
        assert found._schema.overload_name == "Tensor"

    def a_name_that_is_not_there_is_none(self):
        assert self.r._resolve_aten_overload("no_such_operator") is None
        assert self.r._resolve_aten_overload("bmm.no_such_overload") is None

    def the_schema_is_written_without_the_name(self):
        assert self.r._aten_schema_tail("bmm") == BMM
        assert self.r._aten_schema_tail("mul.Tensor") == BMM.replace("mat2", "other")

    def the_schema_of_a_name_that_is_not_there_is_an_error(self):
        self.raises(AttributeError, self.r._aten_schema_tail, "no_such_operator")

    # --- refusals

    def another_namespace_is_refused(self):
        self.raises(
            ValueError, self.r.register_op_override, "d", "mine", "bmm", "CPU", None, torch.bmm
        )

    def keys_that_would_recurse_are_refused(self):
        for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"):
            self.raises(
                ValueError, self.r.register_op_override, "d", "aten", "bmm", key, None, torch.bmm
            )

    def an_override_needs_a_condition_or_says_that_it_has_none(self):
        self.raises(ValueError, self.override, "d", 1.0, None)
        self.override("d", 1.0, None, unconditional_override=True)

    # --- overrides

    def nothing_happens_before_they_are_registered(self):
        self.override("d", 7.0)
        assert self.value() is None

    def an_override_runs_in_place_of_the_kernel(self):
        self.registered(("d", 7.0))
        assert self.value() == 7

    def an_override_without_a_condition_runs_always(self):
        self.override("d", 7.0, None, unconditional_override=True)
        self.r._register_all_overrides()
        assert self.value() == 7

    def where_the_condition_fails_the_kernel_runs(self):
        self.registered(("d", 7.0, lambda x, y: x.shape[0] == 1))
        assert (self.value(), self.value(A[:1])) == (None, 7)

    def the_first_condition_that_holds_decides(self):
        self.registered(("d", 7.0, lambda x, y: x.shape[0] == 1), ("e", 8.0), ("f", 9.0))
        assert (self.value(), self.value(A[:1])) == (8, 7)

    def a_condition_that_raises_is_an_error_of_the_call(self):
        self.registered(("d", 7.0, lambda x, y: 1 / 0))
        self.raises(ZeroDivisionError, self.value)

    def an_overload_with_a_name_is_overridden(self):
        self.override("d", 7.0, op="mul.Tensor")
        self.r._register_all_overrides()
        assert self.ops.aten.mul.Tensor(A, A).flatten().tolist() == [7] * 8
        assert self.value() is None

    def calls_by_keyword_come_to_the_override(self):
        self.registered(("d", 7.0))
        assert self.ops.aten.bmm(A, mat2=A).flatten().tolist() == [7] * 8

    def the_operator_of_an_override_has_the_schema_of_aten(self):
        self.registered(("d", 7.0))
        (name,) = self.r._defined_native_ops
        found = getattr(self.ops._native, name).default
        assert str(found._schema) == f"_native::{name}{BMM}"

    def the_operator_of_an_override_serves_meta_values(self):
        self.registered(("d", 7.0))
        (name,) = self.r._defined_native_ops
        found = getattr(self.ops._native, name)(A.to("meta"), A.to("meta"))
        assert (found.shape, found.device.type) == (A.shape, "meta")

    def registered_twice_they_are_the_same(self):
        self.registered(("d", 7.0))
        self.r._register_all_overrides()
        assert self.value() == 7
        assert len(self.r._defined_native_ops) == 1

    def the_end_of_the_library_gives_the_kernel_back(self):
        self.registered(("d", 7.0))
        self.r._destroy_aten_override("bmm", "CPU")
        assert self.value() is None

    # --- on and off

    def switched(self, **what):
        self.registered(("d", 7.0), ("e", 8.0))
        self.r.deregister_op_overrides(**{f"disable_{k}": v for k, v in what.items()})
        off = self.value()
        self.r.reenable_op_overrides(**{f"enable_{k}": v for k, v in what.items()})
        return off, self.value()

    def one_is_switched_off_and_on_by_its_name(self):
        assert self.switched(dsl_names="d") == (8, 7)

    def several_are_switched_off_and_on_by_their_names(self):
        assert self.switched(dsl_names=["d", "e"]) == (None, 7)

    def those_of_an_operator_are_switched_off_and_on(self):
        assert self.switched(op_symbols="bmm") == (None, 7)

    def those_of_a_key_are_switched_off_and_on(self):
        assert self.switched(dispatch_keys=["CPU"]) == (None, 7)

    def those_that_are_off_are_in_no_table(self):
        self.registered(("d", 7.0))
        assert len(self.r.native_decomp_table(overrides_only=True)) == 1
        self.r.deregister_op_overrides(disable_dsl_names="d")
        assert self.r.native_decomp_table(overrides_only=True) == {}

    def the_operators_of_a_name_are_listed(self):
        self.override("d", 7.0)
        self.override("d", 7.0, op="mul.Tensor")
        assert self.r.get_dsl_operations("d") == ["bmm", "mul.Tensor"]
        assert self.r.get_dsl_operations("e") == []

    # --- the order

    def reordered(self, function):
        self.registered(("d", 7.0), ("e", 8.0))
        self.r.reorder_graphs_from_user_function(function, reregister_overrides=True)
        return self.value()

    def an_order_of_ones_own_decides(self):
        assert self.reordered(lambda op, key, graph: graph[::-1]) == 8

    def an_order_that_raises_changes_nothing(self):
        assert self.reordered(lambda op, key, graph: 1 / int("no")) == 7

    def an_order_that_is_no_list_changes_nothing(self):
        assert self.reordered(lambda op, key, graph: None) == 7

    def a_filter_takes_some_away(self):
        self.registered(("d", 7.0), ("e", 8.0))
        self.r._apply_graph_filter(
            lambda op, key, node: node.dsl_name != "d", reregister_overrides=True
        )
        assert self.value() == 8

    # --- the table for compilers

    def the_table_is_by_the_overload(self):
        self.registered(("d", 7.0))
        table = self.r.native_decomp_table(overrides_only=True)
        router = table[self.ops.aten.bmm.default]
        assert router(A, A).flatten().tolist() == [7] * 8

    def a_router_without_a_match_says_so(self):
        self.registered(("d", 7.0, lambda x, y: False), ("e", 8.0, lambda x, y: 1 / 0))
        (router,) = self.r.native_decomp_table(overrides_only=True).values()
        assert router(A, A) is NotImplemented


def registry(is_ours):
    found = Outcomes()
    if is_ours:
        from mdispatch.torch_compat.torch import library

        _kept.append(define_aten(library))
    helpers = ("close", "override", "registered", "value", "raises", "switched", "reordered")
    for name in [name for name in vars(Registrar) if name[0] != "_" and name not in helpers]:
        registrar = Registrar(is_ours)
        found.tried(name, getattr(registrar, name))
        registrar.close()
    return found


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "create_unbacked_symint", FutureWarning)
    warnings.filterwarnings("ignore", ".*`create_unbacked_symint` is deprecated", FutureWarning)
    output, sys.stdout = sys.stdout, sys.stderr
    # Python flushes sys.stdout at its end, and this is not it any more.
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2] == "ours")), file=output, flush=True)
