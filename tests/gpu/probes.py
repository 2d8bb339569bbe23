"""Small kernels that the experiments on a GPU need, and that the library of this repository does not have."""

from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var

SHARED = 16384
"""Elements of float32 in shared memory: 64 KiB, and more than 48 KiB has to be asked for."""


@kernel(outputs=["y"])
def late(target):
    """y = x, where x is read only after a loop of ``rounds`` steps whose result is part of the address."""
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def cpu(x: T.Buffer((n,), "float32"), rounds: T.int32, y: T.Buffer((n,), "float32")):
        state = T.alloc_buffer((1,), "uint32")
        state[0] = T.uint32(1)
        for _ in T.serial(rounds):
            state[0] = state[0] * T.uint32(1664525) + T.uint32(1013904223)
        for i in T.serial(n):
            y[i] = x[T.if_then_else(state[0] == T.uint32(2), 0, i)]

    @T.prim_func(s_tir=True)
    def cuda(x: T.Buffer((n,), "float32"), rounds: T.int32, y: T.Buffer((n,), "float32")):
        for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
            for j in T.thread_binding(128, thread="threadIdx.x"):
                state = T.alloc_local((1,), "uint32")
                state[0] = T.uint32(1)
                for _ in T.serial(rounds):
                    state[0] = state[0] * T.uint32(1664525) + T.uint32(1013904223)
                if i * 128 + j < n:
                    y[i * 128 + j] = x[T.if_then_else(state[0] == T.uint32(2), 0, i * 128 + j)]

    return cuda if target.kind.name == "cuda" else cpu


@kernel(outputs=["y"])
def staged(target):
    """y = (x + 1) * 3 in two launches, with temporary memory between them."""
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def cpu(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            y[i] = (x[i] + T.float32(1)) * T.float32(3)

    @T.prim_func(s_tir=True)
    def cuda(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):
        middle = T.alloc_buffer((n,), "float32")
        for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
            for j in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("middle"):
                    k = T.axis.spatial(n, i * 128 + j)
                    T.where(i * 128 + j < n)
                    middle[k] = x[k] + T.float32(1)
        for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
            for j in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("y"):
                    k = T.axis.spatial(n, i * 128 + j)
                    T.where(i * 128 + j < n)
                    y[k] = middle[k] * T.float32(3)

    return cuda if target.kind.name == "cuda" else cpu


@kernel(outputs=["y"])
def wide(target):
    """Each row of x [rows, 16384] backwards, by way of shared memory that holds a whole row."""
    rows = Var("rows", "int32")

    @T.prim_func(s_tir=True)
    def cpu(x: T.Buffer((rows, SHARED), "float32"), y: T.Buffer((rows, SHARED), "float32")):
        for r, c in T.grid(rows, SHARED):
            y[r, c] = x[r, SHARED - 1 - c]

    @T.prim_func(s_tir=True)
    def cuda(x: T.Buffer((rows, SHARED), "float32"), y: T.Buffer((rows, SHARED), "float32")):
        row = T.launch_thread("blockIdx.x", rows)
        tx = T.launch_thread("threadIdx.x", 256)
        own = T.alloc_buffer((SHARED,), "float32", scope="shared.dyn")
        for step in T.serial(SHARED // 256):
            own[step * 256 + tx] = x[row, step * 256 + tx]
        T.tvm_storage_sync("shared.dyn")
        for step in T.serial(SHARED // 256):
            y[row, step * 256 + tx] = own[SHARED - 1 - (step * 256 + tx)]

    return cuda if target.kind.name == "cuda" else cpu


@kernel()
def double(target):
    """x *= 2, in place."""
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def cpu(x: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            x[i] = x[i] * T.float32(2)

    @T.prim_func(s_tir=True)
    def cuda(x: T.Buffer((n,), "float32")):
        for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
            for j in T.thread_binding(128, thread="threadIdx.x"):
                if i * 128 + j < n:
                    x[i * 128 + j] = x[i * 128 + j] * T.float32(2)

    return cuda if target.kind.name == "cuda" else cpu
