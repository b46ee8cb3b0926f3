// Random exchanges of rows between ranks by the kernels of kernels/transfers/peer_rows.cu. Prints the number of rows that are wrong.
#include "common.cuh"
#include "system.cuh"
#include "on_ranks.h"
#include "peer_rows.cu"

#include <cstdio>
#include <cstdlib>

static const int EXCHANGES = 40;

// A rank's pairs, sorted by the experts of all ranks.
struct Sorted {
    std::vector<int> offsets, pairs;
};

static Sorted sorted(const std::vector<int>& chosen, int experts) {
    Sorted of;
    for (int expert = 0; expert < experts; expert++) {
        of.offsets.push_back(of.pairs.size());
        for (size_t pair = 0; pair < chosen.size(); pair++) {
            if (chosen[pair] == expert) of.pairs.push_back(pair);
        }
    }
    of.offsets.push_back(of.pairs.size());
    return of;
}

int main(int, char** arguments) {
    u32 ranks = atoi(arguments[1]);
    u64 window_bytes = MAX_BLOCKS * MAX_RANKS * FLAG_WORDS * 4;
    std::vector<std::vector<u8>> windows(ranks, std::vector<u8>(window_bytes));
    std::vector<std::vector<u32>> rounds(ranks, std::vector<u32>(MAX_BLOCKS));
    long wrong = 0, rows = 0;
    for (int turn = 0; turn < EXCHANGES; turn++) {
        u32 experts = 1 + rand() % 4, all = experts * ranks, tokens = 1 + rand() % 9, k = 1 + rand() % 3;
        bool wide = rand() % 2;
        u32 words = 1 + rand() % (wide ? 24 : 90), size = wide ? 4 : 1, line = words * size;
        u32 lanes = 1 << rand() % 4, blocks = 1 + rand() % 3, count = tokens * k;
        std::vector<Sorted> of(ranks);
        std::vector<std::vector<int>> chosen(ranks);
        std::vector<int> offsets;
        for (u32 rank = 0; rank < ranks; rank++) {
            // Some pairs are dropped. One rank may have few experts that anyone chooses.
            for (u32 pair = 0; pair < count; pair++) chosen[rank].push_back(rand() % (turn % 3 ? all + 1 : 1 + all / 2));
            of[rank] = sorted(chosen[rank], all);
            offsets.insert(offsets.end(), of[rank].offsets.begin(), of[rank].offsets.end());
        }
        // The rows of a rank's experts, as rank and place among its pairs, and the first rows of experts by rank.
        std::vector<std::vector<std::pair<u32, u32>>> expected(ranks);
        std::vector<std::vector<int>> places(ranks);
        u32 most = 1;
        for (u32 rank = 0; rank < ranks; rank++) {
            for (u32 expert = rank * experts; expert < (rank + 1) * experts; expert++) {
                for (u32 from = 0; from < ranks; from++) {
                    places[rank].push_back(expected[rank].size());
                    for (int i = of[from].offsets[expert]; i < of[from].offsets[expert + 1]; i++) expected[rank].push_back({from, i});
                }
            }
            most = max(most, (u32)expected[rank].size());
        }
        u32 bound = turn % 4 ? most : 1 + rand() % most;
        auto value = [&](u32 rank, u32 token, u32 word) { return rank * 1000003 + token * 1009 + word; };
        std::vector<std::vector<u32>> input(ranks), here(ranks), back(ranks);
        for (u32 rank = 0; rank < ranks; rank++) {
            for (u32 i = 0; i < tokens * line; i++) input[rank].push_back(value(rank, i / line, i % line));
            here[rank].assign(bound * line, 7), back[rank].assign(count * line, 7);
        }
        // Each rank's output lies elsewhere in its second area.
        u64 areas[2 * MAX_RANKS] = {};
        auto offset = [](u32 rank) { return (u64)(rank + 1) * 64; };
        auto op = [&](u32 rank, const std::vector<u32>& from, std::vector<u32>& to) {
            Rows op = {};
            op.input = (const u8*)from.data(), op.output = (u8*)to.data();
            op.offsets = offsets.data(), op.places = places[rank].data(), op.pairs = of[rank].pairs.data();
            op.peers.rounds = rounds[rank].data();
            for (u32 other = 0; other < ranks; other++) op.peers.windows[other] = windows[other].data();
            op.peers.ranks = ranks, op.peers.rank = rank;
            op.areas = areas, op.at = ((u64)1 << OFFSET_BITS) + offset(rank);
            op.experts = experts, op.choices = k, op.words = words, op.lanes = lanes, op.bound = bound;
            return op;
        };
        auto to_experts = wide ? peer_rows_to_experts_by_16 : peer_rows_to_experts_by_4;
        auto to_tokens = wide ? peer_rows_to_tokens_by_16 : peer_rows_to_tokens_by_4;
        auto share = [&](std::vector<std::vector<u32>>& outputs) {
            for (u32 rank = 0; rank < ranks; rank++) areas[MAX_RANKS + rank] = (u64)outputs[rank].data() - offset(rank);
        };
        share(here);
        on_ranks(ranks, blocks, [&](u32 rank) { to_experts(op(rank, input[rank], here[rank])); });
        share(back);
        on_ranks(ranks, blocks, [&](u32 rank) { to_tokens(op(rank, here[rank], back[rank])); });
        for (u32 rank = 0; rank < ranks; rank++) {
            for (u32 row = 0; row < bound; row++) {
                bool is_row = row < expected[rank].size(), right = true;
                for (u32 word = 0; word < line; word++) {
                    u32 is = 7;
                    if (is_row) {
                        auto [from, at] = expected[rank][row];
                        is = value(from, of[from].pairs[at] / k, word);
                        // It came back to its rank, in the order of that rank's pairs.
                        right &= back[from][at * line + word] == is;
                    }
                    right &= here[rank][row * line + word] == is;
                }
                rows++, wrong += !right;
            }
            for (u32 row = of[rank].pairs.size(); row < count; row++) wrong += back[rank][row * line] != 7;
        }
    }
    printf("%ld of %ld wrong\n", wrong, rows);
    return wrong != 0;
}
