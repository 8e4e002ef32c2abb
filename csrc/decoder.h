// The decoder's forward pass: one parallel region, phase by phase, nothing allocated that fits.

#pragma once

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "kernels.h"
#include "prepare.h"
#include "simd.h"
#include "team.h"

namespace headway::HEADWAY_ISA {

inline F32 activate(F32 gate, bool gelu) {
    // Both are gate * sigmoid(s): SiLU with s = gate, GELU's tanh approximation with the s below.
    F32 s = gate;
    if (gelu) {
        const F32 cube = mul(mul(gate, gate), gate);
        s = mul(set(1.59576912f), fma(set(0.044715f), cube, gate));  // 2 sqrt(2 / pi)
    }
    return div(gate, add(set(1.0f), exp(sub(zero(), s))));
}

// Turns the halves of a head against each other: pairs (i, i + head_dim / 2).
inline void turn(float* head, const float* cosines, const float* sines, int half) {
    for (int i = 0; i < half; i += 1) {
        const float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

struct Rope {
    std::vector<double> frequencies;  // [head_dim / 2]
    double magnitude;
};

struct Layer {
    Matrix qkv, o, gate_up, down;
    std::vector<float> attention_norm, mlp_norm;
    std::vector<float> qkv_bias, q_norm, k_norm, attention_post_norm, mlp_post_norm;  // or empty
    int rope, window;
};

template <class Kind>
class KernelDecoder final : public headway::Decoder {
   public:
    explicit KernelDecoder(const Shape& shape)
        : shape_(shape),
          layout_{static_cast<KVType>(shape.kv), shape.block_size, shape.head_dim,
                  shape.num_kv_heads} {}

    void add_rope(const double* frequencies, float magnitude) override {
        ropes_.push_back({{frequencies, frequencies + shape_.head_dim / 2}, magnitude});
    }
    void add_layer(const LayerWeights& layer) override;
    void set_final_norm(const float* weights) override {
        final_norm_.assign(weights, weights + shape_.hidden);
    }
    void set_head(int first, int count, const float* rows) override {
        set_rows(head_, first, count, rows);
    }
    void set_embedding(int first, int count, const float* rows) override {
        set_rows(embedding_, first, count, rows);
        tied_ = false;
    }
    size_t weight_bytes() const override;
    size_t block_bytes() const override { return shape_.num_kv_heads * record_bytes(layout_); }
    void forward(const Batch& batch, uint8_t* kv, size_t num_blocks, float* states,
                 int num_threads) override;
    void logits(const float* states, int rows, float* logits, int num_threads) override;
    void likeliest(const float* states, int rows, int64_t* tokens, float* values,
                int num_threads) override;
    const double* phase_seconds() const override { return phase_s_; }

   private:
    // What one forward pass is about, and what its threads share.
    struct Pass {
        const Batch& batch;
        uint8_t* kv;
        size_t layer_bytes;
        std::vector<std::pair<int, Items>> items;  // by window
    };

    void run(Team& team, int thread, Pass& pass);
    void embed(int row, const Pass& pass);
    void attention_layer(Team& team, int thread, int index, Pass& pass);
    void mlp_layer(Team& team, int thread, const Layer& layer, int rows);
    void turn_and_store(const Layer& layer, int row, uint8_t* layer_kv, const Pass& pass);
    void prepare(Team& team, int thread, const float* from, const float* norm, int width,
                 int rows);
    void add_product(Team& team, int thread, const Matrix& matrix, const std::vector<float>& norm,
                     int rows);
    void mark(int thread, Phase phase);
    void set_rows(Matrix& matrix, int first, int count, const float* rows);
    void reserve(int rows, int num_threads);
    Rows prepared(int width) {
        return {prepared_.data.data(), stride(width), prepared_.scale.data(),
                prepared_.sum.data()};
    }
    static size_t stride(int width) { return width / Kind::PER_GROUP * 4; }
    // Of int8, q and k are rotated alike, which their product does not see but for a factor: an
    // element that stands out would leave the others few steps of the head's scale.
    int head_rotation() const {
        return shape_.kv == Precision::s8 ? rotation_block(shape_.head_dim) : 1;
    }
    int q_width() const { return shape_.num_heads * shape_.head_dim; }
    int qkv_width() const { return q_width() + 2 * shape_.num_kv_heads * shape_.head_dim; }
    int widest() const { return std::max({shape_.hidden, shape_.intermediate, q_width()}); }
    float* scratch(int thread) { return scratch_.data() + size_t{1} * thread * widest(); }

    const Shape shape_;
    const KVLayout layout_;
    std::vector<Rope> ropes_;
    std::vector<Layer> layers_;
    Matrix embedding_, head_;
    bool tied_ = true;
    std::vector<float> final_norm_;

    // Scratch memory of a pass; rows of the batch come first.
    RowsBuffer prepared_;
    Buffer<float> x_, qkv_, attended_, hidden_, product_, turns_;
    Buffer<float> scratch_;   // [threads][widest]
    Buffer<int32_t> span_of_; // [rows]
    std::vector<Scratch> attention_scratch_;
    double phase_s_[NUM_PHASES] = {};
    std::chrono::steady_clock::time_point marked_;
};

template <class Kind>
void KernelDecoder<Kind>::reserve(int rows, int num_threads) {
    const size_t n = rows;
    prepared_.reserve(rows, stride(widest()));
    x_.reserve(n * shape_.hidden);
    qkv_.reserve(n * qkv_width());
    attended_.reserve(n * q_width());
    hidden_.reserve(n * shape_.intermediate);
    product_.reserve(n * shape_.hidden);
    turns_.reserve(n * ropes_.size() * shape_.head_dim);
    scratch_.reserve(size_t{1} * num_threads * widest());
    span_of_.reserve(n);
    attention_scratch_.resize(num_threads);
}

template <class Kind>
void KernelDecoder<Kind>::forward(const Batch& batch, uint8_t* kv, size_t num_blocks,
                                  float* states, int num_threads) {
    reserve(batch.num_rows, num_threads);
    Pass pass{batch, kv, num_blocks * block_bytes(), {}};
    for (int i = 0; i < batch.num_spans; ++i)
        for (int row = 0; row < batch.spans[i].num_rows; ++row)
            span_of_[batch.spans[i].first_row + row] = i;
    for (const Layer& layer : layers_) {
        bool known = false;
        for (const auto& [window, items] : pass.items) known |= window == layer.window;
        if (!known)
            pass.items.emplace_back(
                layer.window, plan_items(batch.spans, batch.num_spans, shape_.num_heads,
                                         shape_.num_kv_heads, shape_.head_dim, layer.window,
                                         num_threads));
    }
    in_parallel(num_threads, [&](Team& team, int thread) { run(team, thread, pass); });
    for (int i = 0; i < batch.num_outputs; ++i)
        std::copy_n(x_.data() + size_t{1} * batch.outputs[i] * shape_.hidden, shape_.hidden,
                    states + size_t{1} * i * shape_.hidden);
}

template <class Kind>
void KernelDecoder<Kind>::run(Team& team, int thread, Pass& pass) {
    const int rows = pass.batch.num_rows;
    if (thread == 0) marked_ = std::chrono::steady_clock::now();
    team.each_row(rows, [&](int row) { embed(row, pass); });
    mark(thread, Phase::ends);
    for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
        attention_layer(team, thread, index, pass);
        mlp_layer(team, thread, layers_[index], rows);
    }
}

// The row's token, and the turns of its position: per rope, cosines, then sines.
template <class Kind>
void KernelDecoder<Kind>::embed(int row, const Pass& pass) {
    float* x = x_.data() + size_t{1} * row * shape_.hidden;
    unpack_channel<Kind>(tied_ ? head_ : embedding_, pass.batch.token_ids[row], x);
    for (int i = 0; i < shape_.hidden; ++i) x[i] *= shape_.embedding_scale;
    const Span& span = pass.batch.spans[span_of_[row]];
    const int position = span.start + row - span.first_row, half = shape_.head_dim / 2;
    float* turns = turns_.data() + size_t{1} * row * ropes_.size() * shape_.head_dim;
    for (const Rope& rope : ropes_) {
        for (int i = 0; i < half; ++i) {
            const double angle = position * rope.frequencies[i];
            turns[i] = static_cast<float>(std::cos(angle) * rope.magnitude);
            turns[i + half] = static_cast<float>(std::sin(angle) * rope.magnitude);
        }
        turns += shape_.head_dim;
    }
}

template <class Kind>
void KernelDecoder<Kind>::attention_layer(Team& team, int thread, int index, Pass& pass) {
    const Layer& layer = layers_[index];
    const Batch& batch = pass.batch;
    uint8_t* kv = pass.kv + index * pass.layer_bytes;
    prepare(team, thread, x_.data(), layer.attention_norm.data(), shape_.hidden, batch.num_rows);
    const float* bias = layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data();
    multiply<Kind>(team, layer.qkv, prepared(shape_.hidden), batch.num_rows,
                   [&](int row, int panel, const F32* values, int count) {
                       float* out = qkv_.data() + size_t{1} * row * qkv_width() + panel * LANES;
                       for (int p = 0; p < count; ++p) {
                           F32 value = values[p];
                           if (bias) value = add(value, load(bias + (panel + p) * LANES));
                           store(out + p * LANES, value);
                       }
                   });
    mark(thread, Phase::products);
    team.each_row(batch.num_rows, [&](int row) { turn_and_store(layer, row, kv, pass); });
    mark(thread, Phase::positions);
    const Items* items = nullptr;
    for (const auto& [window, made] : pass.items)
        if (window == layer.window) items = &made;
    const Attention attention{qkv_.data(), static_cast<size_t>(qkv_width()), attended_.data(),
                              static_cast<size_t>(q_width()), kv, batch.tables, batch.spans,
                              batch.num_spans, shape_.num_heads, layout_,
                              shape_.attention_scale / head_rotation(), layer.window, 0.0f};
    team.each(items->count(), 1, [&](int item) {
        run_item(attention, *items, item, attention_scratch_[thread]);
    });
    mark(thread, Phase::attention);
    prepare(team, thread, attended_.data(), nullptr, q_width(), batch.num_rows);
    add_product(team, thread, layer.o, layer.attention_post_norm, batch.num_rows);
}

// q and k normalised and turned, k and v written to the cache.
template <class Kind>
void KernelDecoder<Kind>::turn_and_store(const Layer& layer, int row, uint8_t* layer_kv,
                                         const Pass& pass) {
    const int dim = shape_.head_dim, num_heads = shape_.num_heads, num_kv = shape_.num_kv_heads;
    const float* turns =
        turns_.data() + (size_t{1} * row * ropes_.size() + layer.rope) * dim;
    float* qkv = qkv_.data() + size_t{1} * row * qkv_width();
    for (int head = 0; head < num_heads + num_kv; ++head) {
        float* values = qkv + head * dim;
        if (!layer.q_norm.empty())
            rms_norm(values, (head < num_heads ? layer.q_norm : layer.k_norm).data(), dim,
                     shape_.norm_eps, values);
        turn(values, turns, turns + dim / 2, dim / 2);
        rotate(values, dim, head_rotation());
    }
    const Span& span = pass.batch.spans[span_of_[row]];
    const int position = span.start + row - span.first_row;
    const int block = pass.batch.tables[span.table + position / shape_.block_size];
    for (int head = 0; head < num_kv; ++head) {
        uint8_t* record =
            layer_kv + (size_t{1} * block * num_kv + head) * record_bytes(layout_);
        const float* k = qkv + (num_heads + head) * dim;
        write_kv(layout_, record, position % shape_.block_size, k, k + num_kv * dim);
    }
}

template <class Kind>
void KernelDecoder<Kind>::mlp_layer(Team& team, int thread, const Layer& layer, int rows) {
    prepare(team, thread, x_.data(), layer.mlp_norm.data(), shape_.hidden, rows);
    multiply<Kind>(team, layer.gate_up, prepared(shape_.hidden), rows,
                   [&](int row, int panel, const F32* values, int count) {
                       float* out = hidden_.data() + size_t{1} * row * shape_.intermediate +
                                    panel / 2 * LANES;
                       for (int p = 0; p < count; p += 2)
                           store(out + p / 2 * LANES,
                                 mul(activate(values[p], shape_.gelu), values[p + 1]));
                   });
    mark(thread, Phase::products);
    prepare(team, thread, hidden_.data(), nullptr, shape_.intermediate, rows);
    add_product(team, thread, layer.down, layer.mlp_post_norm, rows);
}

// Rows of `from`, normalised where there is a norm, as the next product reads them.
template <class Kind>
void KernelDecoder<Kind>::prepare(Team& team, int thread, const float* from, const float* norm,
                                  int width, int rows) {
    float* row_of = scratch(thread);
    team.each_row(rows, [&](int row) {
        const float* x = from + size_t{1} * row * width;
        if (norm != nullptr)
            rms_norm(x, norm, width, shape_.norm_eps, row_of);
        else
            std::copy_n(x, width, row_of);
        prepare_row<Kind>(row_of, width, prepared_, stride(width), row);
    });
    mark(thread, Phase::preparing);
}

// Adds the product of what is prepared to x, normalised first where there is a norm for it.
template <class Kind>
void KernelDecoder<Kind>::add_product(Team& team, int thread, const Matrix& matrix,
                                      const std::vector<float>& norm, int rows) {
    const int hidden = shape_.hidden;
    const bool direct = norm.empty();
    float* to = direct ? x_.data() : product_.data();
    multiply<Kind>(team, matrix, prepared(matrix.width), rows,
                   [&](int row, int panel, const F32* values, int count) {
                       float* out = to + size_t{1} * row * hidden + panel * LANES;
                       for (int p = 0; p < count; ++p, out += LANES)
                           store(out, direct ? add(load(out), values[p]) : values[p]);
                   });
    mark(thread, Phase::products);
    if (direct) return;
    team.each_row(rows, [&](int row) {
        float* product = product_.data() + size_t{1} * row * hidden;
        float* x = x_.data() + size_t{1} * row * hidden;
        rms_norm(product, norm.data(), hidden, shape_.norm_eps, product);
        for (int i = 0; i < hidden; i += LANES) store(x + i, add(load(x + i), load(product + i)));
    });
    mark(thread, Phase::preparing);
}

template <class Kind>
void KernelDecoder<Kind>::mark(int thread, Phase phase) {
    if (thread != 0) return;
    const auto now = std::chrono::steady_clock::now();
    phase_s_[phase] += std::chrono::duration<double>(now - marked_).count();
    marked_ = now;
}

}  // namespace headway::HEADWAY_ISA
