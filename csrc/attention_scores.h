// Attention of a tile of rows to one segment of their context: scores, and the weights they become.
//
// Rows of a tile (pairs of position and head that read the same KV head) share what they load from
// the cache, and nothing else. A score is one sum over the head's dimensions in one lane, so the
// tile does not enter into it. A row sees the tokens [begin, end) of the segment. It works on whole
// pages, where scores outside that range become -inf and weights exactly 0; pages outside are left
// alone.

#pragma once

#include <limits>
#include <type_traits>

#include "attention_cache.h"

namespace headway::HEADWAY_ISA {

template <class Kind>
constexpr bool is_int8 = std::is_same_v<Kind, Int8>;

constexpr int SEGMENT = 256;  // positions, aligned: softmax is made whole in each, then merged
constexpr int PAGE = 2 * LANES;
constexpr int SEGMENT_PANELS = SEGMENT / LANES, SEGMENT_PAGES = SEGMENT / PAGE;

// Rows of a tile, and panels that they are multiplied with at once: 24 of 32 registers hold sums.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 12;
constexpr int panels_at_once(int rows) { return rows <= 6 ? 4 : 2; }
#else
constexpr int MOST_ROWS = 4;
constexpr int panels_at_once(int) { return 1; }
#endif

// Asks for what is read soon. A full tile computes longer than it reads: its next panel should be
// in the first cache in time. Fewer rows wait for memory: while they multiply keys, their values
// come into the second cache, and while they multiply values, the next segment's keys.
template <int R>
inline void fetch(const uint8_t* next_panel, const uint8_t* next_phase) {
    if constexpr (R == MOST_ROWS)
        __builtin_prefetch(next_panel, 0, 3);
    else
        __builtin_prefetch(next_phase, 0, 2);
}

// Where the panels of 16 tokens of a segment lie. Those that no row of the item sees repeat one
// that is there.
struct Segment {
    const uint8_t* k[SEGMENT_PANELS];
    const uint8_t* v[SEGMENT_PANELS];
    const float* k_scales[SEGMENT_PANELS];  // int8 only
    const float* v_scales[SEGMENT_PANELS];
    const Segment* next;  // what is likely to be read after it
    int head_dim;
};

// Rows as the first product reads them.
struct Queries {
    const uint8_t* groups;
    size_t stride;            // bytes
    const float* multiplier;  // of a row's sums, to be scores in powers of two
    const int32_t* sum;       // int8: of its integers

    Queries from(int row) const {
        return {groups + row * stride, stride, multiplier + row, sum + row};
    }
};

struct Range {
    int begin, end;
};

// The softmax of a row over one segment, before it is divided: weights are 2^(score - top).
struct Softmax {
    float top, sum;
};

// Scores, overwritten by weights in the type that they are multiplied in.
struct TileScores {
    alignas(64) float rows[MOST_ROWS][SEGMENT + LANES];  // + LANES: not all in the same cache sets
    alignas(64) float page_scale[MOST_ROWS][SEGMENT_PAGES];  // int8: of a page's weights
    alignas(64) float page_most[MOST_ROWS][SEGMENT_PAGES][LANES];  // int8: of each lane the largest

