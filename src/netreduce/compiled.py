"""The compiled subset: one decorator, and the few leaf primitives that need two bodies.

Per-packet code is written once, as plain functions over NumPy record tables. `compiled` hands them to Numba;
with ``NUMBA_DISABLE_JIT=1`` the very same lines run as ordinary Python, and Numba need not be installed. Only what
touches raw memory or a library (`memory_at`, `fence`, `crc32`, the half-precision conversions) has a Python body and a
Numba overload side by side.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from isal import isal_zlib

CACHE_LINE_BYTES = 64

Function = TypeVar("Function", bound=Callable[..., Any])

JIT_DISABLED: bool = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
if not JIT_DISABLED:
    import llvmlite.binding
    import llvmlite.ir
    import numba
    from numba import types
    from numba.core import config
    from numba.extending import intrinsic, lower_builtin, overload, type_callable
    from numba.np.arrayobj import populate_array

    JIT_DISABLED = bool(config.DISABLE_JIT)  # Numba's own settings may say so as well


def _source_digest() -> str:
    """Digest of every source file that may be inlined into compiled code.

    Numba checks only the file of the outermost function, so an edit of an inner one would go unnoticed;
    with the digest in the directory's name, a changed source never meets an old binary.
    """
    numba_version = "none" if JIT_DISABLED else numba.__version__
    digest = hashlib.sha256(f"{numba_version} {np.__version__}".encode())
    package = Path(__file__).parent
    names = ("exchange", "nic_round", "packet_ring", "packet_sender", "short_call", "system_calls")
    for layer in ("compiled.py", "wire", "trace", "nic", "switch", "fabric", *(f"runtime/{name}.py" for name in names)):
        root = package / layer
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_directory() -> Path:
    base = os.environ.get("NETREDUCE_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(base).expanduser() / "netreduce"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise PermissionError(root)
    except OSError:
        root = Path(tempfile.gettempdir()) / f"netreduce-cache-{os.getuid()}"
    return root / _source_digest()


CACHE_DIRECTORY: Path = _cache_directory()


def compiled(function: Function) -> Function:
    """Compile `function` on first call (nopython, without the GIL) and keep the binary in `CACHE_DIRECTORY`.

    Without Numba's reference counting: it is three quarters of the time of a packet (each call counted each table up
    and down). So compiled code allocates nothing, and returns no array but one that was passed in; Numba refuses it.
    """
    if JIT_DISABLED:
        return function
    previous = config.CACHE_DIR
    config.CACHE_DIR = str(CACHE_DIRECTORY)
    try:
        dispatcher = numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True, _nrt=False)(function)
    finally:
        config.CACHE_DIR = previous
    specialise = dispatcher.get_call_template
    # Numba would compile a callee once more for every constant that a caller passes.
    dispatcher.get_call_template = lambda args, kws: specialise(
        [types.unliteral(kind) for kind in args], {name: types.unliteral(kind) for name, kind in kws.items()}
    )
    return dispatcher


def inlined(function: Function) -> Function:
    """Compile `function` into its caller: for a step with one caller that takes a whole NamedTuple of tables.

    Numba passes each array of such a tuple as seven words, so a call of an ordinary compiled function first stores a
    kilobyte on the stack: a packet that takes seven such steps spends a third of its time on it.
    """
    if JIT_DISABLED:
        return function
    return numba.njit(nogil=True, inline="always")(function)


def entry(function: Function, *examples: Any) -> Function:
    """`function` compiled (or loaded) for the types of `examples`, callable without Numba's dispatch.

    The dispatcher spends 13 us on a NamedTuple of ten tables, the entry point 0.5 us. Later calls must pass the very
    same types: what differs (a read-only array, another layout) is not noticed.
    """
    if JIT_DISABLED:
        return function
    signature = tuple(numba.typeof(example) for example in examples)
    function.compile(signature)
    return function.overloads[signature].entry_point


def memory_at(address: int, length: int) -> np.ndarray:
    """The `length` bytes of this process's memory at `address`, as a writable uint8 array without a copy.

    The caller has checked the range against a memory region; nothing here can.
    """
    if length == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * int(length)).from_address(int(address)), np.uint8)


def fence() -> None:
    """Keep what comes before, in memory, before what comes after: for memory that another process sees, too."""
    with _fence_lock:  # any lock's instructions are a full fence
        pass


_fence_lock = threading.Lock()


def crc32(data: np.ndarray, value: int) -> int:
    """CRC-32 as `zlib.crc32(data, value)`; `data` is a contiguous uint8 array."""
    return int(isal_zlib.crc32(data, int(value)))


def prefetch(data: np.ndarray, at: int, count: int) -> None:
    """Tell the caches that `count` bytes of the uint8 array `data`, from `at` on, are needed soon. Changes nothing."""


def copy_bytes(target: np.ndarray, target_at: int, source: np.ndarray, source_at: int, count: int) -> None:
    """Copy `count` bytes between uint8 arrays that do not overlap.

    Compiled, a loop becomes a vector copy (4 KiB in 60 ns); an assignment to a slice does not (1,700 ns).
    """
    target[target_at : target_at + count] = source[source_at : source_at + count]


if not JIT_DISABLED:  # the bodies that Numba takes instead of those above

    @type_callable(memory_at)
    def _type_memory_at(context: Any) -> Any:
        def typer(address: Any, length: Any) -> Any:
            return types.Array(types.uint8, 1, "C")

        return typer

    @lower_builtin(memory_at, types.Integer, types.Integer)
    def _lower_memory_at(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, length = (
            context.cast(builder, value, kind, types.intp)
            for value, kind in zip(arguments, signature.args, strict=True)
        )
        array = context.make_array(signature.return_type)(context, builder)
        one = context.get_constant(types.intp, 1)
        data = builder.inttoptr(address, array.data.type)
        populate_array(array, data=data, shape=[length], strides=[one], itemsize=one, meminfo=None)
        return array._getvalue()

    @type_callable(fence)
    def _type_fence(context: Any) -> Any:
        return lambda: types.none

    @lower_builtin(fence)
    def _lower_fence(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    # ISA-L's CRC-32 (the zlib polynomial) is exported by the extension module of the `isal` wheel: 30 ns a KiB,
    # against 670 ns for zlib's. A symbol added to LLVM by name stays cacheable; a ctypes pointer would not.
    _isal_library = ctypes.CDLL(isal_zlib.__file__)
    llvmlite.binding.add_symbol("netreduce_crc32", ctypes.cast(_isal_library.crc32_gzip_refl, ctypes.c_void_p).value)
    _isal_crc32 = types.ExternalFunction("netreduce_crc32", types.uint32(types.uint32, types.uint64, types.uint64))

    @overload(crc32)
    def _crc32_compiled(data: Any, value: Any) -> Any:
        def implementation(data: Any, value: Any) -> Any:
            return _isal_crc32(np.uint32(value), np.uint64(data.ctypes.data), np.uint64(data.size))

        return implementation

    @intrinsic
    def _prefetch_line(context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer, word = llvmlite.ir.IntType(8).as_pointer(), llvmlite.ir.IntType(32)
            kind = llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [pointer, word, word, word])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            builder.call(function, [builder.inttoptr(arguments[0], pointer), word(0), word(2), word(1)])
            return context.get_dummy_value()

        return types.none(types.uintp), codegen

    @overload(prefetch)
    def _prefetch_compiled(data: Any, at: Any, count: Any) -> Any:
        def implementation(data: Any, at: Any, count: Any) -> None:
            for i in range(at, at + count, CACHE_LINE_BYTES):
                _prefetch_line(np.uintp(data.ctypes.data + i))

        return implementation

    @overload(copy_bytes)
    def _copy_bytes_compiled(target: Any, target_at: Any, source: Any, source_at: Any, count: Any) -> Any:
        def implementation(target: Any, target_at: Any, source: Any, source_at: Any, count: Any) -> None:
            part_of_target = target[target_at : target_at + count]
            part_of_source = source[source_at : source_at + count]
            for i in range(count):  # an index that may be negative, as `target_at + i`, would not vectorise
                part_of_target[i] = part_of_source[i]

        return implementation
