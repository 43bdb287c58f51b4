"""The promises of giving an extension's backend its own name, and what stays as it was."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import pytest
from patience import limit

from mdispatch.errors import (
    DuplicateRegistrationError,
    InvalidArgumentError,
    InvalidKeyError,
    InvalidNameError,
)
from mdispatch.keys import (
    DispatchKey,
    DispatchKeySet,
    canonical_device,
    device_key,
    devices,
    numbers,
    parse_key,
    rename_privateuse_backend,
)

pytestmark = pytest.mark.specification

PRIVATE = ["PrivateUse1", "PrivateUse2", "PrivateUse3"]


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Each test starts without such names, and those that it gives end with it."""

    def forget():
        monkeypatch.setattr(numbers, "_by_name", DispatchKey.__members__)
        monkeypatch.setattr(devices, "_devices", devices._COMMON_DEVICES)
        monkeypatch.setattr(devices, "_given", {})

    forget()
    return forget


def everything():
    """All that a renaming changes."""
    return dict(numbers.key_names()), dict(devices._devices), dict(devices._given)


def refused(backend, name, error):
    before = everything()
    with pytest.raises(error) as caught:
        rename_privateuse_backend(backend, name)
    assert everything() == before
    return caught.value


# What PyTorch 2.13 reads after torch.utils.rename_privateuse1_backend("npu"), recorded
# with torch._C._dispatch_key_parse. It does not read names with the given spelling, such as
# "Autogradnpu".
RECORDED = {
    "NPU": "PrivateUse1",
    "AutogradNPU": "AutogradPrivateUse1",
    "SparseNPU": "SparsePrivateUse1",
    "SparseCsrNPU": "SparseCsrPrivateUse1",
    "QuantizedNPU": "QuantizedPrivateUse1",
    "NestedTensorNPU": "NestedTensorPrivateUse1",
    "AutocastNPU": "AutocastPrivateUse1",
    "AutogradPrivateUse1": "AutogradPrivateUse1",
}

# --- what a name gives ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", PRIVATE)
def test_a_renamed_backend_has_devices_of_that_name(backend):
    with pytest.raises(InvalidKeyError):
        device_key("npu")
    rename_privateuse_backend(backend, "npu")
    assert device_key("npu") is device_key("npu:1") is parse_key(backend)
    with pytest.raises(InvalidKeyError):
        device_key("NPU")
    with pytest.raises(InvalidKeyError):
        device_key("npu:x")


@pytest.mark.parametrize("backend", PRIVATE)
def test_every_key_of_a_renamed_backend_can_be_called_by_the_name_as_given_or_in_capitals(backend):
    rename_privateuse_backend(backend, "npu")
    of_backend = [key for key in DispatchKey if key.name.endswith(backend)]
    assert {key for key in DispatchKey if key.backend == backend} <= set(of_backend)
    for key in of_backend:
        prefix = key.name.removesuffix(backend)
        assert parse_key(prefix + "npu") is parse_key(prefix + "NPU") is key
    assert len(numbers.key_names()) == len(DispatchKey.__members__) + 2 * len(of_backend)
    for wrong in ("Npu", "AutogradNpu", "npuAutograd", "SparseAutogradnpu"):
        with pytest.raises(InvalidKeyError):
            parse_key(wrong)


@pytest.mark.parametrize("name", RECORDED)
def test_names_of_keys_that_pytorch_takes_for_a_renamed_backend_are_taken(name):
    rename_privateuse_backend("PrivateUse1", "npu")
    assert parse_key(name).name == RECORDED[name]


def test_autocast_of_a_renamed_backend_has_the_name_too():
    rename_privateuse_backend("PrivateUse1", "npu")
    assert parse_key("Autocastnpu") is DispatchKey.AutocastPrivateUse1


def test_sets_and_everything_else_that_takes_names_of_keys_takes_the_new_ones():
    rename_privateuse_backend("PrivateUse1", "npu")
    assert DispatchKeySet("npu", "AutogradNPU") == DispatchKeySet(
        "PrivateUse1", "AutogradPrivateUse1"
    )
    assert "Sparsenpu" in DispatchKeySet("SparsePrivateUse1")
    assert DispatchKey.parse("npu") is DispatchKey.PrivateUse1


def test_the_backend_can_be_given_as_a_key_or_by_any_of_its_names():
    rename_privateuse_backend(DispatchKey.PrivateUse1, "npu")
    rename_privateuse_backend("npu", "npu")
    rename_privateuse_backend("PrivateUse1", "npu")


def test_all_three_backends_can_have_names_at_once():
    for backend, name in zip(PRIVATE, ("npu", "dsp", "tpu_v7"), strict=True):
        rename_privateuse_backend(backend, name)
    assert [device_key(name).name for name in ("npu", "dsp:0", "tpu_v7")] == PRIVATE
    assert parse_key("QuantizedTPU_V7") is DispatchKey.QuantizedPrivateUse3


