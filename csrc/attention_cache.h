// How keys and values lie in the cache.
//
// A record holds one block of one KV head of one layer, so that it is copied, swapped and zeroed as
// one stretch of memory. A group is what one instruction multiplies in a lane: 4 int8, 2 bfloat16
// or 1 float32 (gemm.h). Keys are summed over the dimensions of the head, values over tokens:
//
//   K  [block_size / 16][head_dim / group][16 tokens][group]    the panels of a product
//   V  [block_size / group][head_dim][group]
//   int8 only: one float32 scale per token, of K [block_size], then of V [block_size]
//
// int8: a value is its byte (K's with 128 added) times its token's scale.

#pragma once

#include "kernels.h"
#include "prepare.h"
#include "simd.h"

namespace headway::HEADWAY_ISA {

using KVType = Precision;

struct KVLayout {
    KVType type;
    int block_size;  // 16 or 32
    int head_dim;    // a multiple of 16, at most 256
    int num_kv_heads;

    int per_group() const { return type == KVType::f32 ? 1 : type == KVType::bf16 ? 2 : 4; }
    size_t row_bytes() const { return size_t{4} * head_dim; }  // of V: one group of tokens
    size_t panel_bytes() const { return LANES * row_bytes() / per_group(); }  // of K and of V
    size_t v_offset() const { return block_size / LANES * panel_bytes(); }
    size_t scales_offset() const { return 2 * v_offset(); }
};

// A multiple of 64.
inline size_t record_bytes(const KVLayout& layout) {
    const size_t scales = layout.type == KVType::s8 ? 2 * sizeof(float) * layout.block_size : 0;
    return layout.scales_offset() + scales;
}

// Scatters one token's cells into its slot, `offset`, of the record.
template <class Cell>
void scatter(const KVLayout& layout, uint8_t* record, int offset, const Cell* k, const Cell* v) {
    constexpr int per_group = 4 / sizeof(Cell);
    const int panel = offset / LANES, lane = offset % LANES, dim = layout.head_dim;
    Cell* k_panel = reinterpret_cast<Cell*>(record + panel * layout.panel_bytes());
    Cell* v_row = reinterpret_cast<Cell*>(record + layout.v_offset() +
                                          offset / per_group * layout.row_bytes());
    for (int d = 0; d < dim; d += per_group)
        std::memcpy(k_panel + (d / per_group * LANES + lane) * per_group, k + d, 4);
    for (int d = 0; d < dim; ++d) v_row[d * per_group + offset % per_group] = v[d];
}

// One token of one head into its slot. int8: quantised by its own largest value; a token with NaN
// or infinity in K or V gets the scale NaN for K, so that every row that sees it shows NaN.
inline void write_kv(const KVLayout& layout, uint8_t* record, int offset, const float* k,
                     const float* v) {
    const int dim = layout.head_dim;
    if (layout.type == KVType::f32) {
        scatter(layout, record, offset, k, v);
    } else if (layout.type == KVType::bf16) {
        alignas(64) uint16_t cells[2][256];
        for (int d = 0; d < dim; d += LANES) {
            store_bf16(cells[0] + d, load(k + d));
            store_bf16(cells[1] + d, load(v + d));
        }
        scatter(layout, record, offset, cells[0], cells[1]);
    } else {
        alignas(64) int8_t cells[2][256];
        const float k_scale = quantise(k, dim, cells[0]).scale;
        const float v_scale = quantise(v, dim, cells[1]).scale;
        for (int d = 0; d < dim; ++d) cells[0][d] ^= static_cast<int8_t>(OFFSET);
        scatter(layout, record, offset, cells[0], cells[1]);
        float* scales = reinterpret_cast<float*>(record + layout.scales_offset());
        scales[offset] = k_scale + 0.0f * v_scale;
        scales[layout.block_size + offset] = v_scale;
    }
}

}  // namespace headway::HEADWAY_ISA
