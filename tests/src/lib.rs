//! Black-box tests; everything is in `suite/`.
