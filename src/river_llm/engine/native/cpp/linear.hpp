// Linears for a few activations at a time: each weight is read from memory once.
//
// Activations stand in two forms, as floats and (for bf16 models) as bf16; both hold the same
// numbers. Sums are in float; a result is rounded by whoever stores it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "numbers.hpp"
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define RIVER_AVX512_BF16 1
#endif
#if defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#define RIVER_AVX512_VNNI 1
#endif

namespace river {

enum Kind : int32_t { kFloat = 0, kBf16 = 1, kInt8 = 2, kInt4 = 3 };

// A weight matrix [rows, columns]. One that is a part of a fused matrix (q of q, k and v) points at
// its first row there and has the rows of the whole, over which the grid of int4 is laid out.
struct Linear {
    int32_t kind;
    int32_t rows;
    int32_t columns;
    int32_t group;       // int4: columns that share scale and zero
    int32_t block;       // int4: rows packed together
    int32_t padding;
    const void* weight;  // float, bf16, int8: row after row; int4: see below
    const bf16* grid;    // int8: scale [rows]; int4: (scale, zero) [columns / group, rows, 2]
    const void* bias;    // [rows] in the model's dtype, or null
};

// Up to kMost activations of one width.
struct Activations {
    int count;
    int width;
    const float* values;   // [count, width]
    const bf16* halves;    // the same in bf16
    // Of int4: each group's sum [count, width / group] and, as fixed point, its step and the two
    // halves of its numbers [count, width]: x = step * (256 * upper + lower).
    const float* sums;
    const float* steps;
    const int8_t* upper;
    const int8_t* lower;
};

constexpr int kMost = 16;   // tokens in a pass
constexpr int kBlock = 64;  // most rows that a tile yields at once

// Rows that are not parted between chunks. Four, so that only the last rows of a matrix are taken
// one by one (which sums in another order), however many threads, and so chunks, there are.
inline int tile_rows(const Linear& linear) {
    return linear.kind == kInt4 ? linear.block : 4;
}

// Distance to which weights are fetched ahead, in bytes. The hardware stops at the end of a page.
[[maybe_unused]] constexpr int kAhead = 1024;
[[maybe_unused]] constexpr int kAheadInt4 = 4096;

#if RIVER_AVX512_BF16
inline __m512bh as_bf16(__m512i bits) { return (__m512bh)bits; }
#endif

inline float to_float(int8_t code) { return code; }

template <typename W>
float dot_row(const void* weight, int64_t start, int columns, const float* x) {
    const W* w = static_cast<const W*>(weight) + start;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < columns; ++k) sum += to_float(w[k]) * x[k];
    return sum;
}

// One row times one activation, whatever the processor.
inline float multiply_row(const Linear& linear, int row, const Activations& x, int n) {
    const int columns = linear.columns;
    const int64_t start = static_cast<int64_t>(row) * columns;
    const float* input = x.values + static_cast<int64_t>(n) * columns;
    switch (linear.kind) {
        case kInt8: return dot_row<int8_t>(linear.weight, start, columns, input);
        case kBf16: return dot_row<bf16>(linear.weight, start, columns, input);
        default: return dot_row<float>(linear.weight, start, columns, input);
    }
}

#if RIVER_AVX512_BF16
// Four rows of bf16, `apart` rows from each other, against N activations.
template <int N>
void dot_four(
    const bf16* weight, int64_t apart, int columns, const bf16* x, float* out, int stride) {
    __m512 sum[4][N];
    for (auto& row : sum)
        for (auto& one : row) one = _mm512_setzero_ps();
    auto step = [&](int k, __mmask32 mask) {
        __m512bh input[N];
        for (int n = 0; n < N; ++n)
            input[n] = as_bf16(_mm512_maskz_loadu_epi16(mask, x + n * columns + k));
        for (int row = 0; row < 4; ++row) {
            const bf16* w = weight + row * apart * columns + k;
            _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
            __m512bh values = as_bf16(_mm512_maskz_loadu_epi16(mask, w));
            for (int n = 0; n < N; ++n) sum[row][n] = _mm512_dpbf16_ps(sum[row][n], values, input[n]);
        }
    };
    int k = 0;
    for (; k + 32 <= columns; k += 32) step(k, 0xffffffffu);
    if (k < columns) step(k, (1u << (columns - k)) - 1);
    for (int row = 0; row < 4; ++row)
        for (int n = 0; n < N; ++n) out[n * stride + row] = _mm512_reduce_add_ps(sum[row][n]);
}

