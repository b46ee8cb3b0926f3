// Runs grouped.cu on a CPU, every thread a fiber, and checks its results. It stands in for hopper.cuh as far as that
// is known: descriptors and swizzle of wgmma, boxes and clipping of TMA with 64-bit addresses that wrap, barriers with
// their phases, clusters. Copies and products run as late as a wait allows, or in between at random, so that a missing
// wait shows. Fences, registers and time are not emulated.
//
//     g++ -O2 -std=c++17 -Wno-unknown-pragmas -o /tmp/emulate emulate.cpp && /tmp/emulate
//
// With -DRAGGED_LOADS=0 -DRAGGED_STORES=0 it runs the other way of segment ends.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define EMULATED
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
using std::min;

struct float2 {
    float x, y;
};
struct uint4 {
    u32 x, y, z, w;
};
struct bf16 {
    u16 bits;
};
struct True {
    static constexpr bool VALUE = true;
};
struct False {
    static constexpr bool VALUE = false;
};

[[noreturn]] void stop(const std::string& why) {
    printf("FAILED: %s\n", why.c_str());
    exit(1);
}

// ---- Numbers --------------------------------------------------------------------------------------------------------

u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
float float_of(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
u16 round_bf16(float x) {
    if (std::isnan(x)) return 0x7fff;
    u32 bits = bits_of(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
u32 pack_bf16x2(float low, float high) { return round_bf16(low) | (u32)round_bf16(high) << 16; }
float low_bf16(u32 packed) { return float_of(packed << 16); }
float high_bf16(u32 packed) { return float_of(packed & 0xffff0000u); }
template <class T> float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// ---- Threads and blocks ---------------------------------------------------------------------------------------------

struct Meeting {
    u32 arrived = 0, generation = 0;
};
struct Barrier {
    int count = 0, pending = 0;
    long bytes = 0;
    u32 phase = 0;
};
struct Product {
    float* d;
    u32 n;
    u64 a, b;
    u32 add;
    bool a_along_m, b_along_n;
};
constexpr u32 FIRST_ADDRESS = 1024, SHARED = 227 * 1024;
struct Block {
    std::vector<u8> memory = std::vector<u8>(SHARED + 1024);
    u8* base = nullptr;
    std::map<u32, Barrier> barriers;
    Meeting named[16], warps[12], groups[3];
    float exchange[384];
    u32 index, rank;
    struct Cluster* cluster;
    u8* at(u32 address) {
        if (address < FIRST_ADDRESS || address >= FIRST_ADDRESS + SHARED) stop("an address outside of shared memory");
        return base + address - FIRST_ADDRESS;
    }
};
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    Meeting meeting;
};
struct Index {
    u32 x;
};
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(256 * 1024);
    Block* block;
    Index thread;
    std::function<bool()> ready;
    bool done = false;
    std::vector<Product> open;
    std::list<std::vector<Product>> groups;
    std::vector<std::shared_ptr<bool>> open_stores;
    std::list<std::vector<std::shared_ptr<bool>>> stores;
};
Fiber* me;
ucontext_t scheduler;
Index grid;
std::mt19937 chance(1);
#define threadIdx (me->thread)
#define blockIdx (Index{me->block->index})
#define gridDim grid

void wait_until(std::function<bool()> ready) {
    me->ready = std::move(ready);
    swapcontext(&me->context, &scheduler);
}
void meet(Meeting& meeting, u32 threads) {
    u32 generation = meeting.generation;
    if (++meeting.arrived == threads) meeting.arrived = 0, meeting.generation++;
    else wait_until([&meeting, generation] { return meeting.generation != generation; });
}
void __syncthreads() { meet(me->block->named[0], 384); }
void meet_warps(u32 barrier, u32 warps) { meet(me->block->named[barrier], warps * 32); }
void __syncwarp() { meet(me->block->warps[me->thread.x / 32], 32); }
void cluster_meet() { meet(me->block->cluster->meeting, 384 * me->block->cluster->blocks.size()); }
u32 cluster_rank() { return me->block->rank; }
float __shfl_xor_sync(u32, float x, u32 distance) {
    Block& block = *me->block;
    block.exchange[me->thread.x] = x;
    __syncwarp();
    float y = block.exchange[me->thread.x ^ distance];
    __syncwarp();
    return y;
}
void begin_kernel() {}
u32 shared_address(const void* here) { return (const u8*)here - me->block->base + FIRST_ADDRESS; }
void fail() { stop("trap"); }
template <int COUNT> void keep_registers() {}
template <int COUNT> void take_registers() {}
void prefetch(const void* from, u32 bytes) {
    if ((u64)from % 16 || bytes % 16) stop("a prefetch of odd bytes");
}
void fence_async() {}
void store_shared(u32 address, u32 x) { memcpy(me->block->at(address), &x, 4); }
void store_shared_16(u32 address, uint4 x) { memcpy(me->block->at(address), &x, 16); }
void store_shared_8(u32 address, float2 x) { memcpy(me->block->at(address), &x, 8); }
float2 load_shared_8(u32 address) {
    float2 x;
    memcpy(&x, me->block->at(address), 8);
    return x;
}
uint4 load_shared_16(u32 address) {
    uint4 x;
    memcpy(&x, me->block->at(address), 16);
    return x;
}

// ---- Barriers -------------------------------------------------------------------------------------------------------

void check_phase(Barrier& barrier) {
    if (barrier.pending < 0) stop("too many arrivals");
    if (barrier.pending == 0 && barrier.bytes == 0) barrier.pending = barrier.count, barrier.phase++;
}
Barrier& barrier_at(Block* block, u32 address) {
    auto found = block->barriers.find(address);
    if (found == block->barriers.end()) stop("a barrier that was not started");
    return found->second;
}
void barrier_start(u32 address, u32 count) { me->block->barriers[address] = {(int)count, (int)count, 0, 0}; }
void barriers_started() {}
void barrier_expect(u32 address, u32 bytes) {
    Barrier& barrier = barrier_at(me->block, address);
    barrier.bytes += bytes, barrier.pending--;
    check_phase(barrier);
}
void barrier_arrive(u32 address, u32 block) {
    Barrier& barrier = barrier_at(me->block->cluster->blocks.at(block).get(), address);
    barrier.pending--;
    check_phase(barrier);
}
void barrier_arrive_here(u32 address) { barrier_arrive(address, me->block->rank); }
void barrier_wait(u32 address, u32 phase) {
    Barrier& barrier = barrier_at(me->block, address);
    wait_until([&barrier, phase] { return (barrier.phase & 1) != phase; });
}

// ---- TMA ------------------------------------------------------------------------------------------------------------

constexpr u32 BOX_BYTES = 8192, FAR = 1u << 30;
struct alignas(64) TensorMap {
    u64 words[16];
};
struct Map {
    u64 base, bytes;
    std::vector<u64> sizes, strides;
    // Halves of an element: 2 for f32.
    u32 halves = 1;
};
std::list<std::function<void()>> copies;

u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

// Calls with each pair of an address in the block's memory and one outside, or none if that is clipped.
template <class F> void for_box(const TensorMap* tensor, std::vector<u32> at, Block* block, u32 address, F f) {
    const Map& map = *(const Map*)tensor->words[0];
    if (map.sizes.size() != at.size()) stop("a map of other dimensions");
    if (address % 1024) stop("a box that is not aligned");
    for (u32 line = 0; line < 64; line++)
        for (u32 x = 0; x < 64; x++) {
            bool inside = true;
            u64 there = map.base;
            for (u32 i = 0; i < at.size(); i++) {
                int where = (int)at[i] * (i == 0 ? map.halves : 1) + (i == 0 ? x : i == 1 ? line : 0);
                inside &= where >= 0 && (u64)where < map.sizes[i] * (i == 0 ? map.halves : 1);
                there += (u64)(long long)where * (i == 0 ? 2 : map.strides[i - 1]);
            }
            if (inside && (there < map.base || there + 2 > map.base + map.bytes)) stop("TMA outside of its matrix");
            f((u16*)block->at(swizzled(address + line * 128 + x * 2)), inside ? (u16*)there : nullptr);
        }
}

void load(bool shared, u32 to, const TensorMap* map, std::vector<u32> at, u32 barrier) {
    Cluster& cluster = *me->block->cluster;
    for (auto& block : cluster.blocks)
        if (shared || block.get() == me->block)
            copies.push_back([=, block = block.get()] {
                for_box(map, at, block, to, [](u16* here, u16* there) { *here = there ? *there : 0; });
                Barrier& arrived = barrier_at(block, barrier);
                arrived.bytes -= BOX_BYTES;
                check_phase(arrived);
            });
}
template <bool SHARED_BOX> void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    load(SHARED_BOX, to, map, {x, y}, barrier);
}
template <bool SHARED_BOX> void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 z, u32 barrier) {
    load(SHARED_BOX, to, map, {x, y, z}, barrier);
}
template <bool SHARED_BOX>
void load_ragged_box(u32 to, const TensorMap* map, u32 x, u32 start, u32 rows, u32 row, u32 barrier) {
    load(SHARED_BOX, to, map, {x, FAR - rows + row, start + rows, FAR}, barrier);
}
void store(const TensorMap* map, std::vector<u32> at, u32 from) {
    auto done = std::make_shared<bool>(false);
    me->open_stores.push_back(done);
    copies.push_back([=, block = me->block] {
        for_box(map, at, block, from, [](u16* here, u16* there) {
            if (there) *there = *here;
        });
        *done = true;
    });
}
void store_box(const TensorMap* map, u32 x, u32 y, u32 from) { store(map, {x, y}, from); }
void store_box(const TensorMap* map, u32 x, u32 y, u32 z, u32 from) { store(map, {x, y, z}, from); }
void store_ragged_box(const TensorMap* map, u32 x, u32 start, u32 rows, u32 row, u32 from) {
    store(map, {x, FAR - rows + row, start + rows, FAR}, from);
}
void end_stores() { me->stores.push_back(std::move(me->open_stores)), me->open_stores.clear(); }
template <int LEFT> void wait_until_stores_have_read() {
    for (; me->stores.size() > LEFT; me->stores.pop_front())
        for (auto& done : me->stores.front()) wait_until([done] { return *done; });
}

