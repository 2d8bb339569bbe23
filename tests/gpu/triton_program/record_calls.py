"""Does all that the program does once, with tensors on the CPU: this is what is recorded, without a GPU.

kernelwright record --arch sm_90a --fresh --output tests/gpu/triton_program/calls.json \\
    tests/gpu/triton_program/record_calls.py
"""

import _kernels
import host
import torch

if __name__ == "__main__":
    host.run_all(_kernels, lambda array: torch.from_numpy(array.copy()))
