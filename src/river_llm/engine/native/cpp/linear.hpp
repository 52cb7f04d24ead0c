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

namespace river {

enum Kind : int32_t { kFloat = 0, kBf16 = 1, kInt8 = 2, kInt4 = 3 };

// A weight matrix [rows, columns].
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
    const float* sums;     // int4: sum over each group, [count, width / group]
};

constexpr int kMost = 16;   // tokens in a pass
constexpr int kBlock = 64;  // most rows that a tile yields at once

// Rows that one call of `multiply` yields; chunks are made of whole tiles.
inline int tile_rows(const Linear& linear) {
    return linear.kind == kInt4 ? linear.block : 4;
}

#if RIVER_AVX512_BF16
// Distance to which a row is fetched ahead. The hardware stops at the end of a page of memory.
constexpr int kAhead = 2048;

inline __m512 floats_of(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m512bh as_bf16(__m512i bits) { return (__m512bh)bits; }
#endif

// Four rows of floats, or of bf16 by way of floats.
template <typename T>
void dot_rows(const T* weight, int columns, int rows, const float* x, float* out) {
    for (int row = 0; row < rows; ++row) {
        const T* w = weight + static_cast<int64_t>(row) * columns;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < columns; ++k) sum += to_float(w[k]) * x[k];
        out[row] = sum;
    }
}

inline void dot_rows(const int8_t* weight, int columns, int rows, const float* x, float* out) {
    for (int row = 0; row < rows; ++row) {
        const int8_t* w = weight + static_cast<int64_t>(row) * columns;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < columns; ++k) sum += static_cast<float>(w[k]) * x[k];
        out[row] = sum;
    }
}

