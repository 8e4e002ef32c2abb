// Sixteen lanes, whatever the machine has for them.
//
// Everything above this file is written once, in terms of F32 (16 floats), I32 (16 integers) and
// Bytes (64 bytes: for each of 16 lanes four int8, two bfloat16 or one float32). It is compiled
// once per instruction set, each time into a namespace of its own, HEADWAY_ISA.
//
// Sums are made in one order: `reduce_add` folds lane i + 8 onto i, then i + 4, i + 2, i + 1, on
// every instruction set. `fma` rounds once where the machine can; where it cannot (portable), twice.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace headway::HEADWAY_ISA {

constexpr int LANES = 16;

#if defined(__AVX512F__)

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};
struct Bytes {
    __m512i v;
};

inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 set(float x) { return {_mm512_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
inline F32 round(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
inline F32 scale_by_power_of_two(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline float reduce_add(F32 a) { return _mm512_reduce_add_ps(a.v); }
inline float reduce_max(F32 a) { return _mm512_reduce_max_ps(a.v); }

inline I32 zero_i() { return {_mm512_setzero_si512()}; }
inline I32 set_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline int32_t reduce_add(I32 a) { return _mm512_reduce_add_epi32(a.v); }
inline F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I32 to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }

inline F32 load_bf16(const uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_bf16(uint16_t* p, F32 a) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
#else
    __m512i i = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(i, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(i, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    __m512i top = _mm512_srli_epi32(rounded, 16);
    // Rounding could carry a NaN's bits over into an infinity's.
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    top = _mm512_mask_set1_epi32(top, nan, 0x7fc0);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(top));
#endif
}
inline F32 load_s8(const int8_t* p) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline void store_s8(int8_t* p, I32 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
inline void store_u8(uint8_t* p, I32 a) {  // of 0 to 255
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

inline Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes broadcast4(const void* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return {_mm512_set1_epi32(word)};
}
inline F32 as_float(Bytes a) { return {_mm512_castsi512_ps(a.v)}; }
inline I32 dot_u8s8(I32 sum, Bytes u, Bytes s) {
    // As an intrinsic, GCC 12 spills the sums of a tile: it sees two types of one register.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(u.v), "v"(s.v));
    return sum;
}
inline F32 dot_bf16(F32 sum, Bytes a, Bytes b) {
#if defined(__AVX512BF16__)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));  // spills likewise
    return sum;
#else
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    __m512 a1 = _mm512_castsi512_ps(_mm512_and_epi32(a.v, high));
    __m512 b1 = _mm512_castsi512_ps(_mm512_and_epi32(b.v, high));
    __m512 a0 = _mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16));
    __m512 b0 = _mm512_castsi512_ps(_mm512_slli_epi32(b.v, 16));
    return {_mm512_fmadd_ps(a0, b0, _mm512_fmadd_ps(a1, b1, sum.v))};
#endif
}
// Lanes i and i ^ DISTANCE (1, 2, 4 or 8) change places.
template <int DISTANCE>
inline F32 swap_lanes(F32 a) {
    if constexpr (DISTANCE == 1) return {_mm512_permute_ps(a.v, 0xb1)};
    if constexpr (DISTANCE == 2) return {_mm512_permute_ps(a.v, 0x4e)};
    if constexpr (DISTANCE == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
    return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}

#elif defined(__AVX2__)

struct F32 {
    __m256 lo, hi;
};
struct I32 {
    __m256i lo, hi;
};
struct Bytes {
    __m256i lo, hi;
};

inline F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32 abs(F32 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32 round(F32 a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
inline __m256 scale_half(__m256 a, __m256 n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    exponent = _mm256_slli_epi32(_mm256_max_epi32(exponent, _mm256_setzero_si256()), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}
inline F32 scale_by_power_of_two(F32 a, F32 n) {  // n up to 127; 0 where it is below -126
    return {scale_half(a.lo, n.lo), scale_half(a.hi, n.hi)};
}
inline float reduce_add(F32 a) {
    __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_max(F32 a) {
    __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline I32 zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I32 set_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I32 sub(I32 a, I32 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline int32_t reduce_add(I32 a) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi32(a.lo, a.hi));
    int32_t sum = 0;
    for (int32_t lane : lanes) sum += lane;
    return sum;
}
inline F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I32 to_int(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

inline __m256 half_from_bf16(const uint16_t* p) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline F32 load_bf16(const uint16_t* p) { return {half_from_bf16(p), half_from_bf16(p + 8)}; }
inline void half_to_bf16(uint16_t* p, __m256 a) {
    __m256i i = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(i, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(i, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
    __m256i top = _mm256_srli_epi32(rounded, 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    top = _mm256_blendv_epi8(top, _mm256_set1_epi32(0x7fc0), nan);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void store_bf16(uint16_t* p, F32 a) {
    half_to_bf16(p, a.lo);
    half_to_bf16(p + 8, a.hi);
}
inline F32 load_s8(const int8_t* p) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline void store_s8(int8_t* p, I32 a) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void store_u8(uint8_t* p, I32 a) {  // of 0 to 255
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xd8);
    __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline Bytes load_bytes(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Bytes broadcast4(const void* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)};
}
inline F32 as_float(Bytes a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
// By way of 16 bits: the instruction for bytes (maddubs) saturates.
inline __m256i half_dot_u8s8(__m256i sum, __m256i u, __m256i s) {
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xff)),
                                     _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline I32 dot_u8s8(I32 sum, Bytes u, Bytes s) {
    return {half_dot_u8s8(sum.lo, u.lo, s.lo), half_dot_u8s8(sum.hi, u.hi, s.hi)};
}
inline __m256 half_dot_bf16(__m256 sum, __m256i a, __m256i b) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    __m256 a1 = _mm256_castsi256_ps(_mm256_and_si256(a, high));
    __m256 b1 = _mm256_castsi256_ps(_mm256_and_si256(b, high));
    __m256 a0 = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    __m256 b0 = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    return _mm256_fmadd_ps(a0, b0, _mm256_fmadd_ps(a1, b1, sum));
}
inline F32 dot_bf16(F32 sum, Bytes a, Bytes b) {
    return {half_dot_bf16(sum.lo, a.lo, b.lo), half_dot_bf16(sum.hi, a.hi, b.hi)};
}
template <int DISTANCE>
inline F32 swap_lanes(F32 a) {
    if constexpr (DISTANCE == 1)
        return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
    if constexpr (DISTANCE == 2)
        return {_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
    if constexpr (DISTANCE == 4)
        return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
    return {a.hi, a.lo};
}

#else  // portable: plain loops, which compilers turn into what the machine has

struct F32 {
    float v[LANES];
};
struct I32 {
    int32_t v[LANES];
};
struct Bytes {
    uint8_t v[4 * LANES];
};

#define HEADWAY_LANES(type, expression)                 \
    type out;                                           \
    for (int i = 0; i < LANES; ++i) out.v[i] = (expression); \
    return out

inline F32 zero() { return {}; }
inline F32 set(float x) { HEADWAY_LANES(F32, x); }
inline F32 load(const float* p) { HEADWAY_LANES(F32, p[i]); }
inline void store(float* p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F32 add(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] + b.v[i]); }
inline F32 sub(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] - b.v[i]); }
inline F32 mul(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] * b.v[i]); }
inline F32 div(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] / b.v[i]); }
inline F32 fma(F32 a, F32 b, F32 c) { HEADWAY_LANES(F32, a.v[i] * b.v[i] + c.v[i]); }
inline F32 max(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F32 min(F32 a, F32 b) { HEADWAY_LANES(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F32 abs(F32 a) { HEADWAY_LANES(F32, std::fabs(a.v[i])); }
inline F32 round(F32 a) { HEADWAY_LANES(F32, std::nearbyintf(a.v[i])); }
inline F32 scale_by_power_of_two(F32 a, F32 n) {
    HEADWAY_LANES(F32, std::ldexp(a.v[i], static_cast<int>(n.v[i])));
}
inline float reduce_add(F32 a) {
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
}
inline float reduce_max(F32 a) {
    float most = a.v[0];
    for (float lane : a.v) most = lane > most ? lane : most;
    return most;
}

inline I32 zero_i() { return {}; }
inline I32 set_i(int32_t x) { HEADWAY_LANES(I32, x); }
inline I32 add(I32 a, I32 b) { HEADWAY_LANES(I32, a.v[i] + b.v[i]); }
inline I32 sub(I32 a, I32 b) { HEADWAY_LANES(I32, a.v[i] - b.v[i]); }
inline int32_t reduce_add(I32 a) {
    int32_t sum = 0;
    for (int32_t lane : a.v) sum += lane;
    return sum;
}
inline F32 to_float(I32 a) { HEADWAY_LANES(F32, static_cast<float>(a.v[i])); }
// Out of range and NaN: what x86 gives, so that nothing is undefined.
inline int32_t to_int(float x) {
    return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(std::nearbyintf(x))
                                                    : INT32_MIN;
}
inline I32 to_int(F32 a) { HEADWAY_LANES(I32, to_int(a.v[i])); }

inline float widen(uint16_t bits) {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}
inline uint16_t narrow(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    return x != x ? 0x7fc0 : static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
inline F32 load_bf16(const uint16_t* p) { HEADWAY_LANES(F32, widen(p[i])); }
inline void store_bf16(uint16_t* p, F32 a) {
    for (int i = 0; i < LANES; ++i) p[i] = narrow(a.v[i]);
}
inline F32 load_s8(const int8_t* p) { HEADWAY_LANES(F32, static_cast<float>(p[i])); }
inline void store_s8(int8_t* p, I32 a) {
    for (int i = 0; i < LANES; ++i)
        p[i] = static_cast<int8_t>(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
inline void store_u8(uint8_t* p, I32 a) {  // of 0 to 255
    for (int i = 0; i < LANES; ++i) p[i] = static_cast<uint8_t>(a.v[i]);
}

inline Bytes load_bytes(const void* p) {
    Bytes out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
inline Bytes broadcast4(const void* p) {
    Bytes out;
    for (int i = 0; i < LANES; ++i) std::memcpy(out.v + 4 * i, p, 4);
    return out;
}
inline F32 as_float(Bytes a) {
    F32 out;
    std::memcpy(out.v, a.v, sizeof out.v);
    return out;
}
inline I32 dot_u8s8(I32 sum, Bytes u, Bytes s) {
    for (int i = 0; i < LANES; ++i)
        for (int j = 4 * i; j < 4 * i + 4; ++j)
            sum.v[i] += static_cast<int32_t>(u.v[j]) * static_cast<int8_t>(s.v[j]);
    return sum;
}
inline F32 dot_bf16(F32 sum, Bytes a, Bytes b) {
    for (int i = 0; i < LANES; ++i) {
        uint16_t x[2], y[2];
        std::memcpy(x, a.v + 4 * i, 4);
        std::memcpy(y, b.v + 4 * i, 4);
        sum.v[i] = widen(x[1]) * widen(y[1]) + sum.v[i];
        sum.v[i] = widen(x[0]) * widen(y[0]) + sum.v[i];
    }
    return sum;
}
template <int DISTANCE>
inline F32 swap_lanes(F32 a) {
    HEADWAY_LANES(F32, a.v[i ^ DISTANCE]);
}

#undef HEADWAY_LANES

#endif

// One lane of float32 each: a product's third kind beside dot_u8s8 and dot_bf16.
inline F32 dot_f32(F32 sum, Bytes a, Bytes b) { return fma(as_float(a), as_float(b), sum); }

// e^x within 2 ulp for x <= 88; 0 below -87. By e^x = 2^n 2^f with |f| <= 1/2.
inline F32 exp(F32 x) {
    x = max(x, set(-87.3f));
    F32 n = round(mul(x, set(1.44269504f)));
    F32 r = fma(n, set(-0.693145752f), x);  // ln 2 in two parts, so that the rest is exact
    r = fma(n, set(-1.42860677e-6f), r);
    F32 p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set(1.0f)));
    return scale_by_power_of_two(p, n);
}

// 2^x within 2 ulp for x <= 127; exactly 0 for x below -152, and -infinity; NaN for NaN.
inline F32 exp2(F32 x) {
    x = max(set(-152.0f), x);  // in this order, which keeps NaN
    const F32 n = round(x), f = sub(x, n);
    F32 p = set(1.32764713e-3f);
    p = fma(p, f, set(9.67554096e-3f));
    p = fma(p, f, set(5.55071309e-2f));
    p = fma(p, f, set(2.40221202e-1f));
    p = fma(p, f, set(6.93146944e-1f));
    p = fma(p, f, set(1.0f));
    return scale_by_power_of_two(p, n);
}

}  // namespace headway::HEADWAY_ISA
