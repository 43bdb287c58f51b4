"""Whether a value was changed, and whether another shares its memory."""

from __future__ import annotations

import array
import collections
import dataclasses
import random
import threading

import pytest

from mdispatch.authoring.opcheck.values import aliases, is_immutable, snapshot


class Plain:
    """An ordinary class: no ==, everything in attributes."""

    def __init__(self, items: object) -> None:
        self.items = items


class Slotted:
    __slots__ = ("__hidden", "items")

    def __init__(self, items: object) -> None:
        self.items = items
        self.__hidden = [0]

    def write(self) -> None:
        self.__hidden[0] += 1


class Equal:
    """Its == leaves out the cache."""

    def __init__(self, items: list[int]) -> None:
        self.items = items
        self.cache: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and other.items == self.items


class Elementwise(Plain):
    """Its == does not return a bool, like that of arrays."""

    def __eq__(self, other: object) -> Elementwise:  # type: ignore[override]
        return Elementwise([other])


@dataclasses.dataclass
class Record:
    items: list[int]


class Sequence(list):  # type: ignore[type-arg]
    label = "class"


def looked_at(value: object, change) -> tuple[bool | None, bool | None]:
    """The answers before a change and after it."""
    taken = snapshot(value)
    before = taken.changed()
    change(value)
    return before, taken.changed()


def first_item(value) -> None:
    value.items[0] += 1


def first_element(value) -> None:
    value[0] += 1


