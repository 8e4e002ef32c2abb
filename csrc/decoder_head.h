// The decoder's head: logits of states, or the likeliest token alone.

#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <vector>

#include "decoder.h"

namespace headway::HEADWAY_ISA {

template <class Kind>
void KernelDecoder<Kind>::logits(const float* states, int rows, float* logits, int num_threads) {
    reserve(rows, num_threads);
    in_parallel(num_threads, [&](Team& team, int thread) {
        if (thread == 0) marked_ = std::chrono::steady_clock::now();
        prepare(team, thread, states, final_norm_.data(), shape_.hidden, rows);
        multiply<Kind>(team, head_, prepared(shape_.hidden), rows,
                       [&](int row, int panel, const F32* values, int count) {
                           for (int p = 0; p < count; ++p) {
                               float lanes[LANES];
                               const int first = (panel + p) * LANES;
                               const int width = std::min(LANES, shape_.vocab - first);
                               float* out = logits + size_t{1} * row * shape_.vocab + first;
                               if (width == LANES) {
                                   store(out, values[p]);
                               } else if (width > 0) {
                                   store(lanes, values[p]);
                                   std::copy_n(lanes, width, out);
                               }
                           }
                       });
        mark(thread, Phase::ends);
    });
}

// The first of the largest logits of a row, as one thread has seen them.
struct Best {
    float value = -INFINITY;
    int token = INT_MAX;
    float poison = 0.0f;  // NaN once a logit was NaN or infinite

    void see(int panel, F32 values, int width) {
        poison += reduce_add(mul(values, zero()));
        if (reduce_max(values) < value) return;
        float lanes[LANES];
        store(lanes, values);
        for (int i = 0; i < width; ++i) merge({lanes[i], panel * LANES + i});
    }
    void merge(const Best& other) {
        poison += other.poison;
        if (other.value > value || (other.value == value && other.token < token)) {
            value = other.value;
            token = other.token;
        }
    }
};

template <class Kind>
void KernelDecoder<Kind>::likeliest(const float* states, int rows, int64_t* tokens, float* values,
                                 int num_threads) {
    reserve(rows, num_threads);
    std::vector<Best> bests(size_t{1} * num_threads * rows);
    in_parallel(num_threads, [&](Team& team, int thread) {
        if (thread == 0) marked_ = std::chrono::steady_clock::now();
        prepare(team, thread, states, final_norm_.data(), shape_.hidden, rows);
        Best* own = bests.data() + size_t{1} * thread * rows;
        multiply<Kind>(team, head_, prepared(shape_.hidden), rows,
                       [&](int row, int panel, const F32* products, int count) {
                           for (int p = panel; p < panel + count; ++p)
                               own[row].see(p, products[p - panel],
                                            std::min(LANES, shape_.vocab - p * LANES));
                       });
        mark(thread, Phase::ends);
    });
    for (int row = 0; row < rows; ++row) {
        Best best;
        for (int thread = 0; thread < num_threads; ++thread)
            best.merge(bests[size_t{1} * thread * rows + row]);
        tokens[row] = best.token;
        values[row] = best.value + best.poison;
    }
}

}  // namespace headway::HEADWAY_ISA