# --- what stays -----------------------------------------------------------------------------------


def test_a_renamed_key_shows_its_canonical_name_everywhere():
    rename_privateuse_backend("PrivateUse1", "npu")
    key = parse_key("Autogradnpu")
    assert (key.name, str(key), repr(key)) == (
        "AutogradPrivateUse1",
        "AutogradPrivateUse1",
        "DispatchKey.AutogradPrivateUse1",
    )
    assert key.backend == "PrivateUse1"
    assert repr(DispatchKeySet(key)) == "DispatchKeySet(AutogradPrivateUse1)"
    assert "npu" not in DispatchKey.__members__
    assert [each.name for each in DispatchKey] == list(DispatchKey.__members__)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert b"npu" not in pickle.dumps([key, DispatchKeySet(key)], protocol)


def test_the_old_names_go_on_to_work():
    rename_privateuse_backend("PrivateUse1", "npu")
    assert parse_key("PrivateUse1") is device_key("privateuseone:1") is DispatchKey.PrivateUse1
    assert parse_key("SparseCsrPrivateUse1") is DispatchKey.SparseCsrPrivateUse1


def test_only_named_backends_have_devices():
    for name in ("privateuse2", "privateusetwo", "PrivateUse2", "privateuse3"):
        with pytest.raises(InvalidKeyError):
            device_key(name)


def test_a_device_is_told_to_other_interpreters_by_the_name_they_know():
    rename_privateuse_backend("PrivateUse1", "npu")
    assert canonical_device("npu") == "privateuseone"
    assert canonical_device("npu:12") == "privateuseone:12"
    assert canonical_device("privateuseone:1") == "privateuseone:1"
    assert canonical_device("cuda:1") == "cuda:1"
    with pytest.raises(InvalidKeyError):
        canonical_device("gpu")


def test_a_device_that_other_interpreters_have_no_name_for_is_told_to_none():
    rename_privateuse_backend("PrivateUse2", "dsp")
    with pytest.raises(InvalidKeyError, match="PrivateUse2"):
        canonical_device("dsp:1")


def test_errors_know_the_new_names():
    rename_privateuse_backend("PrivateUse1", "npux")
    with pytest.raises(InvalidKeyError, match="npux") as caught:
        device_key("gpu:1")
    assert "cuda" in str(caught.value)
    with pytest.raises(InvalidKeyError) as caught:
        device_key("npxu")
    assert caught.value.nearest[0] == "npux"
    with pytest.raises(InvalidKeyError) as caught:
        parse_key("Autogradnpxu")
    assert "Autogradnpux" in caught.value.nearest


def test_an_unknown_device_is_refused_with_the_way_to_name_one():
    with pytest.raises(InvalidKeyError, match="rename_privateuse_backend"):
        device_key("npu")


# --- once per backend -----------------------------------------------------------------------------


def test_the_same_name_again_changes_nothing():
    rename_privateuse_backend("PrivateUse1", "npu")
    before = everything()
    rename_privateuse_backend("PrivateUse1", "npu")
    assert everything() == before


@pytest.mark.parametrize("second", ["dsp", "NPU", "Npu"])
def test_a_second_name_is_refused_with_both_places(second):
    rename_privateuse_backend("PrivateUse1", "npu")
    error = refused("PrivateUse1", second, DuplicateRegistrationError)
    assert (error.kind, error.name, error.key) == ("backend name", second, "PrivateUse1")
    assert error.first != error.second
    for place in (error.first, error.second):
        assert place.startswith(__file__)
        assert place in str(error)
    assert "npu" in str(error)
    with pytest.raises(InvalidKeyError):
        parse_key("dsp")


@pytest.mark.parametrize("name", ["npu", "NPU"])
def test_the_name_of_one_backend_is_refused_for_another(name):
    rename_privateuse_backend("PrivateUse1", "npu")
    error = refused("PrivateUse2", name, InvalidNameError)
    assert error.name == name
    assert "npu" in str(error)
    rename_privateuse_backend("PrivateUse2", "dsp")


# --- names that cannot be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cpu", "cuda", "meta", "vulkan", "privateuseone", "CUDA", "Meta", "PrivateUse2", "Sparse"],
)
def test_the_name_of_a_device_backend_or_key_is_refused(name):
    refused("PrivateUse1", name, InvalidNameError)


@pytest.mark.parametrize("name", ["Cuda", "cpU", "dense", "BackendSelect".lower()])
def test_a_name_that_only_differs_in_case_from_one_that_is_there_is_refused(name):
    refused("PrivateUse3", name, InvalidNameError)


