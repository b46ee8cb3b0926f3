// Bytes to transposed order, in registers.
#pragma once
#include "common.cuh"

// Transposes 4 x 4 bytes: byte r of column c is byte c of row r.
inline void transpose(const u32 (&row)[4], u32 (&column)[4]) {
    u32 upper = __byte_perm(row[0], row[1], 0x5140), lower = __byte_perm(row[2], row[3], 0x5140);
    column[0] = __byte_perm(upper, lower, 0x5410), column[1] = __byte_perm(upper, lower, 0x7632);
    upper = __byte_perm(row[0], row[1], 0x7362), lower = __byte_perm(row[2], row[3], 0x7362);
    column[2] = __byte_perm(upper, lower, 0x5410), column[3] = __byte_perm(upper, lower, 0x7632);
}