// ---- Products -------------------------------------------------------------------------------------------------------

u64 descriptor(u32 address, u32 leading) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
float element(u64 descriptor, bool along_m, u32 m, u32 k) {
    u32 start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    u32 stride = (descriptor >> 32 & 0x3fff) << 4;
    u32 address = along_m ? start + m / 64 * leading + m % 64 * 2 + k % 8 * 128 + k / 8 * stride
                          : start + m / 8 * stride + m % 8 * 128 + k * 2;
    return float_of((u32) * (u16*)me->block->at(swizzled(address)) << 16);
}
void run_product(const Product& product) {
    u32 lane = me->thread.x % 32, warp = me->thread.x / 32 % 4;
    float a[2][16], b[16];
    for (u32 h = 0; h < 2; h++)
        for (u32 k = 0; k < 16; k++) a[h][k] = element(product.a, product.a_along_m, warp * 16 + lane / 4 + 8 * h, k);
    for (u32 j = 0; j < product.n / 8; j++)
        for (u32 e = 0; e < 2; e++) {
            for (u32 k = 0; k < 16; k++) b[k] = element(product.b, product.b_along_n, 8 * j + 2 * (lane % 4) + e, k);
            for (u32 h = 0; h < 2; h++) {
                float sum = 0;
                for (u32 k = 0; k < 16; k++) sum += a[h][k] * b[k];
                float& d = product.d[4 * j + 2 * h + e];
                d = product.add ? d + sum : sum;
            }
        }
}
void products_begin() {}
template <int A_ALONG_M, int B_ALONG_N, int N> void multiply(float (&d)[N], u64 a, u64 b, u32 add) {
    me->open.push_back({d, N * 2, a, b, add, A_ALONG_M, B_ALONG_N});
}
void products_commit() { me->groups.push_back(std::move(me->open)), me->open.clear(); }
// The products of a warpgroup are done at once: none of its threads goes on before.
template <int LEFT> void products_wait() {
    meet(me->block->groups[me->thread.x / 128], 128);
    for (; me->groups.size() > LEFT; me->groups.pop_front())
        for (const Product& product : me->groups.front()) run_product(product);
    meet(me->block->groups[me->thread.x / 128], 128);
}
template <int N> void settle(float (&)[N]) {}

