// One narrow pass of decoder layers of the Llama family over a shared, slot-indexed KV cache.
//
// Five phases a layer, each cut into chunks that the pool's threads take: q, k and v by heads with
// rotary embedding and the write to the cache; attention by key/value heads and stretches of slots;
// output projection; gate and up; down projection. What lies between (norms, merging of the
// stretches) is small and done by the calling thread. The residual stream is kept in the model's
// dtype, as transformers keeps it, and every linear reads inputs rounded to it.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention.hpp"
#include "linear.hpp"
#include "numbers.hpp"
#include "pool.hpp"

namespace river {

// Pointers are to contiguous tensors that the caller keeps alive. T: the model's dtype.
struct Layer {
    Linear q, k, v, o, gate, up, down;
    const void* input_norm;  // [hidden] in T
    const void* post_norm;   // [hidden] in T
    const void* q_norm;      // [head_dim] in T, or null
    const void* k_norm;      // [head_dim] in T, or null
};

struct Model {
    int32_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
    int32_t batch, slots;          // of the cache
    int32_t rotated;               // dimensions of a head that turn, from the first on
    float epsilon, scaling;        // of the norms; of attention scores
    const float* cos;              // [slots, rotated], by position
    const float* sin;
    const float* query_scales;     // [slots], by position, or null
    void* keys;                    // T [layers, batch, kv_heads, slots, head_dim]
    void* values;
    uint8_t* source;               // [layers, batch, slots]
    const void* embedding;         // T [vocab, hidden]
    const void* final_norm;        // T [hidden]
    Linear head;
};

enum Mode : int32_t { kWhole = 0, kKeysAndValues = 1 };

enum Phase : int32_t { kProject, kAttend, kOutput, kGateUp, kDown, kHead, kPhases };

template <typename T>
class Engine {
  public:
    explicit Engine(const Model& model) : m_(model), pool_(Pool::shared()) {
        const int64_t rows = kMost, wide = m_.heads * m_.head_dim;
        const int64_t widest = std::max({int64_t(m_.hidden), wide, int64_t(m_.intermediate)});
        for (auto& state : state_) state.resize(rows * m_.hidden);
        middle_.resize(rows * m_.hidden);
        input_.resize(rows * widest);
        halves_.resize(rows * widest);
        for (auto* one : {&sums_, &steps_}) one->resize(rows * widest);
        for (auto* one : {&upper_, &lower_}) one->resize(rows * widest);
        query_.resize(rows * wide);
        activation_.resize(rows * m_.intermediate);
        const int64_t stretches = (m_.slots + kStretch - 1) / kStretch;
        partial_.resize(rows * m_.heads * stretches);
        seen_.resize(rows * wide * stretches);
    }

    T* state() { return state_[now_].data(); }
    T* previous() { return state_[1 - now_].data(); }

    void begin(int batch, int tokens, const int32_t* slots, const int32_t* pad, bool gaps) {
        batch_ = batch, tokens_ = tokens, gaps_ = gaps;
        std::copy(slots, slots + tokens, slot_);
        std::copy(pad, pad + batch, pad_);
        extent_ = slot_[tokens - 1] + 1;
    }

    void embed(const int32_t* ids) {
        for (int row = 0; row < rows(); ++row)
            std::copy_n(static_cast<const T*>(m_.embedding) + int64_t(ids[row]) * m_.hidden,
                        m_.hidden, state() + int64_t(row) * m_.hidden);
    }

    void run(const Layer& layer, int index, uint8_t writer, Mode mode) {
        project(layer, index, writer, mode);
        if (mode == kKeysAndValues) return;
        attend(index);
        output(layer);
        feed_forward(layer);
        now_ = 1 - now_;
    }

    // Cosine of the last layer's input and output at the last token of a batch row.
    float similarity(int row) {
        const int64_t at = (int64_t(row) * tokens_ + tokens_ - 1) * m_.hidden;
        const T *a = previous() + at, *b = state() + at;
        float dot = 0, aa = 0, bb = 0;
#pragma omp simd reduction(+ : dot, aa, bb)
        for (int i = 0; i < m_.hidden; ++i) {
            const float x = to_float(a[i]), y = to_float(b[i]);
            dot += x * y, aa += x * x, bb += y * y;
        }
        const float cosine = dot / std::max(std::sqrt(aa) * std::sqrt(bb), 1e-8f);
        return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
    }

