/* The device code of kernel gemm. Written by Kernelwright. */
.section .rodata.kernelwright, "a", @progbits
.balign 64
.globl kw_image_0_sm_80
.hidden kw_image_0_sm_80
kw_image_0_sm_80:
.incbin "gemm/dtype-float16/cuda/sm_80.bin"
.byte 0
.balign 64
.globl kw_image_0_sm_90a
.hidden kw_image_0_sm_90a
kw_image_0_sm_90a:
.incbin "gemm/dtype-float16/cuda/sm_90a.bin"
.byte 0
.balign 64
.globl kw_image_0_sm_100f
.hidden kw_image_0_sm_100f
kw_image_0_sm_100f:
.incbin "gemm/dtype-float16/cuda/sm_100f.bin"
.byte 0
.balign 64
.globl kw_image_0_compute_80
.hidden kw_image_0_compute_80
kw_image_0_compute_80:
.incbin "gemm/dtype-float16/cuda/compute_80.bin"
.byte 0
.balign 64
.globl kw_image_1_sm_80
.hidden kw_image_1_sm_80
kw_image_1_sm_80:
.incbin "gemm/dtype-bfloat16/cuda/sm_80.bin"
.byte 0
.balign 64
.globl kw_image_1_sm_90a
.hidden kw_image_1_sm_90a
kw_image_1_sm_90a:
.incbin "gemm/dtype-bfloat16/cuda/sm_90a.bin"
.byte 0
.balign 64
.globl kw_image_1_sm_100f
.hidden kw_image_1_sm_100f
kw_image_1_sm_100f:
.incbin "gemm/dtype-bfloat16/cuda/sm_100f.bin"
.byte 0
.balign 64
.globl kw_image_1_compute_80
.hidden kw_image_1_compute_80
kw_image_1_compute_80:
.incbin "gemm/dtype-bfloat16/cuda/compute_80.bin"
.byte 0
.section .note.GNU-stack, "", @progbits