// ---- Kernels --------------------------------------------------------------------------------------------------------

struct Arguments;
struct Kernel {
    std::string name;
    void (*run)(const Arguments&, u8*);
    int form, tile_n, pair;
};
std::vector<Kernel> kernels;
int add_kernel(const char* name, void (*run)(const Arguments&, u8*), int form, int tile_n, int pair) {
    kernels.push_back({name, run, form, tile_n, pair});
    return 0;
}
#define INSTANCE(name, form, tile_n, pair, ...)                   \
    void name(const Arguments& arguments, u8* dynamic) {          \
        product<form, tile_n, pair, ##__VA_ARGS__>(arguments, dynamic); \
    }                                                             \
    int name##_added = add_kernel(#name, name, form, tile_n, pair);
#include "grouped.cu"

const Kernel* running;
const Arguments* running_arguments;
void run_fiber() {
    running->run(*running_arguments, me->block->base);
    me->done = true;
    swapcontext(&me->context, &scheduler);
}

void launch(const Kernel& kernel, const Arguments& arguments, u32 blocks) {
    running = &kernel, running_arguments = &arguments, grid.x = blocks;
    u32 size = kernel.pair == ALONE ? 1 : 2;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (u32 i = 0; i < blocks; i++) {
        if (i % size == 0) clusters.push_back(std::make_unique<Cluster>());
        auto block = std::make_unique<Block>();
        block->index = i, block->rank = i % size, block->cluster = clusters.back().get();
        block->base = (u8*)(((u64)block->memory.data() + 1023) & ~1023ull);
        memset(block->base, 0xff, SHARED);
        for (u32 thread = 0; thread < 384; thread++) {
            fibers.push_back(std::make_unique<Fiber>());
            Fiber& fiber = *fibers.back();
            fiber.block = block.get(), fiber.thread = {thread};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, run_fiber, 0);
        }
        clusters.back()->blocks.push_back(std::move(block));
    }
    for (bool all_done = false; !all_done;) {
        bool progress = false;
        all_done = true;
        u32 first = chance() % fibers.size();
        for (u32 i = 0; i < fibers.size(); i++) {
            Fiber& fiber = *fibers[(first + i) % fibers.size()];
            if (fiber.done) continue;
            all_done = false;
            if (fiber.ready && !fiber.ready()) continue;
            fiber.ready = nullptr, progress = true, me = &fiber;
            swapcontext(&scheduler, &fiber.context);
        }
        for (auto copy = copies.begin(); copy != copies.end();) {
            if (progress && chance() % 4) copy++;
            else (*copy)(), copy = copies.erase(copy), progress = true;
        }
        if (!all_done && !progress) stop(kernel.name + " waits forever");
    }
    for (auto& copy : copies) copy();
    copies.clear();
    for (auto& cluster : clusters)
        for (auto& block : cluster->blocks)
            for (auto& [address, barrier] : block->barriers)
                if (barrier.bytes != 0) stop(kernel.name + " leaves loads under way");
}