#if RIVER_AVX512_BF16
// Four rows of bf16 against N activations, 32 columns an instruction.
template <int N>
void dot_four(const bf16* weight, int columns, const bf16* x, float* out, int stride) {
    __m512 sum[4][N];
    for (auto& row : sum)
        for (auto& one : row) one = _mm512_setzero_ps();
    auto step = [&](int k, __mmask32 mask) {
        __m512bh input[N];
        for (int n = 0; n < N; ++n)
            input[n] = as_bf16(_mm512_maskz_loadu_epi16(mask, x + n * columns + k));
        for (int row = 0; row < 4; ++row) {
            const bf16* w = weight + static_cast<int64_t>(row) * columns + k;
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

inline void dot_rows_int8(const int8_t* weight, int columns, int rows, const float* x, float* out) {
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                     _mm512_setzero_ps()};
    for (int k = 0; k < columns; k += 16) {
        __m512 input = _mm512_loadu_ps(x + k);
        for (int row = 0; row < rows; ++row) {
            const int8_t* w = weight + static_cast<int64_t>(row) * columns + k;
            if (k % 64 == 0) _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
            __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
            __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
            sum[row] = _mm512_fmadd_ps(values, input, sum[row]);
        }
    }
    for (int row = 0; row < rows; ++row) out[row] = _mm512_reduce_add_ps(sum[row]);
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

#if RIVER_AVX512_BF16
// The same for blocks of 64 rows and N activations. A code n becomes the bf16 number 128 + n by
// setting bits, since 128 has just the seven bits of mantissa behind it.
constexpr float kOffset = 128;

template <int N>
void int4_block_avx512(
    const Linear& linear, int first, const Activations& x, int from, float* out, int stride) {
    const int columns = linear.columns, group = linear.group, groups = columns / group;
    const uint8_t* packed =
        static_cast<const uint8_t*>(linear.weight) + static_cast<int64_t>(first) * columns / 2;
    const bf16* input[N];
    for (int n = 0; n < N; ++n) input[n] = x.halves + static_cast<int64_t>(from + n) * columns;
    const __m512i nibble = _mm512_set1_epi16(15), offset = _mm512_set1_epi16(0x4300);
    // Interleaving two columns leaves rows 0-3, 8-11, .. in one register, 4-7, 12-15, .. in another.
    const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
    __m512 total[4][N];
    for (auto& part : total)
        for (auto& one : part) one = _mm512_setzero_ps();
    for (int g = 0; g < groups; ++g) {
        __m512 dot[4][N];
        for (auto& part : dot)
            for (auto& one : part) one = _mm512_setzero_ps();
        for (int k = g * group; k < (g + 1) * group; k += 2, packed += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(packed) + kAhead, _MM_HINT_T0);
            const __m256i* at = reinterpret_cast<const __m256i*>(packed);
            __m512i first_column = _mm512_cvtepu8_epi16(_mm256_loadu_si256(at));
            __m512i second_column = _mm512_cvtepu8_epi16(_mm256_loadu_si256(at + 1));
            __m512i pairs[2] = {_mm512_unpacklo_epi16(first_column, second_column),
                                _mm512_unpackhi_epi16(first_column, second_column)};
            __m512i weights[4];
            for (int i = 0; i < 2; ++i) {
                // (pairs & nibble) | offset in one instruction.
                weights[i] = _mm512_ternarylogic_epi32(pairs[i], nibble, offset, 0xea);
                weights[i + 2] = _mm512_or_si512(_mm512_srli_epi16(pairs[i], 4), offset);
            }
            for (int n = 0; n < N; ++n) {
                int32_t two;
                std::memcpy(&two, input[n] + k, sizeof two);
                const __m512bh both = as_bf16(_mm512_set1_epi32(two));
                for (int i = 0; i < 4; ++i)
                    dot[i][n] = _mm512_dpbf16_ps(dot[i][n], as_bf16(weights[i]), both);
            }
        }
        const bf16* grid = linear.grid + (static_cast<int64_t>(g) * linear.rows + first) * 2;
        for (int i = 0; i < 4; ++i) {
            const bf16* rows = grid + (i / 2) * 64;
            __m512i a = _mm512_loadu_si512(rows), b = _mm512_loadu_si512(rows + 32);
            __m512i picked = _mm512_permutex2var_epi32(a, i % 2 ? odd : even, b);
            __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(picked, 16));
            __m512 zero = _mm512_castsi512_ps(
                _mm512_and_si512(picked, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
            for (int n = 0; n < N; ++n) {
                const float sum = x.sums[(from + n) * groups + g];
                __m512 centred = _mm512_sub_ps(dot[i][n], _mm512_set1_ps((kOffset + kMiddle) * sum));
                total[i][n] = _mm512_fmadd_ps(scale, centred, total[i][n]);
                total[i][n] = _mm512_fmadd_ps(zero, _mm512_set1_ps(sum), total[i][n]);
            }
        }
    }
    // Back into the order of rows: every four of one register, then four of the other.
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < 4; i += 2) {
            float* rows = out + n * stride + i * 16;
            _mm512_storeu_ps(rows, _mm512_permutex2var_ps(total[i][n], low, total[i + 1][n]));
            _mm512_storeu_ps(rows + 16, _mm512_permutex2var_ps(total[i][n], high, total[i + 1][n]));
        }
}
#endif

// Rows first..first + rows - 1 (one tile) times every activation, without the bias.
// out: [count, stride], of which the first `rows` columns are written.
inline void multiply_tile(
    const Linear& linear, int first, int rows, const Activations& x, float* out, int stride) {
    const int columns = linear.columns;
    const int64_t start = static_cast<int64_t>(first) * columns;
    if (linear.kind == kInt4) {
        int n = 0;
#if RIVER_AVX512_BF16
        if (linear.block == 64) {
            for (; n + 2 <= x.count; n += 2)
                int4_block_avx512<2>(linear, first, x, n, out + n * stride, stride);
            for (; n < x.count; ++n)
                int4_block_avx512<1>(linear, first, x, n, out + n * stride, stride);
        }
#endif
        for (; n < x.count; ++n)
            int4_block(linear, first, x.values + static_cast<int64_t>(n) * columns,
                       x.sums + n * (columns / linear.group), out + n * stride);
        return;
    }
    if (linear.kind == kInt8) {
        const int8_t* weight = static_cast<const int8_t*>(linear.weight) + start;
        for (int n = 0; n < x.count; ++n) {
            const float* input = x.values + static_cast<int64_t>(n) * columns;
#if RIVER_AVX512_BF16
            dot_rows_int8(weight, columns, rows, input, out + n * stride);
#else
            dot_rows(weight, columns, rows, input, out + n * stride);
#endif
            for (int row = 0; row < rows; ++row)
                out[n * stride + row] *= to_float(linear.grid[first + row]);
        }
        return;
    }
    if (linear.kind == kBf16) {
        const bf16* weight = static_cast<const bf16*>(linear.weight) + start;
        int n = 0;
#if RIVER_AVX512_BF16
        if (rows == 4) {
            for (; n + 4 <= x.count; n += 4)
                dot_four<4>(weight, columns, x.halves + static_cast<int64_t>(n) * columns,
                            out + n * stride, stride);
            for (; n < x.count; ++n)
                dot_four<1>(weight, columns, x.halves + static_cast<int64_t>(n) * columns,
                            out + n * stride, stride);
        }
#endif
        for (; n < x.count; ++n)
            dot_rows(weight, columns, rows, x.values + static_cast<int64_t>(n) * columns,
                     out + n * stride);
        return;
    }
    const float* weight = static_cast<const float*>(linear.weight) + start;
    for (int n = 0; n < x.count; ++n)
        dot_rows(weight, columns, rows, x.values + static_cast<int64_t>(n) * columns,
                 out + n * stride);
}

// Rows first..last-1 times every activation, bias included; store(n, row, value) takes each.
template <typename T, typename Store>
void multiply(const Linear& linear, int first, int last, const Activations& x, Store&& store) {
    const int tile = tile_rows(linear);
    const T* bias = static_cast<const T*>(linear.bias);
    float out[kMost * kBlock];
    for (int at = first; at < last; at += tile) {
        const int rows = std::min(tile, last - at);
        multiply_tile(linear, at, rows, x, out, kBlock);
        for (int n = 0; n < x.count; ++n)
            for (int row = 0; row < rows; ++row) {
                const float value = out[n * kBlock + row];
                store(n, at + row, bias ? value + to_float(bias[at + row]) : value);
            }
    }
}

}  // namespace river
