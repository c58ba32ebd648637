"""jax.debug.inspect_array_sharding, visualize_array_sharding and custom_partitioning: functions of this process that the
compiler of plain JAX calls while it divides a program.

Here the compiler is another process. So the client asks the server first how the values in question are divided, then calls
the functions itself, and compiles a program without them: an inspection is over, and a call with a partition of its own has
become a shard_map of the function that its `partition` gave. A program without such calls is compiled as ever.
"""
import base64
import functools
import inspect
import itertools
import weakref

import numpy as np

from landbridge import patches, questions
from landbridge.patches import newer_programs

NAME = "partitioning"

_INSPECT, _PARTITION = "InspectSharding", "CustomSPMDPartitioning"  # JAX's names
_MARK = "landbridge_inspect_sharding"  # the server's
_INFO = ["propagate_user_sharding", "partition", "to_mesh_pspec_sharding", "in_tree", "out_tree", "infer_sharding_from_operands",
         "module_context", "mesh", "static_args"]

_inspectors = weakref.WeakValueDictionary()  # what JAX writes into the program -> function of an xc.HloSharding


def check():
    if reason := patches.unknown_release("inspect_array_sharding and custom_partitioning are refused in programs of several devices"):
        return reason
    from jax._src import compiler, custom_partitioning, debugging, sharding_impls
    from jax._src.lib import xla_client
    found = list(inspect.signature(compiler.backend_compile_and_load).parameters)
    if found != newer_programs.PARAMETERS:
        return f"backend_compile_and_load takes {found}"
    found = list(inspect.signature(custom_partitioning._ShardingCallbackInfo).parameters)
    if found != _INFO:
        return f"_ShardingCallbackInfo takes {found}"
    for owner, name in ((xla_client, "encode_inspect_sharding_callback"), (custom_partitioning, "_sharding_callbacks"),
                        (sharding_impls, "parse_flatten_op_sharding"), (xla_client.HloSharding, "from_proto")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    if debugging._INSPECT_SHARDING_CALL_NAME != _INSPECT or custom_partitioning._CUSTOM_PARTITIONING_CALL_NAME != _PARTITION:
        return "JAX's calls have other names"
    return questions.check()


def install():
    from jax._src import compiler, custom_partitioning
    from jax._src.lib import xla_client
    stock_encode, stock_compile = xla_client.encode_inspect_sharding_callback, compiler.backend_compile_and_load

    @functools.wraps(stock_encode)
    def encode(handler):
        key = stock_encode(handler)
        _inspectors[bytes(key)] = handler
        return key

    @functools.wraps(stock_compile)
    def backend_compile_and_load(backend, module, executable_devices, options, host_callbacks):
        if questions.is_ours(backend) and (_inspectors or custom_partitioning._sharding_callbacks):
            module = _decided(backend, module, options)
        return stock_compile(backend, module, executable_devices, options, host_callbacks)

    xla_client.encode_inspect_sharding_callback = encode
    compiler.backend_compile_and_load = backend_compile_and_load


def _calls(module):
    from jax._src.lib.mlir import ir
    found = []

    def visit(op):
        if op.name == "stablehlo.custom_call":
            if ir.StringAttr(op.attributes["call_target_name"]).value in (_INSPECT, _PARTITION):
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _decided(backend, module, options):
    """The module, or a copy in which functions of this process have said what they have to say."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    if not _calls(module):
        return module
    with module.context, ir.Location.unknown():
        copy = ir.Module.parse(mlir.module_to_bytecode(module))
        inspections, partitions = {}, []  # inspections: number of the value -> function of its sharding, or None
        values = []
        for op in _calls(copy):
            if ir.StringAttr(op.attributes["call_target_name"]).value == _INSPECT:
                inspections[len(values)] = _inspectors.get(ir.StringAttr(op.attributes["backend_config"]).value_bytes)
                values.append((op.operands[0], ir.InsertionPoint.at_block_terminator(op.block)))
                op.erase()
            else:
                partitions.append(_Partition(op, len(values)))
                values += partitions[-1].values()
        found = {}
        for number, sharding in _ask(backend, copy, options, values):
            found.setdefault(number, sharding)
            if inspections.get(number) is not None:
                inspections[number](sharding)
        for partition in partitions:
            partition.decide(found, copy)
        return copy


def _ask(backend, module, options, values):
    """[(number of a value, xc.HloSharding)] of [(value, where a mark of it may be)], in the compiler's order. A value in a function
    that is called twice is there twice, one in a function that nobody calls is not there."""
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client as xc
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
    marks = []
    for number, (value, place) in enumerate(values):
        with place:
            marks.append(hlo.CustomCallOp(
                [], [value], call_target_name=ir.StringAttr.get(_MARK), has_side_effect=ir.BoolAttr.get(True),
                api_version=mlir.i32_attr(1), called_computations=ir.ArrayAttr.get([]),
                backend_config=ir.StringAttr.get(str(number)), operand_layouts=None, result_layouts=None))
    answer = questions.ask_about(backend, b"landbridgeShardings", newer_programs.artifact(backend, module), options)
    for mark in marks:
        mark.operation.erase()
    found = []
    for number, data in answer["shardings"]:
        sharding = xc.OpSharding()
        sharding.ParseFromString(base64.b64decode(data))
        found.append((int(number), xc.HloSharding.from_proto(sharding)))
    return found


class _Partition:
    """A call of a function with custom_partitioning."""

    _numbers = itertools.count()

    def __init__(self, op, first):
        """`first`: number of its first operand; the others and the results follow."""
        from jax._src import custom_partitioning
        from jax._src.lib.mlir import ir
        self._op, self._first = op, first
        parent = op.parent
        while parent is not None:
            if parent.name == "sdy.manual_computation":
                raise NotImplementedError("custom_partitioning in a shard_map that leaves axes of the mesh to the compiler")
            parent = parent.parent
        self._info = custom_partitioning._sharding_callbacks.get(
            ir.StringAttr(op.attributes["backend_config"]).value_bytes)
        if self._info is None:
            raise RuntimeError("custom_partitioning: the functions that this program was traced with are gone")
        if "sdy.sharding_rule" not in op.attributes:
            raise NotImplementedError("custom_partitioning needs Shardy (jax_use_shardy_partitioner) and a sharding_rule")

    def values(self):
        from jax._src.lib.mlir import ir
        place = ir.InsertionPoint.at_block_terminator(self._op.block)
        return [(value, place) for value in (*self._op.operands, *self._op.results)]

    def decide(self, found, module):
        """Puts a call of what `partition` gives in the place of the operation. `found`: number -> sharding."""
        from jax._src.lib.mlir import ir
        from jax._src.lib.mlir.dialects import func
        operands, results = list(self._op.operands), list(self._op.results)
        if self._first not in found:
            return  # in a function that nobody calls
        decided = [found[self._first + i] for i in range(len(operands) + len(results))]
        inner = _lowered(self._info, operands, decided[:len(operands)], results, decided[len(operands):])
        name = _merge(inner, module, f"landbridge_partition_{next(self._numbers)}")
        with ir.InsertionPoint(self._op):
            call = func.CallOp([v.type for v in results], ir.FlatSymbolRefAttr.get(name), operands)
        for before, after in zip(results, call.results):
            before.replace_all_uses_with(after)
        self._op.erase()


def _shape(value):
    from jax._src import dtypes
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client as xc
    from jax._src.lib.mlir import ir
    kind = ir.RankedTensorType(value.type)
    for dtype in mlir._dtype_to_ir_type:
        if dtype != dtypes.float0 and mlir.dtype_to_ir_type(dtype) == kind.element_type:
            return xc.Shape.array_shape(dtype, tuple(kind.shape))
    raise NotImplementedError(f"custom_partitioning of a value of type {kind.element_type}")


def _lowered(info, operands, operand_shardings, results, result_shardings):
    """A module whose main function is what `partition` wants, over all devices."""
    import jax
    from jax._src import sharding_impls
    from jax._src.sharding import Sharding

    def specs(mesh, tree, given, shapes):
        flat = tree.flatten_up_to(given)
        if not all(isinstance(sharding, Sharding) for sharding in flat):
            raise ValueError("Custom Partitioning rules must return Sharding.")
        ranks = [len(shape.dimensions()) for shape in shapes]
        return tuple(sharding_impls.parse_flatten_op_sharding(sharding._to_xla_hlo_sharding(rank), mesh)[0]
                     for sharding, rank in zip(flat, ranks))

    arg_shapes, result_shapes = [_shape(v) for v in operands], [_shape(v) for v in results]
    result_structs = [info.unflatten_arg_shape(s, sharding) for s, sharding in zip(result_shapes, result_shardings)]
    mesh, function, out_shardings, in_shardings = info.partition(
        *info.static_args, info.mesh, info.unflatten_arg_shapes(arg_shapes, operand_shardings),
        info.out_tree.unflatten(result_structs))
    in_specs = specs(mesh, info.in_tree, in_shardings, arg_shapes)
    out_specs = specs(mesh, info.out_tree, out_shardings, result_shapes)
    by_parts = jax.shard_map(lambda *flat: tuple(jax.tree.leaves(function(*info.in_tree.unflatten(flat)))), mesh=mesh,
                             in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def decided(values, shardings):
        """The function's own wishes end at its borders: the rest of the program is divided as it was decided without it."""
        if any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
            return values  # types say it
        return [jax.lax.with_sharding_constraint(
            value, jax.NamedSharding(mesh, sharding_impls.parse_flatten_op_sharding(sharding, mesh)[0]))
            for value, sharding in zip(values, shardings)]

    traced = jax.jit(lambda *flat: decided(by_parts(*decided(flat, operand_shardings)), result_shardings)).trace(*(
        jax.ShapeDtypeStruct(s.dimensions(), s.numpy_dtype(), sharding=jax.NamedSharding(mesh, spec))
        for s, spec in zip(arg_shapes, in_specs)))
    made = [(tuple(out.shape), np.dtype(out.dtype)) for out in jax.tree.leaves(traced.out_info)]
    wanted = [(tuple(s.dimensions()), np.dtype(s.numpy_dtype())) for s in result_shapes]
    if made != wanted:
        raise ValueError(f"Mismatch in result shapes. {made} vs {wanted}")
    return traced.lower().compiler_ir("stablehlo")


def _merge(source, module, name):
    """Moves what is in `source` into `module`, under names that begin with `name`; returns that of its main function."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    source = ir.Module.parse(mlir.module_to_bytecode(source), module.context)
    meshes = {str(op.attributes["mesh"]): ir.StringAttr(op.attributes["sym_name"]).value
              for op in module.body.operations if op.operation.name == "sdy.mesh"}
    symbols = ir.SymbolTable(module.operation)
    operations = list(source.body.operations)
    known = []  # meshes that `module` has
    for op in operations:
        old = ir.StringAttr(op.attributes["sym_name"]).value
        same = meshes.get(str(op.attributes["mesh"])) if op.operation.name == "sdy.mesh" else None
        new = same or f"{name}_{old}"
        for user in operations:
            ir.SymbolTable.replace_all_symbol_uses(old, new, user.operation)
        op.attributes["sym_name"] = ir.StringAttr.get(new)
        if same:
            known.append(op)
    for op in operations:
        if op in known:
            continue
        if op.operation.name == "func.func":
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
            for attributes in ("arg_attrs", "res_attrs"):  # the shardings of arguments, which the body repeats
                if attributes in op.attributes:
                    del op.attributes[attributes]
        module.body.append(op)
        symbols.insert(op)
    return f"{name}_main"
