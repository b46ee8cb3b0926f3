// A tile of bytes that leaves transposed, through shared memory.
#pragma once
#include "quantize.cuh"
#include "transpose.cuh"

const int TILE_ROWS = 128, TILE_COLUMNS = 64;
const int GROUPS = TILE_COLUMNS / 8; // of 8 columns
const int QUADS = TILE_ROWS / 4;     // of 4 rows

// Words of a tile, (column, quad of rows). Word `quad` lies at `quad ^ place(column)`, so that neither the writes, a
// quad of 8 groups, nor the reads, 16 bytes along a column, meet in a bank.
struct Words {
    u32 word[TILE_COLUMNS][QUADS];
};
inline int place(int column) { return column / 8 % GROUPS * 4; }

// Puts a quad's 4 rows of 8 columns: bytes of columns 0 to 3 of each row, and of columns 4 to 7.
inline void put_words(Words& tile, const u32 (&bytes)[2][4], u32 group, u32 quad) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 words[4];
        transpose(bytes[half], words);
        u32 c = group * 8 + half * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) tile.word[c + i][quad ^ place(c)] = words[i];
    }
}

// Sixteen rows of a column of the transposed copy, from `row` on.
inline void store_column(const Quantize& q, u64 column, u32 row, const u32* words) {
    u8* to = q.columns_out + column * q.rows + row;
    if (q.wide_columns) {
        if (row < q.rows) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(words);
        return;
    }
#pragma unroll 1
    for (u32 i = 0; i < 16 && row + i < q.rows; i++) to[i] = reinterpret_cast<const u8*>(words)[i];
}

// Stores tiles side by side, `q.width` columns from each other; 256 threads.
template <int TILES> void store_tiles(const Quantize& q, const Words (&tiles)[TILES], u32 first_column, u32 first_row) {
    constexpr int PIECES = TILE_ROWS / 16;
#pragma unroll
    for (int i = 0; i < TILES * TILE_COLUMNS * PIECES / 256; i++) {
        u32 at = i * 256 + threadIdx.x, piece = at % PIECES, c = at / PIECES % TILE_COLUMNS;
        u32 tile = at / (PIECES * TILE_COLUMNS);
        if (first_column + c < q.width) {
            const u32* words = &tiles[tile].word[c][piece * 4 ^ place(c)];
            store_column(q, (u64)tile * q.width + first_column + c, first_row + piece * 16, words);
        }
    }
}
