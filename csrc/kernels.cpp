// All kernels for one instruction set: compiled once for each, with HEADWAY_ISA its name.

#include "kernels.h"

#include <omp.h>

#include "decoder_head.h"
#include "decoder_weights.h"
#include "product.h"

namespace headway::HEADWAY_ISA {
namespace {

std::unique_ptr<headway::Decoder> make_decoder(const Shape& shape) {
    switch (shape.weights) {
        case Precision::s8:
            return std::make_unique<KernelDecoder<Int8>>(shape);
        case Precision::bf16:
            return std::make_unique<KernelDecoder<BFloat16>>(shape);
        default:
            return std::make_unique<KernelDecoder<Float32>>(shape);
    }
}

std::unique_ptr<headway::Product> make_product(Precision precision, const float* weights,
                                               int num_channels, int width) {
    switch (precision) {
        case Precision::s8:
            return std::make_unique<PackedProduct<Int8>>(weights, num_channels, width);
        case Precision::bf16:
            return std::make_unique<PackedProduct<BFloat16>>(weights, num_channels, width);
        default:
            return std::make_unique<PackedProduct<Float32>>(weights, num_channels, width);
    }
}

int num_threads() {
    int count = 0;
#pragma omp parallel reduction(+ : count)
    count += 1;
    return count;
}

KVLayout layout_of(const Cache& cache) {
    return {cache.precision, cache.block_size, cache.head_dim, cache.num_kv_heads};
}

size_t record_bytes_of(const Cache& cache) { return record_bytes(layout_of(cache)); }

void write_token(const Cache& cache, int block, int offset, const float* k, const float* v) {
    const KVLayout layout = layout_of(cache);
    for (int head = 0; head < cache.num_kv_heads; ++head) {
        const size_t index = size_t{1} * block * cache.num_kv_heads + head;
        write_kv(layout, cache.data + index * record_bytes(layout), offset,
                 k + head * cache.head_dim, v + head * cache.head_dim);
    }
}

void attend(const Cache& cache, const AttentionCall& call) {
    const size_t width = size_t{1} * call.num_heads * cache.head_dim;
    const Attention attention{call.q,         width,          call.out,       width,
                              cache.data,     call.tables,    call.spans,     call.num_spans,
                              call.num_heads, layout_of(cache), call.scale,   call.window,
                              call.softcap};
    const Items items = plan_items(call.spans, call.num_spans, call.num_heads, cache.num_kv_heads,
                                   cache.head_dim, call.window, call.num_threads);
    std::vector<Scratch> scratch(call.num_threads);
    // Twice, as for two layers: what the first leaves behind is what the second begins with.
    for (int layer = 0; layer < 2; ++layer) {
        for (int i = 0; i < call.num_spans; ++i)
            std::fill_n(call.out + call.spans[i].first_row * width, call.spans[i].num_rows * width,
                        std::nanf(""));
        in_parallel(call.num_threads, [&](Team& team, int thread) {
            team.each(items.count(), 1, [&](int item) {
                run_item(attention, items, item, scratch[thread]);
            });
        });
    }
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {make_decoder, make_product, num_threads, record_bytes_of, write_token, attend};

}  // namespace headway::HEADWAY_ISA
