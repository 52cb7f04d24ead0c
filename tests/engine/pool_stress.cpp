// Many phases of random sizes on 1..8 threads: every chunk must run exactly once, before run()
// returns. The counters are plain integers, so that ThreadSanitizer sees whether the pool orders
// what its threads do. Argument: phases in all.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "pool.hpp"

int main(int, char** arguments) {
    const int phases = std::atoi(arguments[1]);
    const int orders[] = {1, 2, 8, 3, 5, 1, 4, 7, 6, 2};
    const int turns = sizeof orders / sizeof *orders;
    std::mt19937 random(0);
    river::Pool& pool = river::Pool::shared();
    std::vector<int> ran(64, 0), expected(64, 0);
    for (int turn = 0; turn < turns; ++turn) {
        pool.set_threads(orders[turn]);
        if (pool.threads() != orders[turn]) return std::puts("thread count"), 1;
        for (int phase = 0; phase < phases / turns; ++phase) {
            const int chunks = static_cast<int>(random() % 65);
            // Rarely long enough for the workers to fall asleep.
            if (random() % 200 == 0) std::this_thread::sleep_for(std::chrono::microseconds(400));
            pool.run(chunks, [&](int chunk) {
                // Chunks of unequal length, so that every thread gets some.
                for (volatile int turn = 0; turn < chunk % 7 * 100; turn = turn + 1) {}
                ++ran[chunk];
            });
            for (int chunk = 0; chunk < 64; ++chunk)
                if (ran[chunk] != (expected[chunk] += chunk < chunks))
                    return std::printf("turn %d, phase %d of %d chunks: chunk %d ran %d times\n",
                                       turn, phase, chunks, chunk, ran[chunk]), 1;
        }
    }
    std::puts("each chunk once");
}
