// Number formats of weights, activations and cache entries.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace river {

// Bits of a bfloat16: the upper half of a float.
struct bf16 {
    uint16_t bits;
};

// Of a float's bits: all but the sign; those of infinity, above which lie those of NaN.
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

inline float to_float(bf16 value) {
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline float to_float(float value) { return value; }

template <typename T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
    return value;
}

// Round to nearest even, as torch does; NaN stays NaN. Without a branch, for vectors.
template <>
inline bf16 from_float<bf16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40;
    return {static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? nan : nearest)};
}

// The value that a number of the model's dtype keeps.
template <typename T>
float rounded(float value) {
    return to_float(from_float<T>(value));
}

// exp(x) for x <= 0 within 2 units in the last place, in a form that compilers vectorize; what
// would be below the smallest normal number is 0. Polynomial: Taylor's, on [-ln 2 / 2, ln 2 / 2].
inline float exponential(float x) {
    const float clamped = x < -87.0f ? -87.0f : x;
    const float power = std::nearbyint(clamped * 1.44269504f);
    const float rest = (clamped - power * 0.693359375f) + power * 2.12194440e-4f;
    float y = 1.0f / 5040;
    y = y * rest + 1.0f / 720;
    y = y * rest + 1.0f / 120;
    y = y * rest + 1.0f / 24;
    y = y * rest + 1.0f / 6;
    y = y * rest + 0.5f;
    y = y * rest + 1.0f;
    y = y * rest + 1.0f;
    const int32_t bits = (static_cast<int32_t>(power) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : y * scale;
}

// x / (1 + exp(-x)), by way of exp(-|x|).
inline float silu(float x) {
    const float small = exponential(-std::fabs(x));
    return x * (x < 0 ? small : 1.0f) / (1.0f + small);
}

}  // namespace river
