// The threads that run one forward pass together, from its first phase to its last.

#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {

// A phase is a number of tasks, which threads take as they come: one that is held up by the
// machine holds up no more than its task. What a task computes does not depend on who takes it.
class Team {
   public:
    explicit Team(int size) : size_(size) {}

    int size() const { return size_; }

    // Runs tasks 0 to count - 1, each once, `grain` at a time, and waits for all of them. Every
    // thread of the team calls it with the same arguments.
    template <class Task>
    void each(int count, int grain, Task&& task) {
        for (int begin; (begin = next_.fetch_add(grain, std::memory_order_relaxed)) < count;) {
            const int end = std::min(begin + grain, count);
            for (int i = begin; i < end; ++i) task(i);
        }
        wait();
    }

    // The same over rows of the batch, neighbours together: what tasks write of two rows may share
    // a cache line.
    template <class Task>
    void each_row(int count, Task&& task) {
        each(count, std::clamp(count / (4 * size_), 1, 16), task);
    }

   private:
    void wait() {
        const int phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        // Spins for a few tasks' time; then whoever it waits for may need this very core.
        for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
            if (spins < SPINS)
                relax();
            else
                std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

    static constexpr int SPINS = 20000;  // about half a millisecond

    static void relax() {
#if defined(__x86_64__)
        _mm_pause();
#endif
    }

    const int size_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> phase_{0};
};

// Calls `work(team)` in as many threads as PyTorch's OpenMP gives, at most `num_threads`.
template <class Work>
void in_parallel(int num_threads, Work&& work) {
    if (num_threads == 1) {
        Team team(1);
        work(team, 0);
        return;
    }
    Team* team = nullptr;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp single
        team = new Team(omp_get_num_threads());
        work(*team, omp_get_thread_num());
    }
    delete team;
}

}  // namespace headway
