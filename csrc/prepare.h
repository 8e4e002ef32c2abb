// Activations as a product reads them: normalised, then rounded, or rotated and quantised.

#pragma once

#include <algorithm>

#include "gemm.h"
#include "simd.h"

namespace headway::HEADWAY_ISA {

// The largest power of two that divides the width: the size of the blocks that are rotated.
inline int rotation_block(int width) { return width & -width; }

// Sign of lane i in its butterfly over a distance: + where the bit is not set.
inline F32 butterfly_signs(int distance) {
    alignas(64) float signs[LANES];
    for (int i = 0; i < LANES; ++i) signs[i] = i & distance ? -1.0f : 1.0f;
    return load(signs);
}

// Butterflies over the distances N / 2, ..., 2, 1 in units of whole vectors.
template <int N>
inline void transform(F32* v) {
    if constexpr (N > 1) {
        constexpr int half = N / 2;
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) {
            const F32 a = v[i], b = v[i + half];
            v[i] = add(a, b);
            v[i + half] = sub(a, b);
        }
        transform<half>(v);
        transform<half>(v + half);
    }
}

// The vectors x, x + stride, ... are transformed among each other.
template <int N>
inline void transform_at(float* x, int stride) {
    F32 v[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) v[i] = load(x + i * stride);
    transform<N>(v);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store(x + i * stride, v[i]);
}

// In place, x becomes H x in each of its blocks, where H is the Hadamard matrix in Sylvester's
// order, unscaled: H H = size * I. `size` is a power of two, at most `width`, and nothing is done
// where it is below 16. (Fast Walsh-Hadamard transform, up to three bits of the index at a time.)
inline void rotate(float* x, int width, int size) {
    if (size < LANES) return;
    const F32 s1 = butterfly_signs(1), s2 = butterfly_signs(2);
    const F32 s4 = butterfly_signs(4), s8 = butterfly_signs(8);
    for (int i = 0; i < width; i += LANES) {
        F32 a = load(x + i);
        a = fma(a, s1, swap_lanes<1>(a));  // a + b where the sign is +, b - a where it is -
        a = fma(a, s2, swap_lanes<2>(a));
        a = fma(a, s4, swap_lanes<4>(a));
        store(x + i, fma(a, s8, swap_lanes<8>(a)));
    }
    for (int half = LANES; half < size;) {
        const int radix = std::min(size / half, 8);
        for (int block = 0; block < width; block += radix * half)
            for (int i = block; i < block + half; i += LANES) {
                if (radix == 8)
                    transform_at<8>(x + i, half);
                else if (radix == 4)
                    transform_at<4>(x + i, half);
                else
                    transform_at<2>(x + i, half);
            }
        half *= radix;
    }
}

// What quantising needs to know of a row, and its values as integers in [-127, 127].
struct Quantised {
    float scale;  // value = integer * scale; NaN where the row holds NaN or infinity
    int32_t sum;  // of the integers
};

inline Quantised quantise(const float* x, int width, int8_t* out) {
    F32 most = zero(), poison = zero();
    for (int i = 0; i < width; i += LANES) {
        const F32 a = load(x + i);
        most = max(most, abs(a));
        poison = fma(a, zero(), poison);  // the maximum may drop a NaN
    }
    const float largest = reduce_max(most) + reduce_add(poison);
    const F32 factor = set(largest > 0 ? 127.0f / largest : 0.0f);
    I32 sum = zero_i();
    for (int i = 0; i < width; i += LANES) {
        const I32 rounded = to_int(mul(load(x + i), factor));
        sum = add(sum, rounded);
        store_s8(out + i, rounded);
    }
    return {largest / 127.0f, reduce_add(sum)};
}