// Four rows of int8 against one activation.
inline void dot_four(
    const int8_t* weight, int64_t apart, int columns, const float* x, float* out) {
    __m512 sum[4];
    for (auto& row : sum) row = _mm512_setzero_ps();
    for (int k = 0; k < columns; k += 16) {
        __m512 input = _mm512_loadu_ps(x + k);
        for (int row = 0; row < 4; ++row) {
            const int8_t* w = weight + row * apart * columns + k;
            if (k % 64 == 0) _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
            __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
            __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
            sum[row] = _mm512_fmadd_ps(values, input, sum[row]);
        }
    }
    for (int row = 0; row < 4; ++row) out[row] = _mm512_reduce_add_ps(sum[row]);
}
#endif

// int4 as PyTorch's CPU kernel packs it: blocks of `block` rows; in a block, column after column,
// block / 2 bytes; byte i holds row i in its low half and row i + block / 2 in its high half.
// A weight is (code - 8) * scale + zero with scale and zero of its row and group, so that a group
// adds scale * (sum of code * x - 8 * sum of x) + zero * (sum of x).
constexpr float kMiddle = 8;

inline void int4_block(
    const Linear& linear, int first, const float* x, const float* sums, float* out) {
    const int half = linear.block / 2, groups = linear.columns / linear.group;
    const uint8_t* packed =
        static_cast<const uint8_t*>(linear.weight) + static_cast<int64_t>(first) * linear.columns / 2;
    std::fill(out, out + linear.block, 0.0f);
    for (int g = 0; g < groups; ++g) {
        float low[kBlock / 2] = {}, high[kBlock / 2] = {};
        for (int k = g * linear.group; k < (g + 1) * linear.group; ++k, packed += half) {
            const float input = x[k];
#pragma omp simd
            for (int i = 0; i < half; ++i) {
                low[i] += static_cast<float>(packed[i] & 15) * input;
                high[i] += static_cast<float>(packed[i] >> 4) * input;
            }
        }
        const bf16* grid = linear.grid + (static_cast<int64_t>(g) * linear.rows + first) * 2;
        for (int i = 0; i < linear.block; ++i) {
            const float dot = (i < half ? low[i] : high[i - half]) - kMiddle * sums[g];
            out[i] += to_float(grid[2 * i]) * dot + to_float(grid[2 * i + 1]) * sums[g];
        }
    }
}

#if RIVER_AVX512_VNNI
// The same for blocks of 64 rows. The products are of whole numbers: a group's activations become
// 16-bit fixed point, 256 * upper + lower, with a step of their own (what that loses is below 2^-16
// of the largest of them). Groups g, g + apart, .. (S of them) go together.
template <int S>
void int4_groups(const Linear& linear, int first, const Activations& x, int n, int g, int apart,
                 __m512 (&total)[4]) {
    const int columns = linear.columns, group = linear.group, groups = columns / group;
    const uint8_t* packed =
        static_cast<const uint8_t*>(linear.weight) + static_cast<int64_t>(first) * columns / 2;
    const int8_t* upper = x.upper + static_cast<int64_t>(n) * columns;
    const int8_t* lower = x.lower + static_cast<int64_t>(n) * columns;
    // Four columns of one row next to each other, rows 0-15 and 16-31.
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i early = _mm512_add_epi32(
        _mm512_mullo_epi32(row, _mm512_set1_epi32(0x01010101)), _mm512_set1_epi32(0x60402000));
    const __m512i late = _mm512_add_epi8(early, _mm512_set1_epi8(16));
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i high[S][4], low[S][4];
    for (int s = 0; s < S; ++s)
        for (int i = 0; i < 4; ++i) high[s][i] = low[s][i] = _mm512_setzero_si512();
    for (int k = 0; k < group; k += 4)
        for (int s = 0; s < S; ++s) {
            const int64_t column = static_cast<int64_t>(g + s * apart) * group + k;
            const uint8_t* at = packed + column * 32;
            _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadInt4, _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadInt4 + 64, _MM_HINT_T0);
            __m512i one = _mm512_loadu_si512(at), two = _mm512_loadu_si512(at + 64);
            __m512i rows[2] = {_mm512_permutex2var_epi8(one, early, two),
                               _mm512_permutex2var_epi8(one, late, two)};
            int32_t bits[2];
            std::memcpy(bits, upper + column, 4);
            std::memcpy(bits + 1, lower + column, 4);
            const __m512i up = _mm512_set1_epi32(bits[0]), down = _mm512_set1_epi32(bits[1]);
            for (int i = 0; i < 4; ++i) {
                __m512i codes = i < 2 ? rows[i] : _mm512_srli_epi16(rows[i - 2], 4);
                codes = _mm512_and_si512(codes, nibble);
                high[s][i] = _mm512_dpbusd_epi32(high[s][i], codes, up);
                low[s][i] = _mm512_dpbusd_epi32(low[s][i], codes, down);
            }
        }
    for (int s = 0; s < S; ++s) {
        const int now = g + s * apart;
        const bf16* grid = linear.grid + (static_cast<int64_t>(now) * linear.rows + first) * 2;
        const float sum = x.sums[n * groups + now];
        const __m512 step = _mm512_set1_ps(x.steps[n * groups + now]);
        for (int i = 0; i < 4; ++i) {
            __m512i both = _mm512_loadu_si512(grid + 32 * i);
            __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            __m512 zero = _mm512_castsi512_ps(
                _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
            __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high[s][i], 8), low[s][i]);
            __m512 centred = _mm512_fmadd_ps(
                _mm512_cvtepi32_ps(dot), step, _mm512_set1_ps(-kMiddle * sum));
            total[i] = _mm512_fmadd_ps(scale, centred, total[i]);
            total[i] = _mm512_fmadd_ps(zero, _mm512_set1_ps(sum), total[i]);
        }
    }
}

