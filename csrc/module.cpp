// The Python module: chooses the instruction set, checks what it is handed, hands pointers on.
// Compiled without any flags of an instruction set.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "build_config.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {

#define DECLARE(isa, runs)            \
    namespace isa {                   \
    extern const Kernels kernels;     \
    }
HEADWAY_FOR_EACH_ISA(DECLARE)
#undef DECLARE

namespace {

struct Isa {
    const char* name;
    bool runs;  // on this CPU, under this operating system
    const Kernels* kernels;
};

// Best first.
std::vector<Isa> all_isas() {
#define ENTRY(isa, runs) {#isa, bool(runs), &isa::kernels},
    return {HEADWAY_FOR_EACH_ISA(ENTRY)};
#undef ENTRY
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const Isa& isa : all_isas())
        if (isa.runs) names.emplace_back(isa.name);
    return names;
}

const Kernels& kernels_for(const std::string& name) {
    for (const Isa& isa : all_isas())
        if (isa.runs && isa.name == name) return *isa.kernels;
    throw std::invalid_argument("no kernels for " + name + " here");
}

template <class T>
using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// The array's data, null where there is none; throws where it is not of that many elements.
template <class T>
T* checked(const char* name, const std::optional<nb::ndarray<T, nb::c_contig, nb::device::cpu>>& a,
           size_t size) {
    if (!a) return nullptr;
    if (a->size() != size)
        throw std::invalid_argument(std::string(name) + ": has " + std::to_string(a->size()) +
                                    " elements, not " + std::to_string(size));
    return a->data();
}

Precision precision_of(const std::string& name) {
    if (name == "float32") return Precision::f32;
    if (name == "bfloat16") return Precision::bf16;
    if (name == "int8") return Precision::s8;
    throw std::invalid_argument("no precision " + name);
}

// A decoder and the sizes to check arguments with.
struct BoundDecoder {
    Shape shape;
    std::unique_ptr<Decoder> decoder;

    BoundDecoder(const std::string& isa, const std::string& weights, const std::string& kv,
                 Shape sizes)
        : shape(sizes) {
        shape.weights = precision_of(weights);
        shape.kv = precision_of(kv);
        decoder = kernels_for(isa).make_decoder(shape);
    }
};

using Weight = std::optional<Array<float>>;

void add_layer(BoundDecoder& self, Weight attention_norm, Weight q, Weight k, Weight v, Weight o,
               Weight mlp_norm, Weight gate, Weight up, Weight down, Weight q_bias, Weight k_bias,
               Weight v_bias, Weight q_norm, Weight k_norm, Weight attention_post_norm,
               Weight mlp_post_norm, int rope, int window) {
    const Shape& s = self.shape;
    const size_t hidden = s.hidden, inner = s.intermediate;
    const size_t heads = size_t{1} * s.num_heads * s.head_dim;
    const size_t kv_heads = size_t{1} * s.num_kv_heads * s.head_dim;
    LayerWeights layer{
        checked("attention_norm", attention_norm, hidden),
        checked("q", q, heads * hidden),
        checked("k", k, kv_heads * hidden),
        checked("v", v, kv_heads * hidden),
        checked("o", o, hidden * heads),
        checked("mlp_norm", mlp_norm, hidden),
        checked("gate", gate, inner * hidden),
        checked("up", up, inner * hidden),
        checked("down", down, hidden * inner),
        checked("q_bias", q_bias, heads),
        checked("k_bias", k_bias, kv_heads),
        checked("v_bias", v_bias, kv_heads),
        checked("q_norm", q_norm, s.head_dim),
        checked("k_norm", k_norm, s.head_dim),
        checked("attention_post_norm", attention_post_norm, hidden),
        checked("mlp_post_norm", mlp_post_norm, hidden),
        rope,
        window,
    };
    nb::gil_scoped_release unlocked;
    self.decoder->add_layer(layer);
}

// The plan was checked by the executor: nothing here reaches outside of the arrays.
void forward(BoundDecoder& self, Array<int32_t> token_ids, Array<int32_t> spans,
             Array<int32_t> tables, Array<int32_t> outputs, Output<uint8_t> kv, Output<float> states,
             int num_threads) {
    const size_t layer_bytes = self.decoder->block_bytes() * self.shape.num_layers;
    Batch batch{token_ids.data(),
                reinterpret_cast<const Span*>(spans.data()),
                tables.data(),
                outputs.data(),
                static_cast<int>(token_ids.size()),
                static_cast<int>(spans.size() / 4),
                static_cast<int>(outputs.size())};
    checked<float>("states", states, outputs.size() * self.shape.hidden);
    nb::gil_scoped_release unlocked;
    self.decoder->forward(batch, kv.data(), kv.size() / layer_bytes, states.data(), num_threads);
}

