// The decoder takes its weights: packed as products read them, layer by layer.

#pragma once

#include <utility>
#include <vector>

#include "decoder.h"

namespace headway::HEADWAY_ISA {

inline std::vector<float> copy_of(const float* values, int count) {
    return values == nullptr ? std::vector<float>{} : std::vector<float>(values, values + count);
}

inline void append_rows(std::vector<const float*>& rows, const float* from, int count, int width) {
    for (int i = 0; i < count; ++i) rows.push_back(from + size_t{1} * i * width);
}

template <class Kind>
void KernelDecoder<Kind>::add_layer(const LayerWeights& from) {
    const int hidden = shape_.hidden, inner = shape_.intermediate;
    const int kv_width = shape_.num_kv_heads * shape_.head_dim;
    std::vector<const float*> qkv, o, gate_up, down;
    append_rows(qkv, from.q, q_width(), hidden);
    append_rows(qkv, from.k, kv_width, hidden);
    append_rows(qkv, from.v, kv_width, hidden);
    append_rows(o, from.o, hidden, q_width());
    for (int i = 0; i < inner; i += LANES) {  // a panel of gates, then that of their ups
        append_rows(gate_up, from.gate + size_t{1} * i * hidden, LANES, hidden);
        append_rows(gate_up, from.up + size_t{1} * i * hidden, LANES, hidden);
    }
    append_rows(down, from.down, hidden, inner);
    Layer layer;
    layer.qkv = pack<Kind>(qkv, hidden);
    layer.o = pack<Kind>(o, q_width());
    layer.gate_up = pack<Kind>(gate_up, hidden);
    layer.down = pack<Kind>(down, inner);
    layer.attention_norm = copy_of(from.attention_norm, hidden);
    layer.mlp_norm = copy_of(from.mlp_norm, hidden);
    layer.attention_post_norm = copy_of(from.attention_post_norm, hidden);
    layer.mlp_post_norm = copy_of(from.mlp_post_norm, hidden);
    layer.q_norm = copy_of(from.q_norm, shape_.head_dim);
    layer.k_norm = copy_of(from.k_norm, shape_.head_dim);
    if (from.q_bias != nullptr) {
        layer.qkv_bias = copy_of(from.q_bias, q_width());
        for (const float* bias : {from.k_bias, from.v_bias})
            layer.qkv_bias.insert(layer.qkv_bias.end(), bias, bias + kv_width);
    }
    layer.rope = from.rope;
    layer.window = from.window;
    layers_.push_back(std::move(layer));
}

template <class Kind>
void KernelDecoder<Kind>::set_rows(Matrix& matrix, int first, int count, const float* rows) {
    if (matrix.channels == 0) matrix = room_for<Kind>(shape_.vocab, shape_.hidden);
    std::vector<const float*> channels;
    append_rows(channels, rows, count, shape_.hidden);
    pack_at<Kind>(matrix, first, channels);
}

template <class Kind>
size_t KernelDecoder<Kind>::weight_bytes() const {
    size_t bytes = 0;
    const auto count = [&bytes](const Matrix& m) { bytes += m.data.size() + 4 * m.scale.size(); };
    for (const Layer& layer : layers_)
        for (const Matrix* m : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) count(*m);
    count(embedding_);
    count(head_);
    return bytes;
}

}  // namespace headway::HEADWAY_ISA
