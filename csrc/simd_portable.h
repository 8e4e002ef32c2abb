// Sixteen lanes as plain loops, which compilers turn into what the machine has.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace headway::HEADWAY_ISA {

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
// Out of range and NaN: what x86 gives, so that nothing is undefined.
inline int32_t to_int(float x) {
    return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(std::nearbyintf(x))
                                                    : INT32_MIN;
}
inline F32 scale_by_power_of_two(F32 a, F32 n) {
    HEADWAY_LANES(F32, std::ldexp(a.v[i], to_int(n.v[i])));
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

}  // namespace headway::HEADWAY_ISA