    // Final norm and LM head of `count` rows of states. logits: T [count, vocab].
    // choice, best, second: for each row the first largest logit's index, it and the next largest;
    // `best` is NaN where any logit is.
    void head(const T* states, int count, T* logits, int64_t* choice, double* best, double* second) {
        normalize(states, m_.final_norm, count);
        const Activations x = activations(m_.head, count);
        const int step = chunk_rows(m_.head, 1);
        const int chunks = (m_.vocab + step - 1) / step;
        tops_.resize(int64_t(chunks) * count);
        run_phase(kHead, chunks, [&](int chunk) {
            const int first = chunk * step, last = std::min(m_.vocab, first + step);
            multiply<T>(m_.head, first, last, x, [&](int n, int row, float value) {
                logits[int64_t(n) * m_.vocab + row] = from_float<T>(value);
            });
            for (int n = 0; n < count; ++n) {
                Top top;
                for (int row = first; row < last; ++row)
                    top.see(row, to_float(logits[int64_t(n) * m_.vocab + row]));
                tops_[int64_t(chunk) * count + n] = top;
            }
        });
        for (int n = 0; n < count; ++n) {
            Top top = tops_[n];
            for (int chunk = 1; chunk < chunks; ++chunk)
                top.join(tops_[int64_t(chunk) * count + n]);
            choice[n] = top.choice, best[n] = top.best, second[n] = top.second;
        }
    }

    int rows() const { return batch_ * tokens_; }

    // From now on the seconds of each phase are added up in `spent`; null: no more.
    void profile(double* spent) { spent_ = spent; }

  private:
    // Runs the chunks of a phase.
    template <typename Body>
    void run_phase(Phase phase, int chunks, Body body) {
        if (!spent_) return pool_.run(chunks, body);
        const auto start = std::chrono::steady_clock::now();
        pool_.run(chunks, body);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        spent_[phase] += took.count();
    }

    // The largest value, where it stands first, and the next largest.
    struct Top {
        int64_t choice = 0;
        float best = -std::numeric_limits<float>::infinity();
        float second = -std::numeric_limits<float>::infinity();

        void see(int64_t at, float value) {
            if (value > best || value != value) {
                if (best != best) return;
                second = best, best = value, choice = at;
            } else if (value > second) {
                second = value;
            }
        }

        void join(const Top& later) {
            see(later.choice, later.best);
            if (later.second > second && later.best == later.best) second = later.second;
        }
    };

    // Rows of a chunk: about 96 KiB of weights, so that streams are long; fewer where the threads
    // would not find enough chunks to share them evenly.
    int chunk_rows(const Linear& linear, int together) const {
        const int tile = tile_rows(linear);
        const int bits = linear.kind == kFloat ? 32 : linear.kind == kBf16 ? 16
                       : linear.kind == kInt8 ? 8 : 4;
        const int64_t row = std::max<int64_t>(1, int64_t(linear.columns) * bits / 8 * together);
        const int64_t rows = std::min<int64_t>(98304 / row, linear.rows / (6 * pool_.threads()));
        return std::max<int>(tile, static_cast<int>(rows) / tile * tile);
    }

    // `input_` as a linear reads it.
    Activations activations(const Linear& linear, int count) {
        const int width = linear.columns;
        if (linear.kind == kInt4)
            for (int64_t at = 0; at < int64_t(count) * width; at += linear.group)
                to_fixed_point(at, linear.group);
        return {count, width, input_.data(), halves_.data(),
                sums_.data(), steps_.data(), upper_.data(), lower_.data()};
    }

