// Which tiles a cluster of blocks computes, from the experts' offsets alone. A cluster walks over tile numbers by the
// number of clusters. Its blocks get the same tile, so they walk the same steps.
#pragma once

struct Tile {
    // The expert's rows.
    u32 expert, start, rows;
    // Of a cluster's tiles, not of elements.
    u32 row, column;
};

// The tile number of a cluster's turn. Every other round goes backwards: where tiles shrink from round to round, the
// cluster that had the longest then has the shortest.
inline u32 tile_number(u32 round, u32 cluster, u32 clusters) {
    return round * clusters + (round % 2 ? clusters - 1 - cluster : cluster);
}

// Place i of rows x columns. So many rows are walked together, column by column: what they read stays in the L2 cache.
inline void place_in_grid(u32 i, u32 rows, u32 columns, u32 together, Tile& tile) {
    u32 first = i / (together * columns) * together, within = i - first * columns;
    u32 rows_here = rows - first < together ? rows - first : together;
    tile.row = first + within % rows_here, tile.column = within / rows_here;
}

// Over tiles of UNIT of the experts' rows.
template <u32 UNIT, u32 TOGETHER> struct RowWalk {
    const u32* offsets;
    u32 experts, columns;
    // The expert that is looked at, and the number of its first tile.
    u32 expert, first;

    // False after the last tile. Numbers come in ascending order.
    bool find(u32 number, Tile& tile) {
        for (; expert < experts; expert++) {
            u32 start = offsets[expert], rows = offsets[expert + 1] - start, units = (rows + UNIT - 1) / UNIT;
            if (number - first < units * columns) {
                tile.expert = expert, tile.start = start, tile.rows = rows;
                place_in_grid(number - first, units, columns, TOGETHER, tile);
                return true;
            }
            first += units * columns;
        }
        return false;
    }
};

// Over tiles of the experts' gradients, rows x columns of them for each expert. Experts with many rows come first.
template <u32 TOGETHER> struct WeightWalk {
    const u32* offsets;
    const u16* order;
    u32 experts, rows, columns;

    bool find(u32 number, Tile& tile) {
        u32 rank = number / (rows * columns);
        if (rank >= experts) return false;
        tile.expert = order[rank];
        tile.start = offsets[tile.expert], tile.rows = offsets[tile.expert + 1] - tile.start;
        place_in_grid(number - rank * rows * columns, rows, columns, TOGETHER, tile);
        return true;
    }
};

// How many experts come before this one: those with more rows, and those with as many and a lower number.
inline u32 rank_of_expert(const u32* offsets, u32 experts, u32 expert) {
    u32 rows = offsets[expert + 1] - offsets[expert], rank = 0;
    for (u32 i = 0; i < experts; i++) {
        u32 others = offsets[i + 1] - offsets[i];
        rank += others > rows || (others == rows && i < expert);
    }
    return rank;
}
