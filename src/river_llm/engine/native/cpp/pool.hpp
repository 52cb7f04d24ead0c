// Threads that run the chunks of one phase after another.
//
// A phase ends when its chunks are done, not when every thread has arrived: where another process
// takes a core away, the threads that still run do all of the work. (A barrier of OpenMP waits for
// the one that does not.) Which thread runs a chunk never changes what the chunk computes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace river {

class Pool {
  public:
    // The pool of the process. It is never destroyed: its threads may outlive static objects.
    static Pool& shared() {
        static Pool* pool = new Pool;
        return *pool;
    }

    // Lets `count` threads work, the caller's included.
    void set_threads(int count) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (; started_ < count - 1; ++started_) std::thread(&Pool::work, this, started_).detach();
        active_.store(count - 1);
    }

    // Threads that may work, the caller's included.
    int threads() const { return active_.load(std::memory_order_relaxed) + 1; }

    // Runs body(chunk) for every chunk in 0..chunks-1; one caller at a time.
    template <typename Body>
    void run(int chunks, Body&& body) {
        using Kept = std::remove_reference_t<Body>;
        if (chunks <= 0) return;
        if (chunks == 1 || active_.load(std::memory_order_relaxed) == 0) {
            for (int chunk = 0; chunk < chunks; ++chunk) body(chunk);
            return;
        }
        task_ = [](void* state, int chunk) { (*static_cast<Kept*>(state))(chunk); };
        state_ = &body;
        done_.store(0, std::memory_order_relaxed);
        // Sequentially consistent with the count of sleepers: a worker that is about to sleep
        // either sees the new phase or is seen here.
        ticket_.store(static_cast<uint64_t>(chunks) << 32);
        if (asleep_.load() != 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
        take_chunks();
        while (done_.load(std::memory_order_acquire) != chunks) relax();
    }

  private:
    static constexpr auto kSpin = std::chrono::microseconds(200);

    static void relax() {
#if defined(__x86_64__)
        _mm_pause();
#endif
    }

    // One word holds how many chunks the phase has (upper half) and the next one (lower half), so
    // that a late thread takes a chunk of the present phase or none. A chunk that is taken keeps
    // its phase from ending, so task and state are those that belong to it.
    bool open(uint64_t ticket) const { return (ticket & 0xffffffffu) < (ticket >> 32); }

    void take_chunks() {
        while (open(ticket_.load(std::memory_order_relaxed))) {
            uint64_t mine = ticket_.fetch_add(1, std::memory_order_acq_rel);
            if (!open(mine)) return;
            task_(state_, static_cast<int>(mine & 0xffffffffu));
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    void work(int index) {
        for (;;) {
            auto until = std::chrono::steady_clock::now() + kSpin;
            for (int turn = 1; index >= active_.load() || !open(ticket_.load()); ++turn) {
                relax();
                if (turn % 64 == 0 && std::chrono::steady_clock::now() > until) sleep(index);
            }
            take_chunks();
        }
    }

    void sleep(int index) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++asleep_;
        wake_.wait(lock, [&] { return index < active_.load() && open(ticket_.load()); });
        --asleep_;
    }

    std::atomic<uint64_t> ticket_{0};
    std::atomic<int> done_{0};
    std::atomic<int> active_{0};
    std::atomic<int> asleep_{0};
    void (*task_)(void*, int) = nullptr;
    void* state_ = nullptr;
    int started_ = 0;
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace river
