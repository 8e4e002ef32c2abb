// Paged attention over a mixed batch: chunks of prompts and single tokens alike.
//
// A row is a position and a head. Its softmax is made whole over each segment of 256 positions that
// it sees, and the segments are merged in order, by one function, whoever computed them: so a row's
// result is bitwise the same in any batch, chunk, placement of blocks and number of threads. (Two
// passes over a segment, as in FlashAttention's tiles: arXiv 2205.14135; the merge is the same.)

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "attention_values.h"
#include "kernels.h"
#include "memory.h"

namespace headway::HEADWAY_ISA {

// One layer. K and V of all rows are in the cache already.
struct Attention {
    const float* q;  // q + row * q_stride + head * head_dim
    size_t q_stride;
    float* out;
    size_t out_stride;
    const uint8_t* kv;  // record of a block and KV head: block * num_kv_heads + head
    const int32_t* tables;
    const Span* spans;
    int num_spans;
    int num_heads;
    KVLayout layout;
    float scale;
    int window;     // 0: none; else a row sees itself and the window - 1 positions before it
    float softcap;  // 0: none; else scores become cap * tanh(score / cap)
};

// Rows (pairs of position and head, position by position) of a span that read one KV head, and the
// segments to do: all that they see, or, where one item would keep the others waiting, some.
struct Item {
    int span, kv_head;
    int first_row, num_rows;
    Range segments;
    Range all_segments;
    int parts;            // items that share these rows
    int counter;          // of the parts not done
    size_t first_partial; // [all_segments][num_rows][head_dim + 2]
};

// What there is to do in every layer with the same window, biggest first.
struct Items {
    std::vector<Item> items;
    int num_threads;
    std::unique_ptr<std::atomic<int>[]> undone;  // of shared rows; back at `parts` after a layer
    std::unique_ptr<float[]> partials;

    int count() const { return static_cast<int>(items.size()); }
};

constexpr int ITEM_ROWS = 4 * 12;
constexpr int MOST_DIMENSIONS = 256;

// A thread's own.
struct Scratch {
    TileScores scores;
    alignas(64) uint8_t queries[ITEM_ROWS * MOST_DIMENSIONS * 4];
    alignas(64) float out[MOST_ROWS * MOST_DIMENSIONS];
    alignas(64) float totals[ITEM_ROWS * MOST_DIMENSIONS];
    Softmax softmax[ITEM_ROWS];
    float multiplier[ITEM_ROWS];
    int32_t sum[ITEM_ROWS];
};

inline Range seen_by(int position, int window) {
    return {window > 0 ? std::max(0, position - window + 1) : 0, position + 1};
}

inline Range segments_of(Range seen) {
    return {seen.begin / SEGMENT, (seen.end + SEGMENT - 1) / SEGMENT};
}

// ------------------------------------------------------------------ planning

// Cuts a span's rows for one KV head into items, all segments in each.
inline void add_items(std::vector<Item>& items, const Span& span, int index, int kv_head,
                      int heads_each, int window) {
    const int num_rows = span.num_rows * heads_each;
    for (int first = 0; first < num_rows; first += ITEM_ROWS) {
        const int count = std::min(ITEM_ROWS, num_rows - first);
        const int begin = seen_by(span.start + first / heads_each, window).begin;
        const int end = span.start + (first + count - 1) / heads_each + 1;
        const Range segments = segments_of({begin, end});
        items.push_back({index, kv_head, first, count, segments, segments, 1, -1, 0});
    }
}

// In rows and segments. A few rows cost as much as some more: they wait for memory.
inline int cost_of(const Item& item) {
    return (item.segments.end - item.segments.begin) * std::max(item.num_rows, 8);
}

// Splits items that are more than a fair part of the work, for `num_threads` to end together.
inline void split_items(Items& plan, int head_dim) {
    long total = 0;
    for (const Item& item : plan.items) total += cost_of(item);
    const long most = total / (8 * plan.num_threads) + 1;
    std::vector<Item> whole;
    whole.swap(plan.items);
    size_t partials = 0;
    int counters = 0;
    for (Item item : whole) {
        const Range all = item.all_segments;
        const int length = all.end - all.begin;
        const long wanted = (cost_of(item) + most - 1) / most;
        const int parts = static_cast<int>(std::min<long>(length, wanted));
        if (plan.num_threads > 1 && parts > 1) {
            item.parts = parts;
            item.counter = counters++;
            item.first_partial = partials;
            partials += size_t{1} * length * item.num_rows * (head_dim + 2);
        }
        for (int part = 0; part < item.parts; ++part) {
            item.segments = {all.begin + length * part / item.parts,
                             all.begin + length * (part + 1) / item.parts};
            plan.items.push_back(item);
        }
    }
    plan.partials.reset(new float[partials]);
    plan.undone.reset(new std::atomic<int>[counters]);
    for (const Item& item : plan.items)
        if (item.parts > 1) plan.undone[item.counter] = item.parts;
}

inline Items plan_items(const Span* spans, int num_spans, int num_heads, int num_kv_heads,
                        int head_dim, int window, int num_threads) {
    Items plan;
    plan.num_threads = num_threads;
    for (int i = 0; i < num_spans; ++i)
        for (int head = 0; head < num_kv_heads; ++head)
            add_items(plan.items, spans[i], i, head, num_heads / num_kv_heads, window);
    split_items(plan, head_dim);
    std::stable_sort(plan.items.begin(), plan.items.end(), [](const Item& a, const Item& b) {
        return cost_of(a) > cost_of(b);
    });
    return plan;
}

// ------------------------------------------------------------------ computing

// An item of one layer, with what it is about at hand.
struct Task {
    const Attention& attention;
    const Item& item;
    const Span& span;
    int heads_each;

