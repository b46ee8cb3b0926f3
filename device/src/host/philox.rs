//! Philox4x32-10: random numbers as a function of a counter and a key.
