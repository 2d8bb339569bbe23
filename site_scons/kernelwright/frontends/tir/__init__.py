"""TVM's TIR: definitions return functions of TVM, which makes host and device code of them."""
