// Sixteen lanes, whatever the machine has for them.
//
// Everything above this file is written once, in terms of F32 (16 floats), I32 (16 integers) and
// Bytes (64 bytes: for each of 16 lanes four int8, two bfloat16 or one float32). It is compiled
// once per instruction set, each time into a namespace of its own, HEADWAY_ISA.
//
// Sums are made in one order: `reduce_add` folds lane i + 8 onto i, then i + 4, i + 2, i + 1, on
// every instruction set. `fma` rounds once where the machine can; where it cannot (portable), twice.

#pragma once

namespace headway::HEADWAY_ISA {

constexpr int LANES = 16;

}  // namespace headway::HEADWAY_ISA

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace headway::HEADWAY_ISA {

// One lane of float32 each: a product's third kind beside dot_u8s8 and dot_bf16.
inline F32 dot_f32(F32 sum, Bytes a, Bytes b) { return fma(as_float(a), as_float(b), sum); }

// e^x within 2 ulp for x <= 88; 0 below -87; NaN for NaN. By e^x = 2^n 2^f with |f| <= 1/2.
inline F32 exp(F32 x) {
    x = max(set(-87.3f), x);  // in this order, which keeps NaN
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
