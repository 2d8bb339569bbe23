"""Puts the kernel of gate_kernels in the place of vLLM's operator SiluAndMul."""


def register() -> None:
    """What vLLM calls in each of its processes, before it makes a model; more than once in some."""
    from gate_kernels.backends.torch import silu_and_mul
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    from vllm.model_executor.layers.activation import SiluAndMul

    if "SiluAndMul" in op_registry_oot:
        return

    @CustomOp.register_oot(name="SiluAndMul")
    class PrebuiltSiluAndMul(SiluAndMul):
        def forward_cuda(self, x):
            *leading, columns = x.shape
            return silu_and_mul(x.reshape(-1, columns)).reshape(*leading, columns // 2)

        forward_cpu = forward_cuda