    int dim() const { return attention.layout.head_dim; }
    int position(int row) const { return span.start + (item.first_row + row) / heads_each; }
    int head(int row) const {
        return item.kv_head * heads_each + (item.first_row + row) % heads_each;
    }
    int batch_row(int row) const { return span.first_row + (item.first_row + row) / heads_each; }
    Range seen(int row) const { return seen_by(position(row), attention.window); }
    Range seen(int row, int segment) const {  // counted from the segment's first position
        const Range all = seen(row);
        const int start = segment * SEGMENT;
        return {std::max(all.begin - start, 0), std::min(all.end - start, SEGMENT)};
    }
    Range segments(int row) const { return segments_of(seen(row)); }
};

template <class Kind>
Queries prepare_queries(const Task& task, Scratch& scratch) {
    const Attention& attention = task.attention;
    const int dim = task.dim();
    const size_t stride = size_t{4} * dim / Kind::PER_GROUP;
    constexpr float log2_e = 1.44269504f;
    for (int row = 0; row < task.item.num_rows; ++row) {
        const float* q = attention.q + task.batch_row(row) * attention.q_stride +
                         size_t{1} * task.head(row) * dim;
        uint8_t* out = scratch.queries + row * stride;
        scratch.multiplier[row] = attention.scale * log2_e;
        scratch.sum[row] = 0;
        if constexpr (is_int8<Kind>) {
            const Quantised quantised = quantise(q, dim, reinterpret_cast<int8_t*>(out));
            // Not 0: that times -inf would be NaN.
            scratch.multiplier[row] *= quantised.scale;
            if (scratch.multiplier[row] == 0) scratch.multiplier[row] = 1e-37f;
            scratch.sum[row] = quantised.sum;
        } else if constexpr (std::is_same_v<Kind, BFloat16>) {
            for (int d = 0; d < dim; d += LANES)
                store_bf16(reinterpret_cast<uint16_t*>(out) + d, load(q + d));
        } else {
            std::memcpy(out, q, stride);
        }
    }
    return {scratch.queries, stride, scratch.multiplier, scratch.sum};
}

// Where the panels of a segment lie that any row of the item sees; the first or the last of those
// for the rest, which nothing comes of.
inline Segment find_segment(const Task& task, int segment) {
    const Attention& attention = task.attention;
    const KVLayout& layout = attention.layout;
    const int per_block = layout.block_size / LANES;
    const int first = task.seen(0).begin / LANES;
    const int last = task.position(task.item.num_rows - 1) / LANES;
    const size_t record_size = record_bytes(layout), panel_size = layout.panel_bytes();
    Segment found;
    found.head_dim = layout.head_dim;
    for (int i = 0; i < SEGMENT_PANELS; ++i) {
        const int panel = std::min(std::max(segment * SEGMENT_PANELS + i, first), last);
        const size_t block = attention.tables[task.span.table + panel / per_block];
        const int in_block = panel % per_block;
        const uint8_t* record =
            attention.kv + (block * layout.num_kv_heads + task.item.kv_head) * record_size;
        found.k[i] = record + in_block * panel_size;
        found.v[i] = found.k[i] + layout.v_offset();
        found.k_scales[i] = reinterpret_cast<const float*>(record + layout.scales_offset()) +
                            in_block * LANES;
        found.v_scales[i] = found.k_scales[i] + layout.block_size;
    }
    return found;
}

template <class Kind, int R>
void attend_rows(const Task& task, const Segment& segment, int index, const Queries& queries,
                 int row, Scratch& scratch, Softmax* softmax, float* out) {
    Range seen[R];
    for (int r = 0; r < R; ++r) seen[r] = task.seen(row + r, index);
    const Range pages = pages_of({seen[0].begin, seen[R - 1].end});
    score_pages<Kind, R>(segment, queries.from(row), pages, scratch.scores);
    const float cap = task.attention.softcap;
    float multiplier[R];
    std::copy_n(queries.multiplier + row, R, multiplier);
    if (cap > 0)
        for (int r = 0; r < R; ++r)
            multiplier[r] = cap_scores(scratch.scores.rows[r], seen[r], multiplier[r], cap);
    soften<Kind, R>(segment, scratch.scores, seen, multiplier, softmax);
    sum_values<Kind, R>(segment, scratch.scores, seen, out);
}

template <class Kind>
int attend_tile(const Task& task, const Segment& segment, int index, const Queries& queries,
                Range rows, Scratch& scratch, Softmax* softmax, float* out) {
    const int left = rows.end - rows.begin;
    const auto attend = [&](auto count) {
        attend_rows<Kind, count>(task, segment, index, queries, rows.begin, scratch, softmax, out);
        return static_cast<int>(count);
    };
    if constexpr (MOST_ROWS >= 12)
        if (left >= 12) return attend(std::integral_constant<int, 12>{});
    if constexpr (MOST_ROWS >= 8)
        if (left >= 8) return attend(std::integral_constant<int, 8>{});
    if constexpr (MOST_ROWS >= 6)
        if (left >= 6) return attend(std::integral_constant<int, 6>{});
    if (left >= 4) return attend(std::integral_constant<int, 4>{});
    if (left >= 3) return attend(std::integral_constant<int, 3>{});
    if (left >= 2) return attend(std::integral_constant<int, 2>{});
    return attend(std::integral_constant<int, 1>{});
}

// Adds a segment to those before it, both before they are divided by their sums.
inline void merge(Softmax& total, float* values, const Softmax& segment, const float* added,
                  int dim) {
    const float top = segment.top > total.top ? segment.top : total.top;
    float factors[2 * LANES];
    store(factors, exp2(set(total.top - top)));
    store(factors + LANES, exp2(set(segment.top - top)));
    const F32 old = set(factors[0]), fresh = set(factors[LANES]);
    total = {top, total.sum * factors[0] + segment.sum * factors[LANES]};
    for (int d = 0; d < dim; d += LANES)
        store(values + d, fma(load(values + d), old, mul(load(added + d), fresh)));
}

inline void finish_row(const Task& task, int row, const Softmax& total, const float* values) {
    const Attention& attention = task.attention;
    float* out = attention.out + task.batch_row(row) * attention.out_stride +
                 size_t{1} * task.head(row) * task.dim();
    const F32 factor = set(1.0f / total.sum);
    for (int d = 0; d < task.dim(); d += LANES) store(out + d, mul(load(values + d), factor));
}

template <class Kind, class Take>
void attend_segment(const Task& task, int index, const Segment& segment, const Queries& queries,
                    Scratch& scratch, Take&& take) {
    Range rows{0, task.item.num_rows};
    while (task.seen(rows.begin, index).end <= 0) ++rows.begin;
    while (task.seen(rows.end - 1, index).begin >= SEGMENT) --rows.end;
    Softmax softmax[MOST_ROWS];
    while (rows.begin < rows.end) {
        const int count =
            attend_tile<Kind>(task, segment, index, queries, rows, scratch, softmax, scratch.out);
        for (int r = 0; r < count; ++r)
            take(index, rows.begin + r, softmax[r], scratch.out + r * task.dim());
        rows.begin += count;
    }
}

// Calls `take(segment, row, softmax, values)` for each segment of the item and row that sees it.
template <class Kind, class Take>
void attend_segments(const Task& task, const Task& next_task, const Queries& queries,
                     Scratch& scratch, Take&& take) {
    const Range all = task.item.segments;
    Segment segment = find_segment(task, all.begin);
    for (int index = all.begin; index < all.end; ++index) {
        const Segment next = index + 1 < all.end
                                 ? find_segment(task, index + 1)
                                 : find_segment(next_task, next_task.item.segments.begin);
        segment.next = &next;
        attend_segment<Kind>(task, index, segment, queries, scratch, take);
        segment = next;
    }
}

template <class Kind>
void run_whole(const Task& task, const Task& next_task, Scratch& scratch) {
    const int dim = task.dim();
    attend_segments<Kind>(
        task, next_task, prepare_queries<Kind>(task, scratch), scratch,
        [&](int segment, int row, const Softmax& softmax, const float* values) {
            float* total = scratch.totals + row * dim;
            const Range all = task.segments(row);
            if (segment == all.begin) {
                scratch.softmax[row] = softmax;
                std::copy_n(values, dim, total);
            } else {
                merge(scratch.softmax[row], total, softmax, values, dim);
            }
            if (segment == all.end - 1) finish_row(task, row, scratch.softmax[row], total);
        });
}

// Of an item whose rows others share: the one that is done last merges what all have made.
template <class Kind>
void run_part(const Task& task, const Task& next_task, const Items& items, Scratch& scratch) {
    const Item& item = task.item;
    const int dim = task.dim();
    const auto partial = [&](int segment, int row) {
        const size_t index = (segment - item.all_segments.begin) * item.num_rows + row;
        return items.partials.get() + item.first_partial + index * (dim + 2);
    };
    attend_segments<Kind>(
        task, next_task, prepare_queries<Kind>(task, scratch), scratch,
        [&](int segment, int row, const Softmax& softmax, const float* values) {
            float* to = partial(segment, row);
            std::copy_n(values, dim, to);
            to[dim] = softmax.top;
            to[dim + 1] = softmax.sum;
        });
    if (items.undone[item.counter].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    items.undone[item.counter].store(item.parts, std::memory_order_relaxed);
    for (int row = 0; row < item.num_rows; ++row) {
        const Range all = task.segments(row);
        float* total = partial(all.begin, row);
        Softmax softmax{total[dim], total[dim + 1]};
        for (int segment = all.begin + 1; segment < all.end; ++segment) {
            const float* added = partial(segment, row);
            merge(softmax, total, {added[dim], added[dim + 1]}, added, dim);
        }
        finish_row(task, row, softmax, total);
    }
}

template <class Kind>
void run_item_of(const Attention& attention, const Items& items, int index, Scratch& scratch) {
    const auto task_of = [&](int i) {
        const Item& item = items.items[i];
        return Task{attention, item, attention.spans[item.span],
                    attention.num_heads / attention.layout.num_kv_heads};
    };
    const Task task = task_of(index);
    // Threads take items in turn: this may be the next one of this thread.
    const int next = index + items.num_threads;
    const Task next_task = task_of(next < items.count() ? next : index);
    if (task.item.parts == 1)
        run_whole<Kind>(task, next_task, scratch);
    else
        run_part<Kind>(task, next_task, items, scratch);
}

// Any thread may run any item of a layer, each once; no two threads share a scratch.
inline void run_item(const Attention& attention, const Items& items, int index, Scratch& scratch) {
    switch (attention.layout.type) {
        case KVType::f32:
            return run_item_of<Float32>(attention, items, index, scratch);
        case KVType::bf16:
            return run_item_of<BFloat16>(attention, items, index, scratch);
        case KVType::s8:
            return run_item_of<Int8>(attention, items, index, scratch);
    }
}

}  // namespace headway::HEADWAY_ISA
