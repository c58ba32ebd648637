"""What a client sees of the cluster."""

import jax


def test_all_devices_of_both_slices():
    devices = jax.devices()
    assert len(devices) == 8
    assert jax.local_devices() == devices
    assert [d.id for d in devices] == list(range(8))
    assert jax.process_index() == 0 and jax.process_count() == 1
    assert jax.device_count() == jax.local_device_count() == 8


def test_attributes():
    for d in jax.devices():
        assert d.platform == "cpu" and d.device_kind == "cpu"
        assert d.process_index == 0
        assert d.slice_index == d.id // 4
    assert jax.default_backend() == "cpu"


def test_memories():
    for d in jax.devices():
        kinds = {m.kind for m in d.addressable_memories()}
        assert d.default_memory().kind == "device"
        assert {"device", "pinned_host", "unpinned_host"} <= kinds


def test_runtime_is_ours():
    client = jax.devices()[0].client
    assert client.runtime_type == "proxy/landbridge"
    assert client.supports_executable_serialization  # the landbridge package is there; test_serialization.py