    // One group of `input_` as fixed point, and its sum.
    void to_fixed_point(int64_t at, int group) {
        constexpr float kLargest = 32512;  // the upper half of it is 127
        const float* const x = input_.data() + at;
        int8_t* const upper = upper_.data() + at;
        int8_t* const lower = lower_.data() + at;
        // Magnitudes are ordered as their bits are, infinity and NaN above all numbers.
        uint32_t top = 0;
#pragma omp simd reduction(max : top)
        for (int k = 0; k < group; ++k) {
            uint32_t bits;
            std::memcpy(&bits, x + k, sizeof bits);
            top = std::max(top, bits & kMagnitude);
        }
        float largest;
        std::memcpy(&largest, &top, sizeof largest);
        // Numbers so small that the step has no inverse count as nothing.
        const float step = largest / kLargest, scale = largest > 1e-30f ? 1 / step : 0;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < group; ++k) {
            const int32_t whole = static_cast<int32_t>(std::nearbyint(x[k] * scale));
            const int32_t rest = static_cast<int8_t>(whole);
            sum += whole;
            lower[k] = static_cast<int8_t>(rest);
            upper[k] = static_cast<int8_t>((whole - rest) >> 8);
        }
        // NaN and infinities must show: whole numbers cannot hold them.
        const float kept =
            top < kInfinity ? step : std::numeric_limits<float>::quiet_NaN();
        steps_[at / group] = kept;
        sums_[at / group] = kept * static_cast<float>(sum);
    }

    // Makes `count` numbers, value(i) for i from 0, the activations from `at` on, in the dtype that
    // linears read.
    template <typename Value>
    void put(int64_t at, int count, Value&& value) {
        float* const input = input_.data() + at;
        bf16* const halves = halves_.data() + at;
        if constexpr (sizeof(T) == sizeof(bf16)) {
#pragma omp simd
            for (int i = 0; i < count; ++i) {
                const bf16 kept = from_float<bf16>(value(i));
                halves[i] = kept;
                input[i] = to_float(kept);
            }
        } else {
#pragma omp simd
            for (int i = 0; i < count; ++i) input[i] = value(i);
        }
    }

    // RMSNorm of rows of states, into the activations. As in transformers, the normalized number
    // is rounded before the weight multiplies it.
    void normalize(const T* states, const void* weight, int count) {
        const T* const w = static_cast<const T*>(weight);
        for (int n = 0; n < count; ++n) {
            const T* const x = states + int64_t(n) * m_.hidden;
            const float factor = inverse_rms(x, m_.hidden);
            put(int64_t(n) * m_.hidden, m_.hidden,
                [=](int i) { return rounded<T>(to_float(x[i]) * factor) * to_float(w[i]); });
        }
    }