// ---- Checks ---------------------------------------------------------------------------------------------------------

constexpr u16 POISON = 0x7fff;
struct Matrix {
    u32 rows, columns;
    std::vector<u16> x;
    Matrix(u32 rows, u32 columns) : rows(rows), columns(columns), x((u64)rows * columns, POISON) {}
    void fill(u32 until) {
        for (u64 i = 0; i < (u64)until * columns; i++) x[i] = round_bf16((int)(chance() % 2001 - 1000) / 1000.0f);
    }
    double at(u32 row, u32 column) const { return float_of((u32)x[(u64)row * columns + column] << 16); }
};
std::list<Map> maps;
TensorMap map_of(std::vector<u16>& x, std::vector<u64> sizes, std::vector<u64> strides) {
    maps.push_back({(u64)x.data(), x.size() * 2, sizes, strides});
    TensorMap map{};
    map.words[0] = (u64)&maps.back();
    return map;
}
TensorMap plain(Matrix& m) { return map_of(m.x, {m.columns, m.rows}, {m.columns * 2ull}); }
TensorMap ragged(Matrix& m) {
    u64 line = m.columns * 2;
    return map_of(m.x, {m.columns, 1ull << 30, 0x7fff0000, 0x7fff0000}, {line, line, (1ull << 35) - line});
}
TensorMap cube(Matrix& m, u32 experts) {
    u64 rows = m.rows / experts;
    return map_of(m.x, {m.columns, rows, experts}, {m.columns * 2ull, rows * m.columns * 2});
}

double worst;
void compare(const std::string& what, double found, double expected, double scale) {
    double error = fabs(found - expected) / (fabs(expected) + scale);
    if (!(error < 0.006)) stop(what + ": " + std::to_string(found) + " for " + std::to_string(expected));
    worst = std::max(worst, error);
}