CHANGES = {
    "a bytearray": (bytearray(b"ab"), first_element),
    "a bytearray that grew": (bytearray(b"ab"), lambda b: b.append(0)),
    "an array": (array.array("f", [1, 2]), first_element),
    "a view of memory": (memoryview(bytearray(b"ab")), lambda v: v.__setitem__(0, 0)),
    "a list": ([1, 2], first_element),
    "a list with an equal element in place of another": (
        [(1, [])],
        lambda v: v.__setitem__(0, (1, [])),
    ),
    "a list in a list": ([[1], [2]], lambda v: first_element(v[0])),
    "a tuple of lists": (([1],), lambda v: first_element(v[0])),
    "a dict": ({"a": [1]}, lambda v: first_element(v["a"])),
    "a set": ({1}, lambda v: v.add(2)),
    "a class derived from list": (Sequence([1]), lambda v: setattr(v, "label", "own")),
    "an object": (Plain([1]), first_item),
    "an object with another attribute": (Plain([1]), lambda v: setattr(v, "more", 1)),
    "an object with slots": (Slotted([1]), first_item),
    "an object with private slots": (Slotted([1]), Slotted.write),
    "an object with ==": (Equal([1]), first_item),
    "an object whose == is no bool": (Elementwise([1]), first_item),
    "a dataclass": (Record([1]), first_item),
    "a deque": (collections.deque([1]), lambda v: v.append(2)),
    "a generator of numbers": (random.Random(1), lambda v: v.random()),
    "an object in an object": (Plain(Plain([1])), lambda v: first_item(v.items)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_seen_and_its_absence_too(case: str) -> None:
    value, change = CHANGES[case]
    assert looked_at(value, change) == (False, True)


def test_what_an_own_equality_leaves_out_is_no_change() -> None:
    assert looked_at(Equal([1]), lambda v: v.cache.update(a=1)) == (False, False)


def test_a_value_that_holds_itself_is_compared_once() -> None:
    value = Plain([1])
    value.itself = value  # type: ignore[attr-defined]
    assert looked_at(value, first_item) == (False, True)


def test_of_a_lock_nothing_can_be_told() -> None:
    lock = threading.Lock()
    assert looked_at(lock, lambda v: v.acquire()) == (None, None)
    assert snapshot(Plain(lock)).changed() is None


def test_a_change_beside_what_cannot_be_told_is_a_change() -> None:
    value = [threading.Lock(), [1]]
    taken = snapshot(value)
    assert taken.changed() is None
    value[1][0] += 1  # type: ignore[index]
    assert taken.changed() is True


def test_a_bytearray_may_grow_while_a_snapshot_of_it_is_kept() -> None:
    value = bytearray(b"a")
    taken = snapshot(value)
    value.extend(b"bc")  # BufferError if a view of it were open
    assert taken.changed() is True


def test_what_nobody_can_change_is_told_from_what_holds_a_list() -> None:
    for value in (1, 1.5, 2j, True, "a", b"a", None, (1, ("a",)), frozenset({1}), int, len):
        assert is_immutable(value), value
        assert snapshot(value).changed() is False
    for value in ([], ([],), {}, bytearray(), Plain(1)):
        assert not is_immutable(value), value


# --- shared memory --------------------------------------------------------------------------------


def test_one_object_is_an_alias_of_itself_unless_nobody_can_change_it() -> None:
    for value in ([1], {}, bytearray(), Plain(1), array.array("b")):
        assert aliases(value, value), value
    for value in (1, "text", b"bytes", (1, 2), None, 1.5):
        assert not aliases(value, value), value


def test_equal_values_are_no_aliases() -> None:
    for make in (lambda: [1], lambda: bytearray(b"a"), lambda: Plain([1]), lambda: Record([1])):
        assert not aliases(make(), make())


def test_views_of_one_memory_are_aliases() -> None:
    memory = bytearray(b"abcd")
    view = memoryview(memory)
    assert aliases(memory, view)
    assert aliases(view, memory)
    assert aliases(view[:2], memoryview(memory))
    assert not aliases(view, memoryview(bytearray(b"abcd")))


def test_views_of_bytes_are_no_aliases_because_nobody_writes_to_them() -> None:
    text = b"abcd"
    assert not aliases(memoryview(text), memoryview(text))


def test_what_shares_an_attribute_that_is_memory_is_an_alias() -> None:
    for items in ([1], bytearray(b"a"), array.array("f", [1])):
        assert aliases(Plain(items), Plain(items))
        assert aliases(Plain(items), items)
        assert aliases([Plain(items)], Plain(items))


def test_what_shares_only_a_shape_a_type_or_a_helper_is_no_alias() -> None:
    helper = Plain([])
    one, other = Plain([1]), Plain([1])
    for each in (one, other):
        each.shape, each.kind, each.helper = (1,), int, helper  # type: ignore[attr-defined]
    assert not aliases(one, other)


def test_elements_in_lists_are_asked_each() -> None:
    value = Plain([1])
    assert aliases([value], (value, 1))
    assert not aliases([Plain([1])], [value])


class Interface:
    """Tells the address of its memory, as arrays of any library do. Nothing reads that memory."""

    def __init__(self, start: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None):
        self.__array_interface__ = {
            "version": 3,
            "data": (start, False),
            "shape": shape,
            "strides": strides,
            "typestr": "<f4",
        }


def test_addresses_overlap_or_do_not() -> None:
    whole = Interface(1000, (10,))
    assert aliases(whole, Interface(1036, (5,)))
    assert not aliases(whole, Interface(1040, (5,)))
    assert not aliases(whole, Interface(1000, (0,)))
    backwards = Interface(1036, (10,), (-4,))
    assert aliases(backwards, Interface(1000, (1,)))
    assert not aliases(backwards, Interface(1040, (1,)))
    assert aliases(Interface(1000, (2, 2), (400, 4)), Interface(1404, (1,)))


def test_one_address_on_two_kinds_of_device_is_two_places() -> None:
    here, there = Interface(1000, (10,)), Plain(0)
    there.__cuda_array_interface__ = here.__array_interface__  # type: ignore[attr-defined]
    assert aliases(there, Plain(there))
    assert not aliases(here, there)


def test_arrays_of_numpy() -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed here")
    value = numpy.arange(6.0).reshape(2, 3)
    assert looked_at(value, lambda v: v.__setitem__((0, 0), 9)) == (False, True)
    assert looked_at(value[:, ::2], lambda v: v.__setitem__((0, 0), 1)) == (False, True)
    dates = numpy.array(["2020-01-01"], "M8[D]")
    assert looked_at(dates, lambda v: v.__setitem__(0, "2021-01-01")) == (False, True)
    things = numpy.array([[1], None], object)
    assert looked_at(things, lambda v: v[0].append(2)) == (False, True)
    assert aliases(value, value.T)
    assert aliases(value[0], value)
    assert not aliases(value[0], value[1])
    assert not aliases(value, value.copy())
    assert not aliases(numpy.float64(1), numpy.float64(1))
    memory = bytearray(8)
    assert aliases(numpy.frombuffer(memory, "f4"), memory)


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    value = torch.arange(6.0)
    assert looked_at(value, lambda v: v.add_(1)) == (False, True)
    assert looked_at(value, lambda v: v.add_(0)) == (False, True)
    assert looked_at(value, lambda v: v.data.add_(1)) == (False, True)  # the version stays
    assert looked_at(torch.tensor([float("nan")]), lambda v: None) == (False, False)
    assert looked_at(value.clone(), lambda v: v.resize_(2)) == (False, True)
    with torch.inference_mode():
        assert looked_at(torch.ones(2), lambda v: v.add_(1)) == (False, True)
    assert aliases(value, value.view(2, 3))
    assert aliases(value[:2], value[3:])  # one storage
    assert not aliases(value, value.clone())
    assert not aliases(torch.empty(0), torch.empty(0))
    meta = torch.empty(6, device="meta")  # without data, and without an address
    assert looked_at(meta, lambda v: v.add_(1)) == (False, True)
    assert aliases(meta, meta.view(2, 3))
    assert not aliases(meta, torch.empty(6, device="meta"))
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed here")
    shared = numpy.zeros(3)
    assert aliases(torch.from_numpy(shared), shared)
