// Attention of one token's query heads over one stretch of cache slots (as in flash decoding:
// each stretch yields its own maximum, sum and weighted values, which are merged afterwards).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "numbers.hpp"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace river {

constexpr int kStretch = 64;   // slots in a stretch
constexpr int kWidest = 256;   // widest head

// What one query head saw of one stretch.
struct Partial {
    float largest;  // of its scores; -inf where it saw nothing
    float sum;      // of exp(score - largest)
};

#if defined(__AVX512F__)
inline __m512 load16(const float* at) { return _mm512_loadu_ps(at); }

inline __m512 load16(const bf16* at) {
    __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Sums of sixteen registers, each over its lanes, in one register.
inline __m512 sums_of_16(__m512* r) {
    for (int n = 0; n < 8; ++n) {
        __m512 a = r[2 * n], b = r[2 * n + 1];
        r[n] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int n = 0; n < 4; ++n) {
        __m512d a = _mm512_castps_pd(r[2 * n]), b = _mm512_castps_pd(r[2 * n + 1]);
        r[n] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int n = 0; n < 2; ++n)
        r[n] = _mm512_add_ps(_mm512_shuffle_f32x4(r[2 * n], r[2 * n + 1], 0x88),
                             _mm512_shuffle_f32x4(r[2 * n], r[2 * n + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x88),
                         _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
}
#endif

// Scores of one query against `slots` keys: out[j] = query . keys[j].
template <typename T>
void scores(const float* query, const T* keys, int slots, int width, float* out) {
    int slot = 0;
#if defined(__AVX512F__)
    if (width % 16 == 0) {
        for (; slot + 16 <= slots; slot += 16) {
            __m512 sum[16];
            for (int j = 0; j < 16; ++j) {
                const T* key = keys + static_cast<int64_t>(slot + j) * width;
                sum[j] = _mm512_mul_ps(load16(key), load16(query));
                for (int d = 16; d < width; d += 16)
                    sum[j] = _mm512_fmadd_ps(load16(key + d), load16(query + d), sum[j]);
            }
            _mm512_storeu_ps(out + slot, sums_of_16(sum));
        }
    }
#endif
    for (; slot < slots; ++slot) {
        const T* key = keys + static_cast<int64_t>(slot) * width;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < width; ++d) sum += query[d] * to_float(key[d]);
        out[slot] = sum;
    }
}

// out[d] = sum over slots of weight[j] * values[j][d]. Slots of weight 0 are not read: what stands
// in them may be anything.
template <typename T>
void weighted(const float* weight, const T* values, int slots, int width, float* out) {
    int d = 0;
#if defined(__AVX512F__)
    for (; d + 64 <= width; d += 64) {
        __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                         _mm512_setzero_ps()};
        for (int j = 0; j < slots; ++j) {
            if (weight[j] == 0) continue;
            const T* value = values + static_cast<int64_t>(j) * width + d;
            __m512 factor = _mm512_set1_ps(weight[j]);
            for (int i = 0; i < 4; ++i)
                sum[i] = _mm512_fmadd_ps(factor, load16(value + 16 * i), sum[i]);
        }
        for (int i = 0; i < 4; ++i) _mm512_storeu_ps(out + d + 16 * i, sum[i]);
    }
#endif
    for (int rest = d; rest < width; ++rest) out[rest] = 0;
    for (int j = 0; j < slots && d < width; ++j) {
        if (weight[j] == 0) continue;
        const T* value = values + static_cast<int64_t>(j) * width;
#pragma omp simd
        for (int rest = d; rest < width; ++rest) out[rest] += weight[j] * to_float(value[rest]);
    }
}

// One query over one stretch.
//
// query: [width], scaled. keys, values: of the stretch's first slot, [slots, width].
// hidden(j): whether slot j of the stretch is not to be seen. out: [width].
template <typename T, typename Hidden>
Partial attend(const float* query, const T* keys, const T* values, int slots, int width,
               Hidden&& hidden, float* out) {
    float score[kStretch];
    scores(query, keys, slots, width, score);
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    float largest = kNothing;
    bool not_a_number = false;
    for (int j = 0; j < slots; ++j) {
        if (hidden(j)) {
            score[j] = kNothing;
            continue;
        }
        not_a_number |= score[j] != score[j];
        largest = std::max(largest, score[j]);
    }
    if (not_a_number) largest = std::numeric_limits<float>::quiet_NaN();
    float sum = 0;
    if (largest == kNothing) {
        std::fill(out, out + width, 0.0f);
        return {largest, 0};
    }
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < slots; ++j) {
        score[j] = exponential(score[j] - largest);
        sum += score[j];
    }
    weighted(score, values, slots, width, out);
    return {largest, sum};
}

}  // namespace river
