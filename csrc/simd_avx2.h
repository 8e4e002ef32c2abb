// Sixteen lanes in two registers: AVX2 with FMA.

#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace headway::HEADWAY_ISA {

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

}  // namespace headway::HEADWAY_ISA
