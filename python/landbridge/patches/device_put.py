"""device_put between different partitionings, from worker to worker.

Where the wanted slices are no shards of the source (P('x') -> P() on the same devices, a mesh of four to one of two or
to one device, anything to another partitioning on other devices), stock JAX fetches the whole value to the client and
uploads it again. The cluster moves it itself (ReshardArrays, what pathwaysutils.reshard sends). So do moves to another
order of the same devices, for which stock JAX compiles a program over all of them: here they may belong to several
workers. Everything else is stock: numpy values, the same partitioning on other devices, layouts, tracers.

A shard that the source has already where it is wanted is shared, as on plain JAX: who donates the result ends the source.

A donated source is really given up, which stock JAX does only for some of these moves.
"""
import inspect
import logging

from landbridge import patches, questions

logger = logging.getLogger(__name__)

NAME = "device_put"

_HANDLER_PARAMETERS = ["xs", "shardings", "layouts", "copy_semantics"]
_REORDER_PARAMETERS = ["x", "target_sharding", "copy"]


def check():
    from jax._src import array, dispatch
    from jax._src.interpreters import pxla
    from jax._src.lib import guard_lib

    if reason := patches.unknown_release("device_put to another partitioning goes through the client"):
        return reason
    reorder = "_different_device_order_reshard"
    for what, owner, name, parameters in (
            ("the handler of jax.Array", pxla.shard_arg_handlers, array.ArrayImpl, _HANDLER_PARAMETERS),
            (reorder, vars(dispatch), reorder, _REORDER_PARAMETERS)):
        if name not in owner:
            return f"{what} is missing"
        found = list(inspect.signature(owner[name]).parameters)
        if found != parameters:
            return f"{what} takes {found}"
    for owner, name in ((array, "_sharding_indices_and_eq"), (dispatch, "update_dp_aval"),
                        (pxla, "global_aval_to_result_handler"), (guard_lib, "thread_local_state"),
                        (guard_lib, "global_state")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    from jaxlib import _pathways
    if not hasattr(_pathways, "_transfer_to_shardings"):
        return "jaxlib._pathways has no _transfer_to_shardings"
    return None


def check_guard(x, sharding):
    """jax.transfer_guard, as stock JAX applies it to a move between devices."""
    import jax
    from jax._src.lib import guard_lib
    state, levels = guard_lib.thread_local_state(), guard_lib.TransferGuardLevel
    level = state.device_to_device if state.device_to_device is not None else guard_lib.global_state().device_to_device
    if level is None or level == levels.ALLOW:
        return
    told = f"device-to-device transfer: aval={x.aval!r}, dst_sharding={sharding}"
    if level == levels.DISALLOW_EXPLICIT or (level == levels.DISALLOW and not state.explicit_device_put):
        raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: Disallowed {told}")
    if level == levels.LOG_EXPLICIT or (level == levels.LOG and not state.explicit_device_put):
        logger.warning(told)


def is_ours(sharding):
    devices = sharding._internal_device_list
    return len(devices) > 0 and questions.is_ours(devices[0].client)


def install():
    import numpy as np
    from jax._src import array, core, dispatch
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client as xc
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from jaxlib import _pathways

    donate_input = xc.ArrayCopySemantics.DONATE_INPUT
    reuse_input = xc.ArrayCopySemantics.REUSE_INPUT
    stock_handler = pxla.shard_arg_handlers[array.ArrayImpl]
    stock_reorder = dispatch._different_device_order_reshard
    is_deleted = getattr(array.ArrayImpl.is_deleted, "__wrapped__", array.ArrayImpl.is_deleted)  # patches/deletion.py

    def is_between_ours(x, sharding):
        # Strings live in the proxy; what is deleted is told by stock JAX.
        return (isinstance(x.dtype, np.dtype) and x.dtype.kind not in "TO" and not is_deleted(x)
                and x.is_fully_addressable and sharding.is_fully_addressable
                and is_ours(x.sharding) and is_ours(sharding)
                and x.sharding._internal_device_list[0].client is sharding._internal_device_list[0].client)

    def is_reshard(x, sharding, layout):
        if layout is not None or not is_between_ours(x, sharding):
            return False
        try:
            return not array._sharding_indices_and_eq(x.sharding, sharding, x.ndim)
        except NotImplementedError:  # a kind of sharding that is known by its indices only
            return False

    def transfer(xs, shardings, donate):
        return _pathways._transfer_to_shardings(tuple(xs), tuple(shardings), donate)

    def in_place(x, sharding):
        """{device: shard of x that is the one wanted there}; none where the rest is not one array of copies."""
        if x.sharding.memory_kind != sharding.memory_kind:
            return {}
        have, kept = x.sharding._internal_device_list, set(sharding._internal_device_list)
        if x.sharding.is_fully_replicated and sharding.is_fully_replicated:
            kept.intersection_update(have)
        else:
            index_of = x.sharding.devices_indices_map(x.shape)
            if any(index_of.get(device) != index for device, index in sharding.devices_indices_map(x.shape).items()):
                return {}
        return {device: shard for device, shard in zip(have, x._arrays) if device in kept} if kept else {}

    def replicated(devices, memory_kind):
        return NamedSharding(Mesh(np.array(devices), ("copies",)), P(), memory_kind=memory_kind)

    def assemble(x, sharding, shards):
        arrays = [shards[device] for device in sharding._internal_device_list]
        return array.ArrayImpl(x.aval, sharding, arrays, committed=True, _skip_checks=True)

    def shard_arg(xs, shardings, layouts, copy_semantics):
        groups, rest, occurrences, kept, targets = {}, [], {}, {}, list(shardings)
        for i, (x, sharding, layout, semantics) in enumerate(zip(xs, shardings, layouts, copy_semantics)):
            if not is_reshard(x, sharding, layout):
                rest.append(i)
                continue
            if semantics == reuse_input and (shards := in_place(x, sharding)):
                kept[i] = shards
                others = [device for device in sharding._internal_device_list if device not in shards]
                if not others:
                    continue
                targets[i] = replicated(others, sharding.memory_kind)
            if len(x.sharding._internal_device_list) == 1:  # stock JAX gets others by ways that it does not guard
                check_guard(x, sharding)
            # Of one request all arrays are on the same devices.
            key = (x.sharding._internal_device_list, x.sharding.memory_kind, semantics == donate_input)
            groups.setdefault(key, []).append(i)
            occurrences[id(x)] = occurrences.get(id(x), 0) + 1
        if not groups and not kept:
            return stock_handler(xs, shardings, layouts, copy_semantics)
        # One that is moved to several places is given up when all have it.
        given_up_last = {id(xs[i]): xs[i] for (_, _, donate), group in groups.items() if donate for i in group
                         if occurrences[id(xs[i])] > 1}
        results = [None] * len(xs)
        for (_, _, donate), group in groups.items():
            for give_up in (False, True) if donate else (False,):
                part = [i for i in group if (donate and id(xs[i]) not in given_up_last) == give_up]
                if not part:
                    continue
                for i, y in zip(part, transfer([xs[i] for i in part], [targets[i] for i in part], give_up)):
                    results[i] = y
        for i, shards in kept.items():
            if results[i] is not None:
                shards.update(zip(targets[i]._internal_device_list, results[i]._arrays))
            results[i] = assemble(xs[i], shardings[i], shards)
        if rest:
            stock = stock_handler(*([values[i] for i in rest] for values in (xs, shardings, layouts, copy_semantics)))
            for i, y in zip(rest, stock):
                results[i] = y
        for x in given_up_last.values():
            x.delete()
        return results

    def different_device_order_reshard(x, target_sharding, copy):
        if not is_between_ours(x, target_sharding):
            return stock_reorder(x, target_sharding, copy)
        aval = dispatch.update_dp_aval(core.typeof(x), target_sharding)
        y, = transfer([x], [target_sharding], copy == donate_input)
        return pxla.global_aval_to_result_handler(aval, target_sharding, True)(y)

    shard_arg.__wrapped__ = stock_handler
    different_device_order_reshard.__wrapped__ = stock_reorder
    pxla.shard_arg_handlers[array.ArrayImpl] = shard_arg
    dispatch._different_device_order_reshard = different_device_order_reshard