void logits(BoundDecoder& self, Array<float> states, Output<float> out, int num_threads) {
    const int rows = static_cast<int>(states.size() / self.shape.hidden);
    checked<float>("logits", out, size_t{1} * rows * self.shape.vocab);
    nb::gil_scoped_release unlocked;
    self.decoder->logits(states.data(), rows, out.data(), num_threads);
}

void likeliest(BoundDecoder& self, Array<float> states, Output<int64_t> tokens, Output<float> values,
            int num_threads) {
    const int rows = static_cast<int>(states.size() / self.shape.hidden);
    checked<int64_t>("tokens", tokens, rows);
    checked<float>("values", values, rows);
    nb::gil_scoped_release unlocked;
    self.decoder->likeliest(states.data(), rows, tokens.data(), values.data(), num_threads);
}

// Of the head or the embedding.
template <void (Decoder::*set)(int, int, const float*)>
void set_rows(BoundDecoder& self, int first, Array<float> rows) {
    const int count = static_cast<int>(rows.size() / self.shape.hidden);
    checked<const float>("rows", rows, size_t{1} * count * self.shape.hidden);
    if (first < 0 || first + count > self.shape.vocab)
        throw std::invalid_argument("rows: end at " + std::to_string(first + count) + ", not by " +
                                    std::to_string(self.shape.vocab));
    nb::gil_scoped_release unlocked;
    (self.decoder.get()->*set)(first, count, rows.data());
}

void bind_decoder(nb::module_& m) {
    nb::class_<BoundDecoder>(m, "Decoder")
        .def(
            "__init__",
            [](BoundDecoder* self, const std::string& isa, const std::string& weights,
               const std::string& kv, int num_layers, int hidden, int intermediate, int num_heads,
               int num_kv_heads, int head_dim, int vocab, float norm_eps, float attention_scale,
               float embedding_scale, bool gelu, int block_size) {
                new (self) BoundDecoder(
                    isa, weights, kv,
                    {num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab,
                     norm_eps, attention_scale, embedding_scale, gelu, {}, {}, block_size});
            },
            nb::kw_only(), "isa"_a, "weights"_a, "kv"_a, "num_layers"_a, "hidden"_a,
            "intermediate"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "vocab"_a,
            "norm_eps"_a, "attention_scale"_a, "embedding_scale"_a, "gelu"_a, "block_size"_a)
        .def("add_rope",
             [](BoundDecoder& self, Array<double> frequencies, float magnitude) {
                 checked<const double>("frequencies", frequencies, self.shape.head_dim / 2);
                 self.decoder->add_rope(frequencies.data(), magnitude);
             })
        .def("add_layer", add_layer, nb::kw_only(), "attention_norm"_a, "q"_a, "k"_a, "v"_a, "o"_a,
             "mlp_norm"_a, "gate"_a, "up"_a, "down"_a, "q_bias"_a.none(), "k_bias"_a.none(),
             "v_bias"_a.none(), "q_norm"_a.none(), "k_norm"_a.none(),
             "attention_post_norm"_a.none(), "mlp_post_norm"_a.none(), "rope"_a, "window"_a)
        .def("set_final_norm",
             [](BoundDecoder& self, Weight weights) {
                 self.decoder->set_final_norm(checked("weights", weights, self.shape.hidden));
             })
        .def("set_head", set_rows<&Decoder::set_head>, "first"_a, "rows"_a)
        .def("set_embedding", set_rows<&Decoder::set_embedding>, "first"_a, "rows"_a)
        .def("forward", forward)
        .def("logits", logits)
        .def("likeliest", likeliest)
        .def_prop_ro("weight_bytes", [](BoundDecoder& self) { return self.decoder->weight_bytes(); })
        .def_prop_ro("block_bytes", [](BoundDecoder& self) { return self.decoder->block_bytes(); })
        .def("phase_seconds", [](BoundDecoder& self) {
            const double* s = self.decoder->phase_seconds();
            return std::vector<double>(s, s + NUM_PHASES);
        });
}

using Rectangle = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Packed weights and the sizes to check arguments with.
struct BoundProduct {
    size_t num_channels, width;
    std::unique_ptr<Product> product;

