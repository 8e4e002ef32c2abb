// What each instruction set's object offers to the Python module: a decoder, step by step.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headway {

enum class Precision { f32, bf16, s8 };

// As in DecoderSpec; weights may be absent (null) where a model has none.
struct Shape {
    int num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
    float norm_eps, attention_scale, embedding_scale;
    bool gelu;  // the tanh approximation; else SiLU
    Precision weights, kv;
    int block_size;
};

// One layer, float32; a product's weight is [out, in]. Read when it is added, not kept.
struct LayerWeights {
    const float *attention_norm, *q, *k, *v, *o, *mlp_norm, *gate, *up, *down;
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
    const float *attention_post_norm, *mlp_post_norm;
    int rope;    // index of the frequencies
    int window;  // 0: none
};

// One chunk: rows of the batch that continue one sequence.
struct Span {
    int32_t first_row, num_rows;
    int32_t start;  // position of its first row
    int32_t table;  // where its block table begins in `tables`
};

struct Batch {
    const int32_t* token_ids;  // [num_rows]
    const Span* spans;         // in the order of their rows
    const int32_t* tables;     // block tables, one after the other
    const int32_t* outputs;    // [num_outputs] rows whose state is wanted
    int num_rows, num_spans, num_outputs;
};

// What the time of a pass goes to.
enum Phase { ends, preparing, products, positions, attention, NUM_PHASES };
constexpr const char* PHASES[NUM_PHASES] = {"embedding and head", "norms and rounding", "products",
                                            "positions and KV", "attention"};

// Owns packed weights and scratch memory, not the KV cache. One thread calls it at a time.
class Decoder {
   public:
    virtual ~Decoder() = default;

    virtual void add_rope(const double* frequencies, float magnitude) = 0;
    virtual void add_layer(const LayerWeights& layer) = 0;
    virtual void set_final_norm(const float* weights) = 0;
    // `count` rows, float32, of the head; and of the embedding, if it is not tied to the head.
    virtual void set_head(int first, int count, const float* rows) = 0;
    virtual void set_embedding(int first, int count, const float* rows) = 0;

    virtual size_t weight_bytes() const = 0;
    // Of one block of one layer, all KV heads.
    virtual size_t block_bytes() const = 0;

    // Writes the batch's KV into `kv` [layers][num_blocks][block_bytes]; `states`
    // [num_outputs][hidden] are the rows before the final norm.
    virtual void forward(const Batch& batch, uint8_t* kv, size_t num_blocks, float* states,
                         int num_threads) = 0;
    // states -> [rows][vocab]
    virtual void logits(const float* states, int rows, float* logits, int num_threads) = 0;
    // The first of the largest logits of each row, and its value (NaN where a logit is).
    virtual void likeliest(const float* states, int rows, int64_t* tokens, float* values,
                        int num_threads) = 0;
    // [NUM_PHASES] seconds so far, as the first thread sees them.
    virtual const double* phase_seconds() const = 0;
};

// Weights packed for products by themselves. One thread calls it at a time.
class Product {
   public:
    virtual ~Product() = default;
    // from [num_rows][width] -> out [num_rows][num_channels], float32
    virtual void multiply(const float* from, int num_rows, float* out, int num_threads) = 0;
};

// One layer's KV cache [num_blocks][num_kv_heads][record_bytes].
struct Cache {
    Precision precision;
    int block_size, head_dim, num_kv_heads;
    uint8_t* data;
};

// Attention by itself, as tests call it.
struct AttentionCall {
    const float* q;  // [rows][num_heads][head_dim], and so is `out`
    float* out;
    const Span* spans;
    const int32_t* tables;
    int num_spans, num_heads, window, num_threads;
    float scale, softcap;
};

struct Kernels {
    std::unique_ptr<Decoder> (*make_decoder)(const Shape&);
    // weights [num_channels][width]; width is a multiple of 16.
    std::unique_ptr<Product> (*make_product)(Precision, const float* weights, int num_channels,
                                             int width);
    int (*num_threads)();  // of one parallel region: that of PyTorch's pool
    size_t (*record_bytes)(const Cache&);
    // K and V [num_kv_heads][head_dim] of one token.
    void (*write_kv)(const Cache&, int block, int offset, const float* k, const float* v);
    void (*attend)(const Cache&, const AttentionCall&);
};

}  // namespace headway