    template <typename X>
    float inverse_rms(const X* x, int width) const {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < width; ++i) sum += to_float(x[i]) * to_float(x[i]);
        return 1.0f / std::sqrt(sum / width + m_.epsilon);
    }

    int64_t cache_row(int index, int batch_row, int head) const {
        const int64_t row = (int64_t(index) * m_.batch + batch_row) * m_.kv_heads + head;
        return row * m_.slots * m_.head_dim;
    }

    // q, k and v of a layer: chunks are heads. k and v go to the cache, and the sources with them.
    void project(const Layer& layer, int index, uint8_t writer, Mode mode) {
        const int dim = m_.head_dim, queries = mode == kWhole ? m_.heads : 0;
        for (int b = 0; b < batch_; ++b)
            for (int t = 0; t < tokens_; ++t)
                m_.source[(int64_t(index) * m_.batch + b) * m_.slots + slot_[t]] =
                    slot_[t] >= pad_[b] ? writer : 0;
        normalize(state(), layer.input_norm, rows());
        const Activations x = activations(layer.k, rows());
        run_phase(kProject, queries + 2 * m_.kv_heads, [&](int chunk) {
            const bool is_query = chunk < queries;
            const bool is_key = !is_query && chunk < queries + m_.kv_heads;
            const int head = is_query ? chunk : (chunk - queries) % m_.kv_heads;
            const Linear& linear = is_query ? layer.q : is_key ? layer.k : layer.v;
            const void* norm = is_query ? layer.q_norm : is_key ? layer.k_norm : nullptr;
            float out[kMost * kWidest];
            multiply<T>(linear, head * dim, (head + 1) * dim, x, [&](int n, int row, float value) {
                out[n * dim + row - head * dim] = rounded<T>(value);
            });
            for (int n = 0; n < x.count; ++n) {
                const int b = n / tokens_, t = n % tokens_;
                float* values = out + n * dim;
                if (norm) normalize_head(values, static_cast<const T*>(norm));
                const int position = std::max(0, slot_[t] - pad_[b]);
                if (is_query || is_key) rotate(values, position);
                if (is_query) {
                    const float grown = m_.query_scales ? m_.query_scales[position] : 1.0f;
                    float* query = query_.data() + (int64_t(n) * m_.heads + head) * dim;
                    for (int d = 0; d < dim; ++d)
                        query[d] = rounded<T>(rounded<T>(values[d]) * grown) * m_.scaling;
                } else {
                    T* cache = static_cast<T*>(is_key ? m_.keys : m_.values);
                    T* entry = cache + cache_row(index, b, head) + int64_t(slot_[t]) * dim;
                    for (int d = 0; d < dim; ++d) entry[d] = from_float<T>(values[d]);
                }
            }
        });
    }

    void normalize_head(float* values, const T* weight) const {
        const float factor = inverse_rms(values, m_.head_dim);
        for (int d = 0; d < m_.head_dim; ++d)
            values[d] = rounded<T>(rounded<T>(values[d] * factor) * to_float(weight[d]));
    }

    // Rotary embedding: dimension d turns with dimension d + rotated / 2.
    void rotate(float* values, int position) const {
        const int half = m_.rotated / 2;
        const float* cos = m_.cos + int64_t(position) * m_.rotated;
        const float* sin = m_.sin + int64_t(position) * m_.rotated;
        for (int d = 0; d < half; ++d) {
            const float a = values[d], b = values[d + half];
            values[d] = a * cos[d] - b * sin[d];
            values[d + half] = b * cos[d + half] + a * sin[d + half];
        }
    }

    // Attention into the activations; chunks are (batch row, key/value head, stretch).
    void attend(int index) {
        const int dim = m_.head_dim, together = m_.heads / m_.kv_heads;
        const int stretches = (extent_ + kStretch - 1) / kStretch;
        run_phase(kAttend, batch_ * m_.kv_heads * stretches, [&](int chunk) {
            const int stretch = chunk % stretches, head = chunk / stretches % m_.kv_heads;
            const int b = chunk / stretches / m_.kv_heads;
            const int first = stretch * kStretch;
            const int64_t at = cache_row(index, b, head) + int64_t(first) * dim;
            const T* keys = static_cast<const T*>(m_.keys) + at;
            const T* values = static_cast<const T*>(m_.values) + at;
            const uint8_t* source = m_.source + (int64_t(index) * m_.batch + b) * m_.slots + first;
            for (int t = 0; t < tokens_; ++t) {
                const int slots = std::min(kStretch, slot_[t] + 1 - first);
                for (int q = 0; q < together; ++q) {
                    const int64_t row = int64_t(b * tokens_ + t) * m_.heads + head * together + q;
                    const int64_t place = row * stretches + stretch;
                    float* out = seen_.data() + place * dim;
                    if (slots <= 0) {
                        partial_[place] = {-std::numeric_limits<float>::infinity(), 0};
                        std::fill(out, out + dim, 0.0f);
                        continue;
                    }
                    // A padding token sees itself, lest it see nothing.
                    const int own = slot_[t] - first, padding = pad_[b] - first;
                    const bool own_is_padding = own < padding;
                    partial_[place] = river::attend(
                        query_.data() + row * dim, keys, values, slots, dim,
                        [&](int j) {
                            if (own_is_padding && j == own) return false;
                            return j < padding || (gaps_ && source[j] == 0);
                        },
                        out);
                }
            }
        });
        for (int64_t row = 0; row < int64_t(rows()) * m_.heads; ++row) merge(row, stretches);
    }

    // Merges what one query head saw of all stretches, into the activations.
    void merge(int64_t row, int stretches) {
        const int dim = m_.head_dim;
        const Partial* parts = partial_.data() + row * stretches;
        float largest = parts[0].largest;
        for (int s = 1; s < stretches; ++s) {
            // NaN on either side must stay.
            if (parts[s].largest > largest || parts[s].largest != parts[s].largest)
                largest = parts[s].largest;
        }
        float sum = 0, out[kWidest] = {};
        for (int s = 0; s < stretches; ++s) {
            if (parts[s].sum == 0) continue;
            const float factor = exponential(parts[s].largest - largest);
            const float* seen = seen_.data() + (row * stretches + s) * dim;
            sum += factor * parts[s].sum;
#pragma omp simd
            for (int d = 0; d < dim; ++d) out[d] += factor * seen[d];
        }
        const float* const merged = out;
        put(row * dim, dim, [=](int d) { return merged[d] / sum; });
    }

    // states + linear(activations), row chunks; into `to`.
    void add_linear(Phase phase, const Linear& linear, const T* states, T* to) {
        const Activations x = activations(linear, rows());
        const int step = chunk_rows(linear, 1);
        run_phase(phase, (linear.rows + step - 1) / step, [&](int chunk) {
            const int first = chunk * step, last = std::min(linear.rows, first + step);
            multiply<T>(linear, first, last, x, [&](int n, int row, float value) {
                const int64_t at = int64_t(n) * m_.hidden + row;
                to[at] = from_float<T>(to_float(states[at]) + rounded<T>(value));
            });
        });
    }

    void output(const Layer& layer) { add_linear(kOutput, layer.o, state(), middle_.data()); }

    void feed_forward(const Layer& layer) {
        normalize(middle_.data(), layer.post_norm, rows());
        const Activations x = activations(layer.gate, rows());
        const int step = chunk_rows(layer.gate, 2), wide = m_.intermediate;
        run_phase(kGateUp, (wide + step - 1) / step, [&](int chunk) {
            const int first = chunk * step, last = std::min(wide, first + step);
            float* gate = activation_.data();
            multiply<T>(layer.gate, first, last, x, [&](int n, int row, float value) {
                gate[int64_t(n) * wide + row] = rounded<T>(value);
            });
            for (int n = 0; n < x.count; ++n) {
                float* part = gate + int64_t(n) * wide;
#pragma omp simd
                for (int row = first; row < last; ++row) part[row] = silu(part[row]);
            }
            multiply<T>(layer.up, first, last, x, [&](int n, int row, float value) {
                float& kept = gate[int64_t(n) * wide + row];
                kept = rounded<T>(kept) * rounded<T>(value);
            });
        });
        const float* const product = activation_.data();
        put(0, rows() * wide, [=](int i) { return product[i]; });
        add_linear(kDown, layer.down, middle_.data(), previous());
    }

    const Model m_;
    Pool& pool_;
    double* spent_ = nullptr;
    int batch_ = 0, tokens_ = 0, extent_ = 0, now_ = 0;
    bool gaps_ = false;
    int32_t slot_[kMost], pad_[kMost];
    std::vector<T> state_[2], middle_;  // residual stream: before and after a layer; between halves
    std::vector<float> input_, sums_, steps_;  // activations of the next linear
    std::vector<bf16> halves_;
    std::vector<int8_t> upper_, lower_;
    std::vector<float> query_, activation_, seen_;
    std::vector<Partial> partial_;
    std::vector<Top> tops_;
};

}  // namespace river