inline void int4_block_avx512(
    const Linear& linear, int first, const Activations& x, int n, float* out) {
    constexpr int kStreams = 2;
    const int groups = linear.columns / linear.group, apart = groups / kStreams;
    __m512 total[4];
    for (auto& part : total) part = _mm512_setzero_ps();
    for (int g = 0; g < apart; ++g) int4_groups<kStreams>(linear, first, x, n, g, apart, total);
    for (int g = apart * kStreams; g < groups; ++g)
        int4_groups<1>(linear, first, x, n, g, 0, total);
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(out + 16 * i, total[i]);
}
#endif

// Weights are read as four streams far from each other: one core has more requests to memory under
// way so (2048 x 576 in bf16 on two cores of a Xeon: 20 GB/s with neighbouring rows, 30 so).

// One block of int4 rows times every activation. out: [count, kBlock].
inline void multiply_block(const Linear& linear, int first, const Activations& x, float* out) {
    for (int n = 0; n < x.count; ++n) {
#if RIVER_AVX512_VNNI
        if (linear.block == 64) {
            int4_block_avx512(linear, first, x, n, out + n * kBlock);
            continue;
        }
#endif
        int4_block(linear, first, x.values + static_cast<int64_t>(n) * linear.columns,
                   x.sums + n * (linear.columns / linear.group), out + n * kBlock);
    }
}

// Four rows `apart` from each other times every activation. out: [count, 4].
inline void multiply_four(
    const Linear& linear, int first, int apart, const Activations& x, float* out) {
#if RIVER_AVX512_BF16
    const int columns = linear.columns;
    const int64_t start = static_cast<int64_t>(first) * columns;
    if (linear.kind == kBf16) {
        const bf16* weight = static_cast<const bf16*>(linear.weight) + start;
        int n = 0;
        for (; n + 4 <= x.count; n += 4)
            dot_four<4>(weight, apart, columns, x.halves + int64_t(n) * columns, out + n * 4, 4);
        for (; n < x.count; ++n)
            dot_four<1>(weight, apart, columns, x.halves + int64_t(n) * columns, out + n * 4, 4);
        return;
    }
    if (linear.kind == kInt8) {
        const int8_t* weight = static_cast<const int8_t*>(linear.weight) + start;
        for (int n = 0; n < x.count; ++n)
            dot_four(weight, apart, columns, x.values + int64_t(n) * columns, out + n * 4);
        return;
    }
#endif
    for (int n = 0; n < x.count; ++n)
        for (int row = 0; row < 4; ++row)
            out[n * 4 + row] = multiply_row(linear, first + row * apart, x, n);
}

// Rows first..last-1 times every activation, bias included; store(n, row, value) takes each.
template <typename T, typename Store>
void multiply(const Linear& linear, int first, int last, const Activations& x, Store&& store) {
    const T* bias = static_cast<const T*>(linear.bias);
    auto keep = [&](int n, int row, float value) {
        // In every case: whether product and sum are fused would else differ from place to place.
        const float scale = linear.kind == kInt8 ? to_float(linear.grid[row]) : 1.0f;
        store(n, row, value * scale + (bias ? to_float(bias[row]) : 0.0f));
    };
    float out[kMost * kBlock];
    if (linear.kind == kInt4) {
        for (int at = first; at < last; at += linear.block) {
            multiply_block(linear, at, x, out);
            for (int n = 0; n < x.count; ++n)
                for (int row = 0; row < linear.block; ++row)
                    keep(n, at + row, out[n * kBlock + row]);
        }
        return;
    }
    const int apart = (last - first) / 4;
    for (int at = first; at < first + apart; ++at) {
        multiply_four(linear, at, apart, x, out);
        for (int n = 0; n < x.count; ++n)
            for (int row = 0; row < 4; ++row) keep(n, at + row * apart, out[n * 4 + row]);
    }
    for (int row = first + 4 * apart; row < last; ++row)
        for (int n = 0; n < x.count; ++n) keep(n, row, multiply_row(linear, row, x, n));
}

}  // namespace river
