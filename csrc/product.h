// A product by itself, as the probe and tests call it.

#pragma once

#include <algorithm>
#include <vector>

#include "decoder.h"
#include "kernels.h"

namespace headway::HEADWAY_ISA {

template <class Kind>
class PackedProduct final : public headway::Product {
   public:
    PackedProduct(const float* weights, int num_channels, int width) : num_channels_(num_channels) {
        std::vector<const float*> channels;
        append_rows(channels, weights, num_channels, width);
        matrix_ = pack<Kind>(channels, width);
    }

    void multiply(const float* from, int num_rows, float* out, int num_threads) override {
        const int width = matrix_.width;
        const size_t stride = matrix_.groups * size_t{4};
        rows_.reserve(num_rows, stride);
        const Rows prepared{rows_.data.data(), stride, rows_.scale.data(), rows_.sum.data()};
        in_parallel(num_threads, [&](Team& team, int) {
            std::vector<float> row_of(width);
            team.each_row(num_rows, [&](int row) {
                std::copy_n(from + size_t{1} * row * width, width, row_of.data());
                prepare_row<Kind>(row_of.data(), width, rows_, stride, row);
            });
            HEADWAY_ISA::multiply<Kind>(
                team, matrix_, prepared, num_rows,
                [&](int row, int panel, const F32* values, int count) {
                    float lanes[LANES];
                    for (int p = 0; p < count; ++p) {
                        const int first = (panel + p) * LANES;
                        store(lanes, values[p]);
                        std::copy_n(lanes, std::clamp(num_channels_ - first, 0, LANES),
                                    out + size_t{1} * row * num_channels_ + first);
                    }
                });
        });
    }

   private:
    const int num_channels_;
    Matrix matrix_;
    RowsBuffer rows_;
};

}  // namespace headway::HEADWAY_ISA
