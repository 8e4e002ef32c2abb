// Products of activations with weights, in three precisions, bitwise the same whatever the batch.
//
// Each element of a product is one sum over k, in order, in one lane: neither the number of rows
// nor the tile nor the thread enters into it. Weights are packed in panels of 16 output channels,
// [panels][groups][16][4 bytes], where a group is 4 int8, 2 bfloat16 or 1 float32 along k; a row of
// activations is [groups][4 bytes]. One instruction multiplies a group of 16 channels with that of
// a row, so that one loop serves all three.

#pragma once

#include <algorithm>
#include <vector>

#include "memory.h"
#include "simd.h"
#include "team.h"

namespace headway::HEADWAY_ISA {

constexpr size_t GROUP_BYTES = 64;  // of 16 channels

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_PANELS = 4;  // 24 of 32 registers hold sums
#else
constexpr int TILE_ROWS = 2, TILE_PANELS = 2;
#endif

// int8 weights are held as value + 128, for the instruction takes one operand without a sign.
// What that adds to a sum is 128 times the sum of the row's activations.
constexpr int OFFSET = 128;

struct Int8 {
    static constexpr int PER_GROUP = 4;
    using Sum = I32;
    static Sum zero() { return zero_i(); }
    static Sum dot(Sum sum, Bytes weights, Bytes row) { return dot_u8s8(sum, weights, row); }
};

struct BFloat16 {
    static constexpr int PER_GROUP = 2;
    using Sum = F32;
    static Sum zero() { return HEADWAY_ISA::zero(); }
    static Sum dot(Sum sum, Bytes weights, Bytes row) { return dot_bf16(sum, weights, row); }
};

struct Float32 {
    static constexpr int PER_GROUP = 1;
    using Sum = F32;
    static Sum zero() { return HEADWAY_ISA::zero(); }
    static Sum dot(Sum sum, Bytes weights, Bytes row) { return dot_f32(sum, weights, row); }
};

// Weights, packed.
struct Matrix {
    int channels = 0;  // with padding: a multiple of 16
    int width = 0;     // k
    int groups = 0;    // along k, the last one padded with zeros
    Buffer<uint8_t> data;
    Buffer<float> scale;  // [channels]; int8: of its channel's values

    int panels() const { return channels / LANES; }
    size_t panel_bytes() const { return groups * GROUP_BYTES; }
    const uint8_t* panel(int index) const { return data.data() + index * panel_bytes(); }
};

// Rows of activations, as a product reads them.
struct Rows {
    uint8_t* data;
    size_t stride;      // bytes
    const float* scale; // int8: of each row's values
    const int32_t* sum; // int8: of each row's values
};

// `ahead`: what is fetched into the cache meanwhile, as much as one panel.
template <class Kind, int R, int P>
void multiply_tile(const uint8_t* rows, size_t stride, const uint8_t* panels, size_t panel_bytes,
                   int groups, const uint8_t* ahead, typename Kind::Sum* sums) {
    typename Kind::Sum sum[R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) sum[r][p] = Kind::zero();
    for (int g = 0; g < groups; ++g) {
        Bytes weights[P];
        __builtin_prefetch(ahead + g * GROUP_BYTES, 0, 2);
        for (int p = 0; p < P; ++p)
            weights[p] = load_bytes(panels + p * panel_bytes + g * GROUP_BYTES);
        for (int r = 0; r < R; ++r) {
            const Bytes row = broadcast4(rows + r * stride + 4 * g);
            for (int p = 0; p < P; ++p) sum[r][p] = Kind::dot(sum[r][p], weights[p], row);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) sums[r * P + p] = sum[r][p];
}

template <class Kind, int P, int R = TILE_ROWS>
void multiply_rows(int num_rows, const uint8_t* rows, size_t stride, const uint8_t* panels,
                   size_t panel_bytes, int groups, const uint8_t* ahead,
                   typename Kind::Sum* sums) {
    if constexpr (R > 1) {
        if (num_rows < R)
            return multiply_rows<Kind, P, R - 1>(num_rows, rows, stride, panels, panel_bytes,
                                                 groups, ahead, sums);
    }
    multiply_tile<Kind, R, P>(rows, stride, panels, panel_bytes, groups, ahead, sums);
}

inline F32 finish(const Matrix& matrix, const Rows& rows, int row, int panel, I32 sum) {
    const F32 exact = to_float(sub(sum, set_i(OFFSET * rows.sum[row])));
    return mul(mul(exact, set(rows.scale[row])), load(matrix.scale.data() + panel * LANES));
}
inline F32 finish(const Matrix&, const Rows&, int, int, F32 sum) { return sum; }

// Hands the product of rows [begin, end) with P panels on to `take(row, panel, values)`. Its first
// tiles fetch the panels from `next` on, one each: they are multiplied next.
template <class Kind, int P, class Take>
void multiply_block(const Matrix& matrix, const Rows& rows, int begin, int end, int panel,
                    int next, Take&& take) {
    typename Kind::Sum sums[TILE_ROWS * P];
    for (int row = begin; row < end; row += TILE_ROWS, ++next) {
        const int count = std::min(TILE_ROWS, end - row);
        const int ahead = std::min(next, matrix.panels() - 1);
        multiply_rows<Kind, P>(count, rows.data + row * rows.stride, rows.stride,
                               matrix.panel(panel), matrix.panel_bytes(), matrix.groups,
                               matrix.panel(ahead), sums);
        for (int r = 0; r < count; ++r) {
            F32 values[P];
            for (int p = 0; p < P; ++p)
                values[p] = finish(matrix, rows, row + r, panel + p, sums[r * P + p]);
            take(row + r, panel, values, P);
        }
    }
}

// `take(row, panel, values, count)` gets the product of a row with `count` panels from `panel` on;
// `count` is even where the number of panels is. Called by every thread of the team.
template <class Kind, class Take>
void multiply(Team& team, const Matrix& matrix, const Rows& rows, int num_rows, Take&& take) {
    constexpr int BLOCK_ROWS = 16 * TILE_ROWS;  // so that a task's rows stay in the cache
    // A few rows wait for memory: narrow tasks, so that no thread has one more than another.
    const int width = num_rows <= TILE_ROWS ? 2 : TILE_PANELS;
    const int columns = (matrix.panels() + width - 1) / width;
    int blocks = (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (columns * blocks < 12 * team.size()) blocks = std::min(2 * blocks, (num_rows + 11) / 12);
    const int block_rows = (num_rows + blocks * TILE_ROWS - 1) / (blocks * TILE_ROWS) * TILE_ROWS;
    team.each(columns * blocks, 1, [&](int task) {
        const int begin = std::min(task % blocks * block_rows, num_rows);
        const int end = std::min(begin + block_rows, num_rows);
        const int next = (task + team.size()) / blocks * width;
        int panel = task / blocks * width;
        const int last = std::min(panel + width, matrix.panels());
        for (; panel + TILE_PANELS <= last; panel += TILE_PANELS)
            multiply_block<Kind, TILE_PANELS>(matrix, rows, begin, end, panel, next, take);
        for (; panel + 2 <= last; panel += 2)
            multiply_block<Kind, 2>(matrix, rows, begin, end, panel, next, take);
        if (panel < last) multiply_block<Kind, 1>(matrix, rows, begin, end, panel, next, take);
    });
}

}  // namespace headway::HEADWAY_ISA
