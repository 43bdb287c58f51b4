"""Tensors of PyTorch of every kind that can be made without a device: by dtype, layout, device,
gradient, class, mode and transform.
"""

from __future__ import annotations

__all__ = ["kinds", "places"]

_DTYPES = "float16 bfloat16 float64 int8 int16 int32 int64 uint8 uint16 uint32 bool complex64"
_DTYPES += " complex128 float8_e4m3fn float8_e5m2"
_DEVICES = ["cpu", "meta", "cuda", "xpu", "mps", "xla", "mtia", "maia", "ipu", "ve", "vulkan"]
_DEVICES += ["lazy", "hip"]


def kinds(torch):
    """Tensors by a name for their kind."""
    plain, made = torch.ones(2, 2), {}
    for name in _DTYPES.split():
        made[name] = torch.empty(2, 2, dtype=getattr(torch, name))
    made |= _by_layout(torch, plain) | _by_gradient(torch, plain) | _by_class(torch, plain)
    for number, inside in enumerate(_in_transforms(torch, plain)):
        made[f"transformed {number}"] = inside
    return made


def _by_layout(torch, plain):
    made, complex_ = {}, torch.ones(2, dtype=torch.complex64)
    for name in ("to_sparse", "to_sparse_csr", "to_sparse_csc", "to_mkldnn"):
        made[name] = getattr(plain, name)()
        made[f"{name} with gradient"] = getattr(torch.ones(2, 2, requires_grad=True), name)()
    for name in ("to_sparse_bsr", "to_sparse_bsc"):
        made[name] = getattr(plain, name)((1, 1))
    made["sparse, empty"] = torch.empty(2, 2, layout=torch.sparse_coo)
    made["sparse csr, meta"] = torch.empty(2, 2, layout=torch.sparse_csr, device="meta")
    for dtype in (torch.quint8, torch.qint8, torch.qint32):
        made[f"quantized {dtype}"] = torch.quantize_per_tensor(plain, 1.0, 0, dtype)
    made["quantized per channel"] = torch.quantize_per_channel(
        plain, torch.ones(2), torch.zeros(2), 0, torch.qint8
    )
    pair = [torch.ones(1), torch.ones(2)]
    made["nested"] = torch.nested.nested_tensor(pair)
    made["nested with gradient"] = torch.nested.nested_tensor(pair, requires_grad=True)
    made["jagged"] = torch.nested.nested_tensor(pair, layout=torch.jagged)
    made["conj"] = complex_.conj()
    made["negative"] = torch._neg_view(plain)
    made["imag of conj"] = complex_.conj().imag
    made["zero"] = torch._efficientzerotensor(2)
    made["zero, meta"] = torch._efficientzerotensor(2, device="meta")
    made["meta"] = torch.ones(2, device="meta")
    return made | {"view": plain[0], "expanded": torch.ones(1).expand(3), "0-d": torch.tensor(1.0)}


def _by_gradient(torch, plain):
    leaf = torch.ones(2, requires_grad=True)
    made = {"leaf": leaf, "of a leaf": leaf * 2, "detached": leaf.detach()}
    made["meta with gradient"] = torch.ones(2, device="meta", requires_grad=True)
    made["conj with gradient"] = torch.ones(2, dtype=torch.complex64, requires_grad=True).conj()
    with torch.inference_mode():
        made["inference"] = torch.ones(1)
        made["inference, meta"] = torch.ones(1, device="meta")
        made["inference, sparse"] = torch.ones(2, 2).to_sparse()
        made["inference, a view of a leaf"] = leaf[0]
    with torch.autograd.forward_ad.dual_level():
        made["dual"] = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
    return made


def _by_class(torch, plain):
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
    from torch.masked import masked_tensor
    from torch.testing._internal.two_tensor import TwoTensor

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner, **how):
            return torch.Tensor._make_wrapper_subclass(cls, inner.size(), **how)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    made = {"Parameter": torch.nn.Parameter(plain), "Buffer": torch.nn.Buffer(torch.ones(2))}
    made["Parameter, meta"] = torch.nn.Parameter(torch.ones(2, device="meta"))
    made["UninitializedParameter"] = torch.nn.UninitializedParameter()
    made["subclass"] = plain.as_subclass(type("Sub", (torch.Tensor,), {}))
    for device in _DEVICES:
        made[f"wrapper, {device}"] = Wrapper(plain, device=device)
        with FakeTensorMode():
            made[f"fake, {device}"] = torch.empty(2, device=device)
    made["wrapper with gradient"] = Wrapper(plain, requires_grad=True)
    made["wrapper, sparse"] = Wrapper(plain, layout=torch.sparse_coo)
    made["two"] = TwoTensor(plain, plain)
    with FunctionalTensorMode():
        made["functional"] = FunctionalTensor.to_functional(plain)
    made["masked"] = masked_tensor(plain, torch.ones(2, 2, dtype=torch.bool))
    return made


def _in_transforms(torch, plain):
    seen = []

    def keep(value):
        seen.append(value)
        return value.sum()

    for place in _transforms(torch, plain):
        place(keep)
    return seen


def _transforms(torch, plain):
    vmap, grad, functionalize = torch.func.vmap, torch.func.grad, torch.func.functionalize
    yield lambda body: vmap(body)(plain)
    yield lambda body: grad(body)(plain)
    yield lambda body: functionalize(body)(plain)
    yield lambda body: vmap(vmap(body))(plain)
    yield lambda body: grad(grad(body))(torch.tensor(1.0))
    yield lambda body: vmap(grad(body))(plain)
    yield lambda body: grad(lambda value: vmap(body)(value).sum())(plain)
    yield lambda body: torch.func.jvp(body, (plain,), (plain,))
    yield lambda body: torch.func.jacfwd(body)(plain)
    yield lambda body: functionalize(vmap(body))(plain)


def places(torch):
    """Functions that call what they are given with a tensor: in transforms, modes and kernels."""
    from torch._subclasses import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = torch.ones(2, 2)
    yield from _transforms(torch, plain)

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **kwargs or {})

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **kwargs or {})

    def under(mode):
        def place(body):
            with mode:
                body(plain)
                body(torch.ones(3))

        return place

    yield from map(under, (Functions(), Calls(), FakeTensorMode(allow_non_fake_inputs=True)))
    yield from map(under, (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")))

    def in_kernel(body):
        with torch.library._scoped_library("kinds", "DEF") as lib:
            lib.define("f(Tensor x) -> Tensor")
            for key in ("CPU", "AutogradCPU"):
                lib.impl("f", lambda value: (body(value), value.clone())[1], key)
                torch.ops.kinds.f.default(torch.ones(2, requires_grad=key != "CPU"))

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, value, body):
            body(value)
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient, None

    yield in_kernel
    yield lambda body: Function.apply(torch.ones(2, requires_grad=True), body)