@pytest.mark.parametrize(
    ("name", "clash"),
    [
        ("Other", "AutogradOther"),
        ("csr", "SparseCsr"),
        ("CsrCPU", "SparseCsrCPU"),
        ("functionality", "AutogradFunctionality"),
    ],
)
def test_a_name_that_would_turn_into_another_key_behind_a_prefix_is_refused(name, clash):
    assert clash in str(refused("PrivateUse1", name, InvalidNameError))


def test_two_names_that_would_mean_the_same_key_name_are_refused():
    rename_privateuse_backend("PrivateUse1", "npu")
    refused("PrivateUse2", "Csrnpu", InvalidNameError)
    assert parse_key("SparseCsrnpu") is DispatchKey.SparseCsrPrivateUse1


NO_IDENTIFIERS = ["", " ", "a b", "npu:1", "1npu", "n-p-u", "npü", "a::b", "None", "npu\n"]


@pytest.mark.parametrize("name", [*NO_IDENTIFIERS, "n" * 256, None, 5, b"npu", ["npu"]])
def test_a_name_that_is_no_identifier_is_refused(name):
    error = refused("PrivateUse1", name, InvalidNameError)
    assert error.name == name
    assert isinstance(error, InvalidArgumentError)
    assert len(str(error)) < 400


OTHER_KEYS = ["CPU", "Meta", "AutogradPrivateUse1", "AutocastPrivateUse1", "Sparse", "Autograd"]
NO_KEYS = ["npu", "privateuseone", "", None, 77]


@pytest.mark.parametrize("backend", [*OTHER_KEYS, *NO_KEYS, DispatchKey.CUDA])
def test_only_the_backends_of_extensions_are_renamed(backend):
    error = refused(backend, "npu", InvalidKeyError)
    assert error.key == backend


# --- threads and interpreters ---------------------------------------------------------------------


def test_of_threads_that_give_different_names_exactly_one_succeeds(names):
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            names()
            barrier = threading.Barrier(4)
            results = {}

            def give(name, barrier=barrier, results=results):
                barrier.wait()
                try:
                    rename_privateuse_backend("PrivateUse1", name)
                    results[name] = device_key(name), parse_key("Autograd" + name)
                except DuplicateRegistrationError as error:
                    results[name] = error

            threads = [threading.Thread(target=give, args=(f"npu{n}",)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(results) == 4
            won = [name for name, found in results.items() if not isinstance(found, Exception)]
            assert len(won) == 1
            assert results[won[0]] == (DispatchKey.PrivateUse1, DispatchKey.AutogradPrivateUse1)
            assert set(devices._devices) - set(devices._COMMON_DEVICES) == set(won)
    finally:
        sys.setswitchinterval(switching)


def test_of_threads_that_give_one_name_to_different_backends_exactly_one_succeeds(names):
    for _ in range(50):
        names()
        barrier = threading.Barrier(3)
        won = []

        def give(backend, barrier=barrier, won=won):
            barrier.wait()
            try:
                rename_privateuse_backend(backend, "npu")
                won.append(backend)
            except InvalidNameError:
                pass

        threads = [threading.Thread(target=give, args=(backend,)) for backend in PRIVATE]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [device_key("npu").name]


OTHER_INTERPRETER = """
import contextlib
import mdispatch.keys as keys
from mdispatch import create_interpreter
from mdispatch.errors import InvalidKeyError

keys.rename_privateuse_backend("PrivateUse1", "npu")
with contextlib.closing(create_interpreter()) as interpreter:
    interpreter.exec('''if True:
        import mdispatch.keys as keys
        from mdispatch.errors import InvalidKeyError
        for look in (keys.parse_key, keys.device_key):
            try:
                look("npu")
            except InvalidKeyError:
                pass
            else:
                raise AssertionError("the name of another interpreter")
        keys.rename_privateuse_backend("PrivateUse1", "dsp")
        assert keys.device_key("dsp") is keys.DispatchKey.PrivateUse1
    ''')
assert keys.device_key("npu") is keys.DispatchKey.PrivateUse1
try:
    keys.device_key("dsp")
except InvalidKeyError:
    print("separate")
"""


@pytest.mark.shared
def test_each_interpreter_has_its_own_names():
    command = [sys.executable, "-W", "error", "-c", OTHER_INTERPRETER]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit(60))
    assert (run.stdout, run.stderr) == ("separate\n", "")


# --- the number of a key --------------------------------------------------------------------------


def test_the_value_of_a_key_is_its_number_as_a_plain_int():
    for key in DispatchKey:
        assert key.value == key
        assert type(key.value) is int
        assert DispatchKey(key.value) is key
    assert DispatchKey.CPU.value == 49
    with pytest.raises(AttributeError):
        DispatchKey.CPU.value = 5