// `n` and `k` as in grouped.cu. With SwiGLU F is n / 2 of up, or k of down.
void check(const Kernel& kernel, const std::vector<u32>& counts, u32 n, u32 k, u32 blocks) {
    u32 experts = counts.size(), spare = 70;
    std::vector<u32> offsets(1);
    for (u32 count : counts) offsets.push_back(offsets.back() + count);
    u32 used = offsets.back(), rows = used + spare;
    int form = kernel.form;
    bool weight = form == WEIGHT_WRITE || form == WEIGHT_ADD, forward = form == FORWARD || form == FORWARD_SWIGLU;
    Matrix x(rows, k), dy(rows, n), w(experts * n, k);
    x.fill(used), dy.fill(used), w.fill(experts * n);
    Arguments arguments{};
    arguments.offsets = offsets.data(), arguments.experts = experts;
    u32 f = form == FORWARD_SWIGLU ? n / 2 : k;
    Matrix out(rows, form == FORWARD ? n : form == INPUT ? k : 2 * f), h(rows, f), pre(rows, 2 * f);
    pre.fill(used);
    std::vector<float> p(rows, NAN), parts((u64)rows * ((f + 127) / 128), NAN), dw, before;
    for (u32 i = 0; i < used; i++) p[i] = (chance() % 1000) / 1000.0f;
    arguments.p = p.data(), arguments.parts = parts.data(), arguments.pre = (u8*)pre.x.data();
    if (weight) {
        dw.resize((u64)experts * n * k, NAN);
        if (form == WEIGHT_ADD)
            for (float& sum : dw) sum = chance() % 100;
        before = dw;
        arguments.a = RAGGED_LOADS ? ragged(dy) : plain(dy), arguments.b = RAGGED_LOADS ? ragged(x) : plain(x);
        arguments.to = (u8*)dw.data(), arguments.height = n, arguments.width = k;
        maps.push_back({(u64)dw.data(), dw.size() * 4, {k, n, experts}, {k * 4ull, (u64)n * k * 4}, 2});
        arguments.out.words[0] = (u64)&maps.back();
    } else {
        arguments.a = plain(forward ? x : dy), arguments.b = cube(w, experts);
        arguments.out = RAGGED_STORES ? ragged(out) : plain(out);
        arguments.second = RAGGED_STORES ? ragged(h) : plain(h);
        arguments.to = (u8*)out.x.data(), arguments.to_second = (u8*)h.x.data();
        arguments.width = form == FORWARD ? n : form == INPUT ? k : f, arguments.steps = (forward ? k : n) / 64;
    }
    launch(kernel, arguments, blocks);
    for (u32 e = 0; e < experts; e++) {
        u32 first = offsets[e], end = offsets[e + 1];
        if (weight)
            for (u32 i = 0; i < n; i++)
                for (u32 j = 0; j < k; j++) {
                    double sum = form == WEIGHT_ADD ? before[((u64)e * n + i) * k + j] : 0;
                    for (u32 r = first; r < end; r++) sum += dy.at(r, i) * x.at(r, j);
                    compare(kernel.name, dw[((u64)e * n + i) * k + j], sum, 1);
                }
        for (u32 r = first; !weight && r < end; r++) {
            std::vector<double> sums(forward ? n : k, 0), of_p((f + 127) / 128, 0);
            for (u32 i = 0; i < n; i++)
                for (u32 j = 0; j < k; j++)
                    if (forward) sums[i] += x.at(r, j) * w.at(e * n + i, j);
                    else sums[j] += dy.at(r, i) * w.at(e * n + i, j);
            if (form == FORWARD || form == INPUT)
                for (u32 i = 0; i < sums.size(); i++) compare(kernel.name, out.at(r, i), sums[i], 0.1);
            for (u32 i = 0; form == FORWARD_SWIGLU && i < f; i++) {
                compare(kernel.name + " gate", out.at(r, i), sums[i], 0.1);
                compare(kernel.name + " up", out.at(r, f + i), sums[f + i], 0.1);
                double g = out.at(r, i), u = out.at(r, f + i);
                compare(kernel.name + " h", h.at(r, i), g / (1 + exp(-g)) * u * p[r], 0.01);
            }
            for (u32 i = 0; form == INPUT_SWIGLU && i < f; i++) {
                double g = pre.at(r, i), u = pre.at(r, f + i), s = 1 / (1 + exp(-g)), silu = g * s;
                compare(kernel.name + " h", h.at(r, i), silu * u * p[r], 0.01);
                compare(kernel.name + " gate", out.at(r, i), sums[i] * p[r] * u * (s + silu * (1 - s)), 0.1);
                compare(kernel.name + " up", out.at(r, f + i), sums[i] * p[r] * silu, 0.1);
                of_p[i / 128] += sums[i] * silu * u;
            }
            for (u32 i = 0; form == INPUT_SWIGLU && i < of_p.size(); i++)
                compare(kernel.name + " parts", parts[(u64)r * of_p.size() + i], of_p[i], 1);
        }
    }
    for (u64 i = (u64)used * out.columns; !weight && i < out.x.size(); i++)
        if (out.x[i] != POISON) stop(kernel.name + " wrote behind the end");
    for (u64 i = (u64)used * f; i < h.x.size(); i++)
        if (h.x[i] != POISON) stop(kernel.name + " wrote behind the end of h");
    for (u64 i = (u64)used * ((f + 127) / 128); i < parts.size(); i++)
        if (!std::isnan(parts[i])) stop(kernel.name + " wrote behind the end of parts");
    maps.clear();
}