// x / rms(x) * weight, all of `width`, a multiple of 16.
inline void rms_norm(const float* x, const float* weight, int width, float eps, float* out) {
    F32 squares = zero();
    for (int i = 0; i < width; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    const F32 factor = set(1.0f / std::sqrt(reduce_add(squares) / width + eps));
    for (int i = 0; i < width; i += LANES)
        store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
}

// Memory for the rows of one product's activations.
struct RowsBuffer {
    Buffer<uint8_t> data;
    Buffer<float> scale;
    Buffer<int32_t> sum;

    void reserve(int rows, size_t stride) {
        data.reserve(rows * stride);
        scale.reserve(rows);
        sum.reserve(rows);
    }
};

// Turns one row into what a product of `Kind` reads. `x` is overwritten where it is rotated.
template <class Kind>
inline void prepare_row(float* x, int width, RowsBuffer& rows, size_t stride, int row) {
    uint8_t* out = rows.data.data() + row * stride;
    if constexpr (std::is_same_v<Kind, Int8>) {
        const int block = rotation_block(width);
        rotate(x, width, block);
        const Quantised q = quantise(x, width, reinterpret_cast<int8_t*>(out));
        rows.scale[row] = block < LANES ? q.scale : q.scale / std::sqrt(float(block));
        rows.sum[row] = q.sum;
    } else if constexpr (std::is_same_v<Kind, BFloat16>) {
        for (int i = 0; i < width; i += LANES)
            store_bf16(reinterpret_cast<uint16_t*>(out) + i, load(x + i));
    } else {
        std::memcpy(out, x, width * sizeof(float));
    }
}

// ------------------------------------------------------------------ weights, at load

// Where the four bytes of a channel's group lie.
inline size_t group_at(const Matrix& matrix, int channel, int group) {
    return channel / LANES * matrix.panel_bytes() + group * GROUP_BYTES + channel % LANES * 4;
}

// Weights are rounded, or rotated and quantised, as activations are.
template <class Kind>
void pack_channel(Matrix& matrix, int channel, const float* weights) {
    const size_t stride = matrix.groups * size_t{4};
    Buffer<float> row(matrix.width);
    if (weights == nullptr)
        std::fill(row.data(), row.data() + matrix.width, 0.0f);
    else
        std::copy(weights, weights + matrix.width, row.data());
    RowsBuffer packed;
    packed.reserve(1, stride);
    prepare_row<Kind>(row.data(), matrix.width, packed, stride, 0);
    for (int group = 0; group < matrix.groups; ++group) {
        uint8_t* to = matrix.data.data() + group_at(matrix, channel, group);
        std::memcpy(to, packed.data.data() + 4 * group, 4);
        if constexpr (std::is_same_v<Kind, Int8>)
            for (int i = 0; i < 4; ++i) to[i] ^= OFFSET;  // of int8, what adding it does
    }
    if constexpr (std::is_same_v<Kind, Int8>) matrix.scale[channel] = packed.scale[0];
}

// Room for `count` channels; those that pad them are zeros.
template <class Kind>
Matrix room_for(int count, int width) {
    Matrix matrix;
    matrix.channels = (count + LANES - 1) / LANES * LANES;
    matrix.width = width;
    matrix.groups = width / Kind::PER_GROUP;
    matrix.data = Buffer<uint8_t>(matrix.panels() * matrix.panel_bytes());
    if constexpr (std::is_same_v<Kind, Int8>) matrix.scale = Buffer<float>(matrix.channels);
    for (int channel = count; channel < matrix.channels; ++channel)
        pack_channel<Kind>(matrix, channel, nullptr);
    return matrix;
}

// Packs channels, each a row of float32, from `first` on.
template <class Kind>
void pack_at(Matrix& matrix, int first, const std::vector<const float*>& channels) {
    const int count = static_cast<int>(channels.size());
#pragma omp parallel for schedule(static, 64)
    for (int i = 0; i < count; ++i) pack_channel<Kind>(matrix, first + i, channels[i]);
}

template <class Kind>
Matrix pack(const std::vector<const float*>& channels, int width) {
    Matrix matrix = room_for<Kind>(static_cast<int>(channels.size()), width);
    pack_at<Kind>(matrix, 0, channels);
    return matrix;
}

// A channel's weights as they were, but for rounding: how an embedding is looked up in the head
// that it is tied to.
template <class Kind>
void unpack_channel(const Matrix& matrix, int channel, float* out) {
    for (int group = 0; group < matrix.groups; ++group) {
        uint8_t bytes[4];
        std::memcpy(bytes, matrix.data.data() + group_at(matrix, channel, group), 4);
        for (int i = 0; i < Kind::PER_GROUP; ++i) {
            float& value = out[group * Kind::PER_GROUP + i];
            if constexpr (std::is_same_v<Kind, Int8>) {
                value = static_cast<float>(bytes[i] - OFFSET) * matrix.scale[channel];
            } else {
                const uint32_t word = static_cast<uint32_t>(bytes[2 * i + 1]) << 24 |
                                      static_cast<uint32_t>(bytes[2 * i]) << 16;
                std::memcpy(&value, std::is_same_v<Kind, Float32> ? bytes : (const void*)&word, 4);
            }
        }
    }
    if constexpr (std::is_same_v<Kind, Int8>) {
        const int block = rotation_block(matrix.width);
        if (block < LANES) return;
        rotate(out, matrix.width, block);
        const float factor = 1.0f / std::sqrt(static_cast<float>(block));
        for (int i = 0; i < matrix.width; ++i) out[i] *= factor;
    }
}

}  // namespace headway::HEADWAY_ISA
