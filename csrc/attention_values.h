// Attention of a tile of rows to one segment of their context: the values, weighted and summed.
//
// An output is one sum over the tokens that its row sees, in order, in one lane: rows of a tile
// share what they load, and each adds its first and last tokens by itself. The values of tokens
// that it does not see are never multiplied, not even by 0: a free slot may hold NaN. (int8 can't:
// its pages are multiplied whole.)

#pragma once

#include "attention_scores.h"

namespace headway::HEADWAY_ISA {

// Adds to `out` [R][head_dim] the values of the groups of tokens [begin, end), in the 16 P
// dimensions from `d` on, weighted.
template <class Kind, int R, int P>
void add_values(const Segment& segment, const uint8_t* weights, Range groups, int d, float* out) {
    constexpr int per_panel = LANES / Kind::PER_GROUP;
    const int dim = segment.head_dim;
    F32 sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sum[r][p] = load(out + r * dim + d + p * LANES);
    for (int g = groups.begin; g < groups.end;) {
        const int panel = g / per_panel, stop = std::min(groups.end, (panel + 1) * per_panel);
        const uint8_t* values = segment.v[panel];
        const uint8_t* next_values = segment.v[std::min(panel + 1, SEGMENT_PANELS - 1)];
        const uint8_t* next_keys = segment.next->k[panel];
        for (int at = 4 * (g % per_panel * dim + d); g < stop; ++g, at += 4 * dim) {
            Bytes value[P];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                value[p] = load_bytes(values + at + p * GROUP_BYTES);
                fetch<R>(next_values + at + p * GROUP_BYTES, next_keys + at + p * GROUP_BYTES);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Bytes weight = broadcast4(weights + r * TileScores::stride() + 4 * g);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) sum[r][p] = Kind::dot(sum[r][p], weight, value[p]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) store(out + r * dim + d + p * LANES, sum[r][p]);
}

// Asks for the scales of a page of the segment that is next: they lie apart from keys and values.
inline void fetch_scales(const Segment& next, int page) {
    for (int panel = page * (PAGE / LANES); panel < (page + 1) * (PAGE / LANES); ++panel) {
        __builtin_prefetch(next.k_scales[panel], 0, 2);
        __builtin_prefetch(next.v_scales[panel], 0, 2);
    }
}

// The same for int8, in whole pages: integers within a page, floats across.
template <int R, int P>
void add_pages(const Segment& segment, const TileScores& scores, int row, Range pages, int d,
               float* out) {
    constexpr int per_panel = LANES / Int8::PER_GROUP, per_page = PAGE / Int8::PER_GROUP;
    const int dim = segment.head_dim;
    const uint8_t* weights = scores.weights(row);
    F32 total[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) total[r][p] = load(out + r * dim + d + p * LANES);
    for (int page = pages.begin; page < pages.end; ++page) {
        if (d == 0) fetch_scales(*segment.next, page);
        I32 sum[R][P] = {};
        for (int g = page * per_page; g < (page + 1) * per_page; ++g) {
            const int panel = g / per_panel, at = 4 * (g % per_panel * dim + d);
            const uint8_t* next_values = segment.v[std::min(panel + 2, SEGMENT_PANELS - 1)];
            Bytes value[P];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                value[p] = load_bytes(segment.v[panel] + at + p * GROUP_BYTES);
                fetch<R>(next_values + at + p * GROUP_BYTES,
                         segment.next->k[panel] + at + p * GROUP_BYTES);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Bytes weight = broadcast4(weights + r * TileScores::stride() + 4 * g);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) sum[r][p] = dot_u8s8(sum[r][p], weight, value[p]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const F32 scale = set(scores.page_scale[row + r][page]);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p)
                total[r][p] = fma(to_float(sum[r][p]), scale, total[r][p]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) store(out + r * dim + d + p * LANES, total[r][p]);
}

// One group of tokens, of which a row sees only some: the values of the others become 0.
template <class Kind>
void add_part(const Segment& segment, const uint8_t* weights, int group, Range seen, float* out) {
    constexpr int n = Kind::PER_GROUP, per_panel = LANES / n, bits = 32 / n;
    uint32_t mask = 0;
    for (int i = 0; i < n; ++i)
        if (seen.begin <= group * n + i && group * n + i < seen.end)
            mask |= 0xffffffffu >> (32 - bits) << bits * i;
    const int dim = segment.head_dim;
    const uint8_t* row = segment.v[group / per_panel] + group % per_panel * 4 * dim;
    const Bytes weight = broadcast4(weights + 4 * group);
    for (int d = 0; d < dim; d += LANES) {
        uint32_t values[LANES];
        std::memcpy(values, row + 4 * d, sizeof values);
        for (uint32_t& value : values) value &= mask;
        store(out + d, Kind::dot(load(out + d), weight, load_bytes(values)));
    }
}

template <class Kind, int R>
void add_units(const Segment& segment, const TileScores& scores, int row, Range units, float* out) {
    if (units.begin >= units.end) return;
    constexpr int P = is_int8<Kind> ? (panels_at_once(R) + 1) / 2 : panels_at_once(R);
    const auto add = [&](auto panels, int d) {
        if constexpr (is_int8<Kind>)
            add_pages<R, panels>(segment, scores, row, units, d, out);
        else
            add_values<Kind, R, panels>(segment, scores.weights(row), units, d, out);
    };
    int d = 0;
    for (; d + P * LANES <= segment.head_dim; d += P * LANES)
        add(std::integral_constant<int, P>{}, d);
    for (; d < segment.head_dim; d += LANES) add(std::integral_constant<int, 1>{}, d);
}

// What is multiplied at once: a page of int8, else a group of tokens.
template <class Kind>
constexpr int unit_of = is_int8<Kind> ? PAGE : Kind::PER_GROUP;

template <class Kind>
Range units_of(Range seen) {
    return {seen.begin / unit_of<Kind>, (seen.end + unit_of<Kind> - 1) / unit_of<Kind>};
}

// Those that are added as they are: not a group of which only a part is seen.
template <class Kind>
Range whole_units_of(Range seen) {
    if (is_int8<Kind>) return units_of<Kind>(seen);
    return {(seen.begin + unit_of<Kind> - 1) / unit_of<Kind>, seen.end / unit_of<Kind>};
}

// Units of one row, which sees its first and its last perhaps in part.
template <class Kind>
void add_ends(const Segment& segment, const TileScores& scores, int row, Range seen, Range units,
              float* out) {
    if (units.begin >= units.end) return;
    const Range whole = whole_units_of<Kind>(seen);
    if constexpr (!is_int8<Kind>)
        if (units.begin < whole.begin)
            add_part<Kind>(segment, scores.weights(row), units.begin, seen, out);
    add_units<Kind, 1>(
        segment, scores, row,
        {std::max(units.begin, whole.begin), std::min(units.end, whole.end)}, out);
    if constexpr (!is_int8<Kind>)
        if (units.end > whole.end)
            add_part<Kind>(segment, scores.weights(row), whole.end, seen, out);
}

// `out` [R][head_dim]: the sums of values, each row's from its own first token to its own last.
template <class Kind, int R>
void sum_values(const Segment& segment, const TileScores& scores, const Range* seen, float* out) {
    const int dim = segment.head_dim;
    std::fill(out, out + R * dim, 0.0f);
    Range common = whole_units_of<Kind>(seen[0]);
    for (int r = 1; r < R; ++r) {
        const Range whole = whole_units_of<Kind>(seen[r]);
        common = {std::max(common.begin, whole.begin), std::min(common.end, whole.end)};
    }
    common.end = std::max(common.begin, common.end);
    for (int r = 0; r < R; ++r) {
        const Range all = units_of<Kind>(seen[r]);
        add_ends<Kind>(segment, scores, r, seen[r], {all.begin, std::min(all.end, common.begin)},
                       out + r * dim);
    }
    add_units<Kind, R>(segment, scores, 0, common, out);
    for (int r = 0; r < R; ++r) {
        const Range all = units_of<Kind>(seen[r]);
        add_ends<Kind>(segment, scores, r, seen[r], {std::max(all.begin, common.end), all.end},
                       out + r * dim);
    }
}

}  // namespace headway::HEADWAY_ISA