// Each row and column of each expert's tiles is met once, for many offsets and sizes.
template <class W> void check_walk(W walk, const u32* offsets, u32 experts, u32 unit, u32 clusters, u32 height) {
    std::map<std::vector<u32>, u32> met;
    u64 expected = 0;
    for (u32 e = 0; e < experts; e++)
        expected += (u64)((height ? height : offsets[e + 1] - offsets[e]) + unit - 1) / unit * walk.columns;
    for (u32 cluster = 0; cluster < clusters; cluster++) {
        W own = walk;
        Tile tile;
        for (u32 round = 0; own.find(tile_number(round, cluster, clusters), tile); round++) {
            if (++met[{tile.expert, tile.row, tile.column}] > 1) stop("a tile comes twice");
            u32 rows = offsets[tile.expert + 1] - offsets[tile.expert];
            if (tile.start != offsets[tile.expert] || tile.rows != rows) stop("a tile has other rows");
            if (tile.column >= walk.columns || tile.row * unit >= (height ? height : rows)) stop("a tile is outside");
        }
    }
    if (met.size() != expected) stop("tiles are left out");
}

void check_walks() {
    for (u32 i = 0; i < 300; i++) {
        u32 experts = 1 + chance() % 130, clusters = 1 + chance() % 140, columns = 1 + chance() % 20;
        u32 most = 1u << chance() % 13;
        std::vector<u32> offsets(1);
        for (u32 e = 0; e < experts; e++) offsets.push_back(offsets.back() + (chance() % 3 ? chance() % most : 0));
        std::vector<u16> order(experts, 0xffff);
        for (u32 e = 0; e < experts; e++) order[rank_of_expert(offsets.data(), experts, e)] = e;
        for (u32 e = 0; e < experts; e++)
            if (order[e] == 0xffff) stop("the order leaves a place empty");
        check_walk(RowWalk<128, 16>{offsets.data(), experts, columns, 0, 0}, offsets.data(), experts, 128, clusters, 0);
        check_walk(RowWalk<256, 8>{offsets.data(), experts, columns, 0, 0}, offsets.data(), experts, 256, clusters, 0);
        u32 rows = 1 + chance() % 30;
        check_walk(WeightWalk<8>{offsets.data(), order.data(), experts, rows, columns}, offsets.data(), experts, 256,
                   clusters, rows * 256);
    }
    printf("walks: every tile once\n");
}

int main(int count, char** arguments) {
    check_walks();
    std::string only = count > 1 ? arguments[1] : "";
    std::vector<std::vector<u32>> cases = {{128, 128}, {1, 0, 300, 64, 3, 0}, {0, 0, 77}, {200}, {65, 1, 1, 129}, {0}};
    for (const Kernel& kernel : kernels) {
        if (kernel.name.find(only) == std::string::npos) continue;
        worst = 0;
        for (u32 i = 0; i < cases.size(); i++) {
            // Sizes that are no multiples of a tile, and short sums.
            u32 n = i % 3 == 0 ? 384 : i % 3 == 1 ? 640 : 128, k = i % 3 == 0 ? 320 : i % 3 == 1 ? 192 : 64;
            check(kernel, cases[i], n, k, i % 2 ? 2 : 4);
        }
        printf("%s: largest relative error %.1e\n", kernel.name.c_str(), worst);
        fflush(stdout);
    }
}