// What the other side calls. An engine is of the model's dtype: `half` tells which.
using namespace river;

namespace {

struct Handle {
    bool half;
    void* engine;
};

template <typename Call>
auto with(void* handle, Call&& call) {
    Handle* h = static_cast<Handle*>(handle);
    return h->half ? call(*static_cast<Engine<bf16>*>(h->engine))
                   : call(*static_cast<Engine<float>*>(h->engine));
}

}  // namespace

extern "C" {

int32_t river_most_rows() { return kMost; }
int32_t river_widest_head() { return kWidest; }

void river_set_threads(int32_t count) { Pool::shared().set_threads(count); }

void* river_create(const Model* model, int32_t half) {
    return new Handle{half != 0, half ? static_cast<void*>(new Engine<bf16>(*model))
                                      : static_cast<void*>(new Engine<float>(*model))};
}

void river_destroy(void* handle) {
    Handle* h = static_cast<Handle*>(handle);
    if (h->half) delete static_cast<Engine<bf16>*>(h->engine);
    else delete static_cast<Engine<float>*>(h->engine);
    delete h;
}

// ids: [batch * tokens], or null where the caller writes the states.
void river_begin(void* handle, int32_t batch, int32_t tokens, const int32_t* slots,
                 const int32_t* pad, int32_t gaps, const int32_t* ids) {
    with(handle, [&](auto& engine) {
        engine.begin(batch, tokens, slots, pad, gaps != 0);
        if (ids) engine.embed(ids);
    });
}

// States [batch * tokens, hidden] after the last layer, and before it.
void* river_state(void* handle) {
    return with(handle, [](auto& engine) { return static_cast<void*>(engine.state()); });
}

void* river_previous(void* handle) {
    return with(handle, [](auto& engine) { return static_cast<void*>(engine.previous()); });
}

void river_run(void* handle, const Layer* layers, int32_t first, int32_t last, int32_t writer,
               int32_t mode) {
    with(handle, [&](auto& engine) {
        for (int index = first; index < last; ++index)
            engine.run(layers[index], index, static_cast<uint8_t>(writer), Mode(mode));
    });
}

// Runs layers first..last-1 and stops where the similarity exceeds the threshold. thresholds:
// [depth - first - 1] for depths first + 1 .. last; NaN: not tested. live: [batch].
// Returns the depth; *tests: tests made; *score: the last (NaN stops too); *fired.
int32_t river_until(void* handle, const Layer* layers, int32_t first, int32_t last, int32_t writer,
                    const double* thresholds, const uint8_t* live, int32_t batch, int32_t* tests,
                    double* score, int32_t* fired) {
    return with(handle, [&](auto& engine) {
        *tests = 0, *fired = 0;
        for (int depth = first + 1; depth <= last; ++depth) {
            engine.run(layers[depth - 1], depth - 1, static_cast<uint8_t>(writer), kWhole);
            const double threshold = thresholds[depth - first - 1];
            if (threshold != threshold) continue;
            double least = std::numeric_limits<double>::infinity();
            for (int b = 0; b < batch; ++b) {
                if (!live[b]) continue;
                const double one = engine.similarity(b);
                if (!(one >= least)) least = one;
                if (one != one) break;
            }
            ++*tests;
            *score = least;
            if (least != least || least > threshold) {
                *fired = 1;
                return depth;
            }
        }
        return last;
    });
}

void river_head(void* handle, const void* states, int32_t count, void* logits, int64_t* choice,
                double* best, double* second) {
    with(handle, [&](auto& engine) {
        using T = std::remove_pointer_t<decltype(engine.state())>;
        engine.head(static_cast<const T*>(states), count, static_cast<T*>(logits), choice, best,
                    second);
    });
}

// spent: [kPhases] seconds, added to from now on; null: no more. For profiles, not for timed runs.
void river_profile(void* handle, double* spent) {
    with(handle, [&](auto& engine) { engine.profile(spent); });
}

// Reads memory as the linears do, in four streams, and returns the sum of what it read: for the
// bandwidth of this machine.
int64_t river_stream(const int64_t* numbers, int64_t count) {
    constexpr int64_t kPart = 1 << 15, kStreams = 4;
    const int chunks = static_cast<int>((count + kPart - 1) / kPart);
    std::vector<int64_t> sums(chunks);
    auto read = [&](int chunk) {
        const int64_t* const part = numbers + chunk * kPart;
        const int64_t length = std::min(kPart, count - chunk * kPart), apart = length / kStreams;
        int64_t sum[kStreams] = {};
        for (int64_t at = 0; at + 8 <= apart; at += 8)
            for (int s = 0; s < kStreams; ++s) {
                int64_t eight = 0;
                for (int i = 0; i < 8; ++i) eight += part[s * apart + at + i];
                sum[s] += eight;
            }
        int64_t rest = 0;
        for (int s = 0; s < kStreams; ++s)
            for (int64_t at = apart / 8 * 8; at < apart; ++at) rest += part[s * apart + at];
        for (int64_t at = apart * kStreams; at < length; ++at) rest += part[at];
        for (int64_t one : sum) rest += one;
        sums[chunk] = rest;
    };
    Pool::shared().run(chunks, read);
    int64_t sum = 0;
    for (int64_t one : sums) sum += one;
    return sum;
}

}  // extern "C"