    BoundProduct(const std::string& isa, const std::string& precision, Rectangle weights)
        : num_channels(weights.shape(0)), width(weights.shape(1)) {
        if (width == 0 || width % 16)
            throw std::invalid_argument("weights: the width is no multiple of 16");
        product = kernels_for(isa).make_product(precision_of(precision), weights.data(),
                                                static_cast<int>(num_channels),
                                                static_cast<int>(width));
    }
};

void bind_product(nb::module_& m) {
    nb::class_<BoundProduct>(m, "Product")
        .def(nb::init<const std::string&, const std::string&, Rectangle>(), nb::kw_only(),
             "isa"_a, "precision"_a, "weights"_a)
        .def("multiply", [](BoundProduct& self, Array<float> rows, Output<float> out,
                            int num_threads) {
            const size_t num_rows = rows.size() / self.width;
            checked<const float>("rows", rows, num_rows * self.width);
            checked<float>("out", out, num_rows * self.num_channels);
            nb::gil_scoped_release unlocked;
            self.product->multiply(rows.data(), static_cast<int>(num_rows), out.data(),
                                   num_threads);
        });
}

Cache cache_of(const std::string& kv, int block_size, int num_kv_heads, int head_dim,
               uint8_t* data = nullptr) {
    return {precision_of(kv), block_size, head_dim, num_kv_heads, data};
}

// k, v: [tokens][num_kv_heads][head_dim]; slots: block * block_size + offset.
void write_kv(const std::string& isa, const std::string& kv, int block_size, Output<uint8_t> cache,
              Array<int32_t> slots, Array<float> k, Array<float> v) {
    const int heads = static_cast<int>(k.shape(1)), dim = static_cast<int>(k.shape(2));
    const Cache to = cache_of(kv, block_size, heads, dim, cache.data());
    for (size_t i = 0; i < slots.size(); ++i) {
        const size_t offset = i * heads * dim;
        kernels_for(isa).write_kv(to, slots.data()[i] / block_size, slots.data()[i] % block_size,
                                  k.data() + offset, v.data() + offset);
    }
}

// q, out: [rows][num_heads][head_dim].
void attention(const std::string& isa, const std::string& kv, int block_size, int num_kv_heads,
               Array<float> q, Output<float> out, Output<uint8_t> cache, Array<int32_t> spans,
               Array<int32_t> tables, float scale, int window, float softcap, int num_threads) {
    const Cache from =
        cache_of(kv, block_size, num_kv_heads, static_cast<int>(q.shape(2)), cache.data());
    checked<float>("out", out, q.size());
    nb::gil_scoped_release unlocked;
    kernels_for(isa).attend(
        from, {q.data(), out.data(), reinterpret_cast<const Span*>(spans.data()), tables.data(),
               static_cast<int>(spans.size() / 4), static_cast<int>(q.shape(1)), window,
               num_threads, scale, softcap});
}

// The attention by itself, for its tests, which see to it that nothing reaches outside.
void bind_attention(nb::module_& m) {
    m.def(
        "record_bytes",
        [](const std::string& isa, const std::string& kv, int block_size, int head_dim) {
            return kernels_for(isa).record_bytes(cache_of(kv, block_size, 1, head_dim));
        },
        "isa"_a, "kv"_a, "block_size"_a, "head_dim"_a);
    m.def("write_kv", write_kv, nb::kw_only(), "isa"_a, "kv"_a, "block_size"_a, "cache"_a,
          "slots"_a, "k"_a, "v"_a);
    m.def("attention", attention, nb::kw_only(), "isa"_a, "kv"_a, "block_size"_a,
          "num_kv_heads"_a, "q"_a, "out"_a, "cache"_a, "spans"_a, "tables"_a, "scale"_a,
          "window"_a, "softcap"_a, "num_threads"_a);
}

}  // namespace
}  // namespace headway

NB_MODULE(_kernels, m) {
    using namespace headway;
    nb::set_leak_warnings(false);  // an engine may live as long as the process
    m.def("isas", isas);
    m.def("source_hash", [] { return HEADWAY_SOURCE_HASH; });
    m.def("compiler", [] { return HEADWAY_COMPILER; });
    m.def(
        "num_threads", [](const std::string& isa) { return kernels_for(isa).num_threads(); },
        "isa"_a);
    m.attr("PHASES") = std::vector<std::string>(PHASES, PHASES + NUM_PHASES);
    bind_decoder(m);
    bind_product(m);
    bind_attention(m);
}
