// Random transfers between ranks by the kernels of kernels/transfers/peers.cu. Prints the number of values that are wrong.
#include "peers.cu"
#include "on_ranks.h"

#include <cstdio>
#include <cstdlib>

static const u32 ROOM = 256;
static const int TRANSFERS = 60;

static void to_bytes(float value, bool half, u8* to) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (half) bits >>= 16;
    memcpy(to, &bits, half ? 2 : 4);
}

// A part of a tensor for each rank. In place, `output` is the rank's part of `input`.
enum Form { ALL_REDUCE, REDUCE_SCATTER, GATHER, GATHER_IN_PLACE, TWO_KERNELS, FORMS };

int main(int, char** arguments) {
    u32 ranks = atoi(arguments[1]);
    u64 window_bytes = MAX_BLOCKS * MAX_RANKS * FLAG_WORDS * 4 + (u64)SLOTS * MAX_BLOCKS * (ranks - 1) * ROOM;
    std::vector<std::vector<u8>> windows(ranks, std::vector<u8>(window_bytes));
    std::vector<std::vector<u32>> rounds(ranks, std::vector<u32>(MAX_BLOCKS));
    long wrong = 0, values = 0;
    for (int turn = 0; turn < TRANSFERS; turn++) {
        Form form = (Form)(turn % FORMS);
        bool half = rand() % 2;
        u32 size = half ? 2 : 4, blocks = 1 + rand() % 3, piece = 16 * (1 + rand() % (ROOM / 16));
        u64 bytes = 16 * (1 + rand() % 300), elements = bytes / size;
        bool parts = form == REDUCE_SCATTER || form == TWO_KERNELS, in_place = form == ALL_REDUCE || form == TWO_KERNELS;
        bool gathers = form == GATHER || form == GATHER_IN_PLACE;
        std::vector<std::vector<float>> given(ranks);
        std::vector<std::vector<u8>> input(ranks), output(ranks);
        for (u32 rank = 0; rank < ranks; rank++) {
            given[rank].resize(elements * (parts ? ranks : 1));
            input[rank].resize(given[rank].size() * size);
            output[rank].resize(gathers ? bytes * ranks : bytes);
            for (u64 i = 0; i < given[rank].size(); i++) {
                given[rank][i] = rand() % 16;
                to_bytes(given[rank][i], half, &input[rank][i * size]);
            }
            if (form == GATHER_IN_PLACE) memcpy(&output[rank][rank * bytes], input[rank].data(), bytes);
        }
        on_ranks(ranks, blocks, [&](u32 rank) {
            Transfer op = {};
            op.input = form == GATHER_IN_PLACE ? &output[rank][rank * bytes] : input[rank].data();
            op.output = in_place ? input[rank].data() : output[rank].data();
            if (form == TWO_KERNELS) op.output += rank * bytes;
            op.bytes = bytes, op.stride = parts ? bytes : 0, op.peers.rounds = rounds[rank].data();
            for (u32 of = 0; of < ranks; of++) op.peers.windows[of] = windows[of].data();
            op.peers.ranks = ranks, op.peers.rank = rank, op.peers.piece = piece, op.peers.room = ROOM;
            auto sums = half ? peer_sum_bf16 : peer_sum_f32;
            (gathers ? peer_gather : sums)(op);
            if (form == TWO_KERNELS) {
                __syncthreads();
                op.input = op.output, op.output = input[rank].data(), op.stride = 0;
                peer_gather(op);
            }
        });
        for (u32 rank = 0; rank < ranks; rank++) {
            const std::vector<u8>& got = in_place ? input[rank] : output[rank];
            for (u64 i = 0; i < got.size() / size; i++) {
                float sum = 0;
                u64 first = form == REDUCE_SCATTER ? rank * elements : 0;
                if (gathers) sum = given[i / elements][i % elements];
                else for (u32 of = 0; of < ranks; of++) sum += given[of][first + i];
                u8 expected[4];
                to_bytes(sum, half, expected);
                values++, wrong += memcmp(expected, &got[i * size], size) != 0;
            }
        }
    }
    printf("%ld of %ld wrong\n", wrong, values);
    return wrong != 0;
}
