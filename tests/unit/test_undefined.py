"""What a message says of symbols that nothing defines, and of who might have them."""

from __future__ import annotations

import pytest
from kernelwright.toolchain.undefined import LONGEST, MOST, nothing_has, who_has

OTHERWISE = "list the source"
TORCH = f'if PyTorch has {{}}, write frontend="torch", and Operators in place of Exported; {OTHERWISE}'


def test_symbols_are_told_as_cpp_writes_them_and_not_all_of_many() -> None:
    assert nothing_has(["_ZN4acme7rows_ofEPKNS_5ShapeEl"]) == "nothing has acme::rows_of(acme::Shape const*, long)"
    assert nothing_has(["plain", "_Z"]) == "nothing has plain, _Z"
    assert nothing_has(["f"] * (MOST + 2)) == "nothing has f, f, f, f, 2 more"
    assert nothing_has(["f" * 999]) == f"nothing has {'f' * LONGEST}..."


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        (["cublasCreate_v2"], 'write libraries=["cublas"]'),
        (
            ["cublasLtMatmul", "cublasCreate_v2", "cublasDestroy_v2"],
            'write libraries=["cublasLt", "cublas"]',
        ),
        (["cusparseLtInit", "_Z4mineb"], f'write libraries=["cusparseLt"]; {OTHERWISE}'),
        (["__nvJitLinkCreate_13_0", "cuFileRead"], 'write libraries=["nvJitLink", "cufile"]'),
        (["cusolverMgCreate", "cusolverDnCreate"], 'write libraries=["cusolverMg", "cusolver"]'),
        (["cublas_of_mine"], OTHERWISE),
        (["_Z4mineb"], OTHERWISE),
        (["_ZNK2at6Tensor3sumEv"], TORCH.format("at::Tensor::sum() const")),
        (["_ZTIN3c105ErrorE"], TORCH.format("typeinfo for c10::Error")),
        (["aoti_torch_aten_pad"], TORCH.format("aoti_torch_aten_pad")),
        (["_ZN6attach3runEv"], OTHERWISE),
    ],
)
def test_what_to_do_follows_from_who_has_them(symbols: list[str], said: str) -> None:
    assert who_has(symbols, OTHERWISE) == said


def test_the_caller_says_what_to_do_about_what_looks_like_pytorchs() -> None:
    assert who_has(["_ZN2at4mineEv"], OTHERWISE, in_torch="no {} in 2.13") == f"no at::mine() in 2.13; {OTHERWISE}"


def test_a_library_that_is_listed_is_not_to_be_listed_again() -> None:
    said = who_has(["cublasLtMatmul", "cublasNone"], OTHERWISE, ["libcublas.so.13"])
    assert said == (
        'add "cublasLt" to libraries; libcublas.so.13 does not have cublasNone: mend the name, or install a newer one'
    )
