"""Arrays of jax: the device that their sharding tells, and the way in for tracers. Each program has
a process of its own: jax warns of forks wherever it was imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from patience import limit

if find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

BEGIN = """
import jax
import jax.numpy as jnp
import mdispatch as md
from mdispatch.dispatch import call_py
from mdispatch.dispatch.context import values
md.define("n::twice", "(Tensor x) -> Tensor")
md.impl("n::twice", "cpu", lambda x: x * 2)
twice = md.ops.n.twice
"""
ON_ONE = """
array = jnp.ones(3)
assert type(array).__dlpack_device__  # its class says so
assert values.is_tensor(array)
for each in (jnp.ones(2), jnp.ones((2, 3)), jax.jit(lambda x: x + 1)(array)):
    assert [key.name for key in md.key_set_of(each)] == ["CPU"]
    assert twice(each).tolist() == call_py.call(twice.default, (each,), {}).tolist()

# Calls ask one array of each sharding, and know the others by that.
asked, way = [], md.dispatch.context.values._raw_by_protocol
def counting(value):
    asked.append(value)
    return way(value)
md.dispatch.context.values._raw_by_protocol = counting
for _ in range(3):
    twice(jnp.ones(4))
assert not asked, asked
"""
TRACED = """
def traced(x):
    return twice(x) + 1

try:
    jax.jit(traced)(jnp.ones(2))
except md.errors.ArgumentError as error:
    assert 'mdispatch.register_type(jax.core.Tracer, "CPU").' in str(error), error
else:
    raise AssertionError("a tracer was taken")
md.register_type(jax.core.Tracer, "CPU")
assert jax.jit(traced)(jnp.ones(2)).tolist() == [3, 3]
assert jax.grad(lambda x: twice(x).sum())(jnp.ones(2)).tolist() == [2, 2]
assert jax.vmap(twice)(jnp.ones((2, 1))).tolist() == [[2], [2]]
"""
ON_SEVERAL = """
from jax.sharding import NamedSharding, PartitionSpec
sharding = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
array = jax.device_put(jnp.ones(4), sharding)
assert len(array.devices()) == 2
assert [key.name for key in md.key_set_of(array)] == ["CPU"]
for _ in range(2):
    assert twice(array).tolist() == [2, 2, 2, 2]
"""


@pytest.mark.parametrize("program", [ON_ONE, TRACED, ON_SEVERAL], ids=["one", "traced", "several"])
def test_a_program_with_arrays_of_jax_runs(program):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert ran.returncode == 0, ran.stderr
