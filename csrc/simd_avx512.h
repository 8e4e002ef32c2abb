// Sixteen lanes in one register: AVX-512, with VNNI, and with bfloat16 where the CPU has it.

#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace headway::HEADWAY_ISA {

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

}  // namespace headway::HEADWAY_ISA