    const uint8_t* weights(int row) const { return reinterpret_cast<const uint8_t*>(rows[row]); }
    static constexpr size_t stride() { return sizeof(float) * (SEGMENT + LANES); }
};

inline I32 first_sum(I32, int32_t sum_of_query) { return set_i(-OFFSET * sum_of_query); }
inline F32 first_sum(F32, int32_t) { return zero(); }
inline F32 score(I32 sum, const float* scales) { return mul(to_float(sum), load(scales)); }
inline F32 score(F32 sum, const float*) { return sum; }

// Scores of R rows for the panels [panel, panel + P).
template <class Kind, int R, int P>
void score_panels(const Segment& segment, const Queries& queries, int panel, TileScores& scores) {
    using Sum = typename Kind::Sum;
    const uint8_t* const* keys = segment.k + panel;
    const uint8_t* const* next = panel + P < SEGMENT_PANELS ? keys + P : segment.v;
    Sum sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sum[r][p] = first_sum(Sum{}, queries.sum[r]);
    const int bytes = segment.head_dim / Kind::PER_GROUP * GROUP_BYTES;
    const uint8_t* query = queries.groups;
    for (int at = 0; at < bytes; at += GROUP_BYTES, query += 4) {
        Bytes key[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            key[p] = load_bytes(keys[p] + at);
            fetch<R>(next[p] + at, segment.v[panel + p] + at);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Bytes group = broadcast4(query + r * queries.stride);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) sum[r][p] = Kind::dot(sum[r][p], key[p], group);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
            store(scores.rows[r] + (panel + p) * LANES,
                  score(sum[r][p], segment.k_scales[panel + p]));
}

template <class Kind, int R>
void score_pages(const Segment& segment, const Queries& queries, Range pages, TileScores& scores) {
    constexpr int P = panels_at_once(R), per_page = PAGE / LANES;
    int panel = pages.begin * per_page;
    const int end = pages.end * per_page;
    for (; panel + P <= end; panel += P)
        score_panels<Kind, R, P>(segment, queries, panel, scores);
    if (panel < end) score_panels<Kind, R, per_page>(segment, queries, panel, scores);
}

// Scores become cap * tanh(score / cap), but for a factor, which is returned: `multiplier` for what
// comes after.
inline float cap_scores(float* scores, Range seen, float multiplier, float cap) {
    const F32 factor = set(2 * multiplier / cap);
    for (int i = seen.begin / LANES * LANES; i < seen.end; i += LANES) {
        // tanh x = 1 - 2 / (e^2x + 1)
        const F32 power = exp2(min(set(100.0f), mul(load(scores + i), factor)));
        store(scores + i, sub(set(1.0f), div(set(2.0f), add(power, set(1.0f)))));
    }
    return cap * 1.44269504f;  // log2 e
}

// One page's weights over their scores, as the values are multiplied by them.
inline void put_page(Float32, TileScores& scores, int row, int page, F32 a, F32 b,
                     const Segment&) {
    store(scores.rows[row] + page * PAGE, a);
    store(scores.rows[row] + page * PAGE + LANES, b);
}
inline void put_page(BFloat16, TileScores& scores, int row, int page, F32 a, F32 b,
                     const Segment&) {
    alignas(64) uint16_t weights[PAGE];
    store_bf16(weights, a);
    store_bf16(weights + LANES, b);
    std::memcpy(scores.rows[row] + page * LANES, weights, sizeof weights);
}
// int8: as float still, times the scales of the values, so that those can be summed as integers.
inline void put_page(Int8, TileScores& scores, int row, int page, F32 a, F32 b,
                     const Segment& segment) {
    // A slot that is not seen may have the scale NaN: max takes its second operand then.
    a = max(mul(a, load(segment.v_scales[2 * page])), zero());
    b = max(mul(b, load(segment.v_scales[2 * page + 1])), zero());
    put_page(Float32{}, scores, row, page, a, b, segment);
    store(scores.page_most[row][page], max(a, b));
}

// int8: weights become bytes, relative to the largest of their page.
inline void quantise_weights(TileScores& scores, int row, Range pages) {
    float* most = scores.page_scale[row];
    for (int page = pages.begin; page < pages.end; ++page)
        most[page] = reduce_max(load(scores.page_most[row][page]));
    const float* weights = scores.rows[row];
    uint8_t* out = reinterpret_cast<uint8_t*>(scores.rows[row]);
    for (int page = pages.begin; page < pages.end; ++page) {
        const F32 factor = set(most[page] > 0 ? 255.0f / most[page] : 0.0f);
        most[page] *= 1.0f / 255.0f;
        for (int i = page * PAGE; i < (page + 1) * PAGE; i += LANES)
            store_u8(out + i, to_int(mul(load(weights + i), factor)));
    }
}

inline Range pages_of(Range seen) { return {seen.begin / PAGE, (seen.end + PAGE - 1) / PAGE}; }

// The largest score of a row. Those that it does not see become -inf.
inline float top_score(float* scores, Range seen) {
    const Range pages = pages_of(seen);
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    std::fill(scores + pages.begin * PAGE, scores + seen.begin, nothing);
    std::fill(scores + seen.end, scores + pages.end * PAGE, nothing);
    F32 most_a = set(nothing), most_b = most_a;
    for (int i = pages.begin * PAGE; i < pages.end * PAGE; i += PAGE) {
        most_a = max(most_a, load(scores + i));
        most_b = max(most_b, load(scores + i + LANES));
    }
    return reduce_max(max(most_a, most_b));
}

// Scores of a row become weights, 2^(multiplier * score - top); returns their sum.
template <class Kind>
float weigh(const Segment& segment, TileScores& scores, int row, Range pages, float multiplier,
            float top) {
    const float* s = scores.rows[row];
    const F32 factor = set(multiplier), shift = set(-top);
    F32 sum_a = zero(), sum_b = zero();
    for (int page = pages.begin; page < pages.end; ++page) {
        const F32 a = exp2(fma(load(s + page * PAGE), factor, shift));
        const F32 b = exp2(fma(load(s + page * PAGE + LANES), factor, shift));
        sum_a = add(sum_a, a);
        sum_b = add(sum_b, b);
        put_page(Kind{}, scores, row, page, a, b, segment);
    }
    return reduce_add(add(sum_a, sum_b));
}

// Scores of R rows become weights. Row by row in each of its steps, which overlap then.
template <class Kind, int R>
void soften(const Segment& segment, TileScores& scores, const Range* seen,
            const float* multiplier, Softmax* softmax) {
    for (int r = 0; r < R; ++r) softmax[r].top = top_score(scores.rows[r], seen[r]) * multiplier[r];
    for (int r = 0; r < R; ++r)
        softmax[r].sum = weigh<Kind>(segment, scores, r, pages_of(seen[r]), multiplier[r],
                                     softmax[r].top);
    if constexpr (is_int8<Kind>)
        for (int r = 0; r < R; ++r) quantise_weights(scores, r, pages_of(seen[r]));
}

}  // namespace headway::HEADWAY_ISA
