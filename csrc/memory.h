// Memory that kernels own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headway {

// Uninitialised, aligned to a cache line, or to a large page where it fills some.
template <class T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(size_t count) : count_(count) {
        constexpr size_t large = size_t{2} << 20;
        size_t bytes = count * sizeof(T);
        size_t alignment = bytes >= large ? large : 64;
        bytes = (bytes + alignment - 1) / alignment * alignment;
        if (bytes == 0) return;
        data_ = static_cast<T*>(std::aligned_alloc(alignment, bytes));
        if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
        if (alignment == large) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    }
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~Buffer() { std::free(data_); }

    // What it held is lost where it has to grow.
    void reserve(size_t count) {
        if (count > count_) *this = Buffer(count);
    }
    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return count_; }
    T& operator[](size_t i) { return data_[i]; }
    const T& operator[](size_t i) const { return data_[i]; }

   private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace headway
